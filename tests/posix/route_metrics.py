#!/usr/bin/env python3
"""What a route asks of TCP beside its MTU: route_metrics.py kernel|near

Connections that near has opened and accepted heed initcwnd, rto_min, advmss, hoplimit and ECN of their route as the kernel's. A route with a metric that the
kernel alone heeds has its connections there (reason: route_unusual). What a changed route asks holds for open connections as well."""
import json
import os
import pathlib
import subprocess
import sys

here = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(here.parents[1] / "apps"))
from programs import Lab, statistics, until  # noqa: E402

BEYOND = "10.8.0.1"  # far's address behind the route
# For each line "connect" opens a connection from near and one to it; tells of both ends. Frames of near's are looked at beside that.
FAR = """
import json, socket, struct, sys, threading
near, beyond, device = sys.argv[1:]
wire = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
wire.bind((device, 0))
def echo(c):
    while b := c.recv(65536): c.sendall(b)
def hops(port):  # of the next SYN of near's to or from that port
    while True:
        f = wire.recv(2048)
        if f[23] == 6 and f[47] & 2 and f[26:30] == socket.inet_aton(near) and port in struct.unpack("!HH", f[34:38]): return f[22]
listener = socket.create_server((beyond, 7000))
print("ready", flush=True)
for line in sys.stdin:
    c = listener.accept()[0] if line == "accept\\n" else socket.create_connection((near, 7001), source_address=(beyond, 0))
    found = hops(7000 if line == "accept\\n" else 7001)
    mss = c.getsockopt(socket.IPPROTO_TCP, 11, 104)[16:20]  # tcpi_snd_mss
    print(json.dumps({"hops": found, "mss": struct.unpack("I", mss)[0]}), flush=True)
    threading.Thread(target=echo, args=(c,), daemon=True).start()
"""
NEAR = """
import json, socket, struct, sys
near, beyond = sys.argv[1:]
listener = socket.create_server((near, 7001))
print("listens", flush=True)
connections = []
for line in sys.stdin:
    if line == "connect\\n": connections.append(socket.create_connection((beyond, 7000)))
    if line == "accept\\n": connections.append(listener.accept()[0])
    if line == "echo\\n":
        for c in connections:
            c.sendall(b"x")
            assert c.recv(1) == b"x"
    if line == "close\\n":
        for c in connections: c.close()
        connections = []
    told = []
    for c in connections:
        i = c.getsockopt(socket.IPPROTO_TCP, 11, 104)
        numbers = struct.unpack("24I", i[8:])
        told.append({"fd": c.fileno(), "ecn": bool(i[5] & 8), "rto": numbers[0], "cwnd": numbers[18], "advmss": numbers[19],
                     "congestion": c.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\\0").decode()})
    print(json.dumps(told), flush=True)
"""
ACCELERATED = ("xdp", "accelerated")


class Ends:
    def __init__(self, lab, accelerated):
        self.lab, self.accelerated = lab, accelerated
        near, far = lab.hosts
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        self.far = far.popen([sys.executable, "-c", FAR, near.address, BEYOND, far.device], **pipes)
        self.near = near.popen([sys.executable, "-c", NEAR, near.address, BEYOND], accel=accelerated, require=False, **pipes)
        assert self.far.stdout.readline() == "ready\n" and self.near.stdout.readline() == "listens\n"

    @staticmethod
    def tell(child, *lines):
        for line in lines:
            print(line, file=child.stdin, flush=True)
        return [json.loads(child.stdout.readline()) for _ in lines]

    def open(self, *metrics):
        """What near and far see of a connection that near opens, and of one that it accepts, by a route with these metrics."""
        self.tell(self.near, "close")
        self.lab.near.ip("route", "replace", BEYOND, "via", self.lab.far.address, *metrics)
        seen = []
        for near, far in (("connect", "accept"), ("accept", "connect")):
            print(far, file=self.far.stdin, flush=True)
            told, = self.tell(self.near, near)
            seen.append({**told[-1], **json.loads(self.far.stdout.readline())})
        return seen

    def paths(self, seen):
        ours = {s["fd"]: (s["path"], s["reason"]) for s in statistics(self.near.pid)["sockets"]}
        return [ours[s["fd"]] for s in seen]

    def until_seen(self, metrics, right, *paths):
        """The process hears of a new route a moment later: connections are opened until both are right, by these paths."""
        def look():
            seen = self.open(*metrics)
            on_path = not self.accelerated or self.paths(seen) == list(paths or [ACCELERATED] * 2)
            return on_path and all(map(right, seen))
        until(look, f"connections by a route with {metrics}", 30)

    def stop(self):
        self.near.stdin.close()
        assert self.near.wait(20) == 0
        self.lab.far.stop(self.far)


def facts(seen):
    return tuple(seen[name] for name in ("cwnd", "advmss", "mss", "hops", "ecn"))


def prepare(lab):
    near, far = lab.hosts
    far.ip("addr", "add", f"{BEYOND}/32", "dev", "lo")
    near.enter("sysctl", "-qw", "net.ipv4.tcp_ecn=0", "net.ipv4.tcp_no_metrics_save=1")
    far.enter("sysctl", "-qw", "net.ipv4.tcp_ecn=1", "net.ipv4.tcp_no_metrics_save=1")
    if os.path.exists("/proc/sys/net/ipv4/tcp_no_ssthresh_metrics_save"):
        near.enter("sysctl", "-qw", "net.ipv4.tcp_no_ssthresh_metrics_save=1")


def main(accelerated):
    with Lab(proved=False) as lab:
        prepare(lab)
        ends = Ends(lab, accelerated)
        asks = ("initcwnd", "23", "advmss", "900", "hoplimit", "33", "features", "ecn", "initrwnd", "80")
        ends.until_seen((), lambda s: facts(s) == (10, 1448, 1448, 64, False) and s["rto"] >= 200_000)
        ends.until_seen(asks, lambda s: facts(s) == (23, 888, 888, 33, True))
        # The shortest timeout shows where the round trip of the handshake was no long one.
        ends.until_seen(("rto_min", "20ms"), lambda s: s["rto"] < 200_000)
        ends.until_seen((), lambda s: s["rto"] >= 200_000)
        lab.near.ip("route", "replace", BEYOND, "via", lab.far.address, "rto_min", "20ms")
        until(lambda: all(s["rto"] < 200_000 for s in ends.tell(ends.near, "echo")[0]), "open connections to follow the route")
        ends.until_seen(("congctl", "reno"), lambda s: s["congestion"] == "reno", ("kernel", "route_unusual"), ("kernel", "accepted_by_kernel"))
        ends.until_seen((), lambda s: s["congestion"] != "reno")
        ends.stop()


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("needs root")
        sys.exit(77)
    main(sys.argv[1] == "near")
