#!/usr/bin/env python3
"""A device that a tc redirect delivers to, as CNI plugins wire containers: redirected.py kernel|near

Frames that the redirect brings pass by the generic XDP hook, and the kernel would reset each connection of ours. It is found out: the
driver's own hook (native XDP) sees them, and where it may not be used the sockets stay with the kernel and say why."""
import os
import pathlib
import sys

here = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(here.parents[1] / "lab"))
sys.path.insert(0, str(here.parents[1] / "apps"))
import lab as labs  # noqa: E402
from programs import accelerated_sockets, statistics, until  # noqa: E402

SERVER = """
import socket, sys
listener = socket.create_server(("0.0.0.0", int(sys.argv[1])))
while True:
    with listener.accept()[0] as c: c.sendall(c.recv(100))
"""
ECHO = """
import socket
def echo(at):
    with socket.create_connection(at, 10) as c:
        c.sendall(b"hello")
        assert c.recv(100, socket.MSG_WAITALL) == b"hello"
"""
CLIENT = ECHO + """
import sys
echo((sys.argv[1], int(sys.argv[2])))
"""
# One echo for each line.
CLIENTS = ECHO + """
import sys
for line in sys.stdin:
    echo((sys.argv[1], int(sys.argv[2])))
    print("done", flush=True)
"""


class RedirectedLab(labs.Lab):
    """near and far, joined by a namespace that forwards by redirects alone."""

    def _lay_cable(self, here, there):
        self.between = self.near.name[:-1] + "m"
        with labs._namespace_table():
            labs.sh("ip", "netns", "add", self.between)
        for host, device, end in ((self.near, here, "m0"), (self.far, there, "m1")):
            host.ip("link", "add", device, "numtxqueues", "1", "numrxqueues", "1", "type", "veth", "peer", "name", end, "numtxqueues", "1",
                    "numrxqueues", "1", "netns", self.between)
        for end, other in (("m0", "m1"), ("m1", "m0")):
            labs.sh("nsenter", f"--net=/run/netns/{self.between}", "ethtool", "-K", end, "tx", "off", "rx", "off", "tso", "off", "gso", "off",
                    "gro", "off")
            labs.sh("ip", "-n", self.between, "link", "set", end, "up")
            tc = ["tc", "-n", self.between]
            labs.sh(*tc, "qdisc", "add", "dev", end, "clsact")
            labs.sh(*tc, "filter", "add", "dev", end, "ingress", "u32", "match", "u32", "0", "0", "action", "mirred", "egress", "redirect", "dev", other)

    def __exit__(self, *about):
        super().__exit__(*about)
        if os.path.exists(f"/run/netns/{self.between}"):
            labs._remove_namespace(self.between)


def client(near, far, accelerated, port, env, wants):
    server = far.popen([sys.executable, "-c", SERVER, port])
    far.wait_for_listener(port, server)
    pipes = {"stdin": labs.subprocess.PIPE, "stdout": labs.subprocess.PIPE, "text": True}
    clients = near.popen([sys.executable, "-c", CLIENTS, far.address, port], accel=accelerated, env=env, require=False, **pipes)

    def ask():
        clients.stdin.write("\n")
        clients.stdin.flush()
        assert clients.stdout.readline() == "done\n", "a connection failed"
        return not accelerated or wants(statistics(clients.pid))

    until(ask, "the path that can be", timeout=60)
    near.stop(clients)
    far.stop(server)


def server(near, far, accelerated, port, env, wants):
    server = near.popen([sys.executable, "-c", SERVER, port], accel=accelerated, env=env, require=False)
    near.wait_for_listener(port, server)

    def ask():
        far.run([sys.executable, "-c", CLIENT, near.address, port])
        return not accelerated or wants(server, statistics(server.pid))

    until(ask, "the path that can be", timeout=60)
    near.stop(server)


def main(accelerated):
    generic = {"ACCEL_XDP_MODE": "generic"}

    def listener_says(said, reason):
        return any(s["reason"] == reason for s in said["sockets"])

    with RedirectedLab() as lab:
        near, far = lab.hosts
        client(near, far, accelerated, 7000, {}, lambda said: said["counters"].get("rx_frames", 0) > 0 and said["counters"]["tcp_active_opens"] > 1)
        client(near, far, accelerated, 7001, generic, lambda said: said["counters"].get("sockets_kernel", 0) > 0)
        server(near, far, accelerated, 7002, {},
               lambda child, said: accelerated_sockets(child.pid, 7002) and said["counters"].get("tcp_passive_opens", 0) > 0)
        server(near, far, accelerated, 7003, generic, lambda child, said: listener_says(said, "redirected"))


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("needs root")
        sys.exit(77)
    main(sys.argv[1] == "near")
