#!/usr/bin/env python3
"""The host's packet filters hold for accelerated programs as for others: filtered.py kernel|near

Each case runs with a program of the near host on the kernel's stack (kernel), which shows what is right, and preloaded (near). There the path
is proved: a filtered socket is the kernel's for the reason `firewall`, with the rule's handle; an accepted one is not, and the kernel's own
stack carried at most a tenth of its frames."""
import contextlib
import json
import pathlib
import re
import subprocess
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))
from lab import Lab, build_dir, until  # noqa: E402

PORT = 7000
# Says its name on each connection and gives back what comes.
LISTENER = """
import socket, sys, threading
name, at, port = sys.argv[1], sys.argv[2], int(sys.argv[3])
listener = socket.create_server((at, port), backlog=64)
udp = socket.socket(type=socket.SOCK_DGRAM)
udp.bind((at, port))
print("listening", flush=True)
def echo(c):
    try:
        c.sendall(name.encode())
        while b := c.recv(65536): c.sendall(b)
    except OSError:
        pass
def datagrams():
    while True:
        b, peer = udp.recvfrom(2048)
        udp.sendto(b, peer)
def connections():
    while True: threading.Thread(target=echo, args=(listener.accept()[0],), daemon=True).start()
threading.Thread(target=datagrams, daemon=True).start()
"""
SERVER = LISTENER + "connections()\n"
# One command a line: connect PORT ADDRESS, trip SIZE, datagram PORT ADDRESS; answers a line each.
CLIENT = """
import errno, socket, sys
c = None
def serve(words):
    global c
    if words[0] == "connect":
        if c: c.close()
        c = socket.socket()
        c.settimeout(3)
        c.connect((words[2], int(words[1])))
        return c.recv(100).decode()
    if words[0] == "trip":
        b = b"x" * int(words[1])
        c.sendall(b)
        got = b""
        while len(got) < len(b): got += c.recv(65536)
        return "same" if got == b else "other bytes"
    u = socket.socket(type=socket.SOCK_DGRAM)
    u.settimeout(2)
    u.sendto(b"hello", (words[2], int(words[1])))
    return u.recvfrom(100)[0].decode()
for line in sys.stdin:
    try:
        said = serve(line.split())
    except socket.timeout:
        said = "timeout"
    except OSError as e:
        said = errno.errorcode[e.errno]
    print(said, flush=True)
"""
# Clients need all queues of their device, so one process is both where both are to be accelerated.
BOTH = LISTENER + "threading.Thread(target=connections, daemon=True).start()\n" + CLIENT


class Program:
    """A script on a host; `say` gives it a line and returns its answer."""

    def __init__(self, host, script, *words, accel=False, env=None):
        self.host = host
        self.child = host.popen([sys.executable, "-c", script, *words], accel=accel, env=env, require=False, text=True,
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE)

    def say(self, *words):
        self.child.stdin.write(" ".join(map(str, words)) + "\n")
        self.child.stdin.flush()
        return self.child.stdout.readline().strip()

    def heard(self, line):
        said = self.child.stdout.readline().strip()
        assert said == line, said
        return self

    def sockets(self):
        """As accel stat lists them."""
        out = subprocess.run([build_dir() / "bin" / "accel", "stat", str(self.child.pid), "--json"], capture_output=True, text=True).stdout
        return json.loads(out)["processes"][0]["sockets"]


def nft(host, text):
    subprocess.run(["nsenter", f"--net=/run/netns/{host.name}", "nft", "-f", "-"], input=text, text=True, check=True)


def clear(host):
    nft(host, "flush ruleset")


class Case:
    def __init__(self, lab, accel):
        self.lab, self.near, self.far, self.accel = lab, lab.near, lab.far, accel
        self.programs = []

    def program(self, host, script, *words, env=None):
        self.programs.append(Program(host, script, *words, accel=self.accel and host is self.near, env=env))
        return self.programs[-1]

    def server(self, host, name="server", at="0.0.0.0", port=PORT, env=None):
        return self.program(host, SERVER, name, at, str(port), env=env).heard("listening")

    def both(self, name="near"):
        return self.program(self.near, BOTH, name, "0.0.0.0", str(PORT)).heard("listening")

    def client(self, host, env=None):
        return self.program(host, CLIENT, env=env)

    def end(self):
        for p in self.programs:
            p.child.kill()
            p.child.wait()
        clear(self.near)

    def is_filtered(self, program, rule, **row):
        """A socket of the program with these fields is the kernel's because of the rule."""
        if not self.accel:
            return
        rows = until(lambda: [s for s in program.sockets() if s["reason"] == "firewall" and row.items() <= s.items()], "a guarded socket", 20)
        assert any(re.search(rule, s.get("rule", "")) for s in rows), rows

    def is_accelerated(self, program, **row):
        if self.accel:
            until(lambda: any(s["path"] == "xdp" and row.items() <= s.items() for s in program.sockets()), "an accelerated socket", 20)

    @contextlib.contextmanager
    def few_kernel_frames(self):
        wire, kernel = self.near.wire_packets(), self.near.kernel_packets()["tcp"]
        yield
        wire, kernel = self.near.wire_packets() - wire, self.near.kernel_packets()["tcp"] - kernel
        if self.accel:
            assert wire > 100 and kernel * 10 <= wire, (wire, kernel)


def rules(*lines, hook="input", policy="accept", kind="filter", priority=0):
    body = "\n".join(lines)
    return f"table inet guard {{ chain {hook} {{ type {kind} hook {hook} priority {priority}; policy {policy};\n{body}\n}}\n}}"


def an_input_rule_drops(c):
    """And what it does not speak of is accelerated."""
    nft(c.near, rules(f"tcp dport {PORT} counter drop", f"udp dport {PORT} counter drop"))
    guarded = c.server(c.near)
    free = c.server(c.near, "free", port=PORT + 1)
    client = c.client(c.far)
    assert client.say("connect", PORT, c.near.address) == "timeout"
    assert client.say("datagram", PORT, c.near.address) == "timeout"
    assert client.say("connect", PORT + 1, c.near.address) == "free"
    assert client.say("datagram", PORT + 1, c.near.address) == "hello"
    c.is_filtered(guarded, "inet guard/input handle [0-9]+: drops", protocol="tcp")
    c.is_filtered(guarded, "inet guard/input handle [0-9]+: drops", protocol="udp")
    c.is_accelerated(free, protocol="tcp", state="listen")
    c.is_accelerated(free, protocol="udp")


def plain_accepts_are_accelerated(c):
    nft(c.near, rules("iif lo accept", "ct state vmap { established : accept, related : accept, invalid : drop }",
                      f"tcp dport {{ 22, {PORT} }} accept", "meta l4proto icmp accept", "meta l4proto ipv6-icmp accept", policy="drop"))
    nft(c.near, rules("ct state invalid drop", hook="output"))
    near, client, peer = c.both(), c.client(c.far), c.server(c.far, "peer", port=PORT + 2)
    assert peer and client.say("connect", PORT, c.near.address) == "near"
    assert near.say("connect", PORT + 2, c.far.address) == "peer"
    with c.few_kernel_frames():
        for _ in range(60):
            assert client.say("trip", 3000) == "same" and near.say("trip", 3000) == "same"
    c.is_accelerated(near, state="established", local=f"{c.near.address}:{PORT}")
    c.is_accelerated(near, state="established", remote=f"{c.far.address}:{PORT + 2}")
    c.is_filtered(near, "guard/input: its policy drops", protocol="udp")


def a_service_address_is_translated(c):
    """As kube-proxy does on a host's network: the address is nobody's."""
    c.near.ip("route", "add", "10.96.0.0/16", "via", c.far.address)
    nft(c.near, rules(f"ip daddr 10.96.0.10 tcp dport 443 dnat ip to {c.far.address}:{PORT}", hook="output", kind="nat", priority=-100))
    peer = c.server(c.far, "endpoint")
    client = c.client(c.near)
    assert peer and client.say("connect", 443, "10.96.0.10") == "endpoint"
    assert client.say("trip", 5000) == "same"
    c.is_filtered(client, "guard/output handle [0-9]+: translates addresses")
    assert client.say("connect", PORT, c.far.address) == "endpoint"
    c.is_accelerated(client, state="established")


def a_sidecar_gets_its_connections(c):
    nft(c.near, rules(f"tcp dport {PORT} redirect to :15001", hook="output", kind="nat", priority=-100))
    sidecar = Program(c.near, SERVER, "sidecar", "0.0.0.0", "15001").heard("listening")
    c.programs.append(sidecar)
    peer, client = c.server(c.far), c.client(c.near)
    assert peer and client.say("connect", PORT, c.far.address) == "sidecar"
    c.is_filtered(client, "translates addresses")


def later_rules_hold_for_new_flows(c):
    active = {"state": "established", "remote": f"{c.far.address}:{PORT}"}
    nft(c.near, rules("ct state invalid drop"))  # connections are tracked from here on
    peer, near, client = c.server(c.far), c.both(), c.client(c.far)
    assert peer and near.say("connect", PORT, c.far.address) == "server"
    assert client.say("connect", PORT, c.near.address) == "near"
    c.is_accelerated(near, **active)
    nft(c.near, rules(f"ct state new tcp dport {PORT} reject with tcp reset", hook="output"))
    assert client.say("trip", 3000) == "same" and near.say("connect", PORT, c.far.address) == "ECONNREFUSED"
    nft(c.near, "flush chain inet guard output\n" + rules(f"ct state new tcp dport {PORT} reject with tcp reset"))
    c.is_filtered(near, "rejects", state="listen")
    assert client.say("trip", 3000) == "same"  # that one is established
    assert client.say("connect", PORT, c.near.address) == "ECONNREFUSED"
    clear(c.near)
    assert near.say("connect", PORT, c.far.address) == "server"
    c.is_accelerated(near, **active)


def later_rules_hold_for_open_connections(c):
    active = {"state": "established", "remote": f"{c.far.address}:{PORT}"}
    peer, near, client = c.server(c.far), c.both(), c.client(c.far)
    assert peer and near.say("connect", PORT, c.far.address) == "server"
    assert client.say("connect", PORT, c.near.address) == "near"
    assert near.say("trip", 3000) == "same" and client.say("trip", 3000) == "same"
    nft(c.near, rules(f"ip daddr {c.far.address} counter drop", hook="output"))
    c.is_filtered(near, "guard/output handle [0-9]+: drops", **active)
    c.is_filtered(near, "guard/output handle [0-9]+: drops", state="established", local=f"{c.near.address}:{PORT}")
    # What is sent now is retransmitted into the rule, until it goes.
    near.child.stdin.write("trip 3000\n")
    near.child.stdin.flush()
    count = lambda: int(re.search(r"counter packets (\d+)", c.near.enter("nft", "list", "ruleset"))[1])  # noqa: E731
    until(lambda: count() >= 2, "the rule sees packets")
    clear(c.near)
    assert near.child.stdout.readline().strip() == "same"
    assert client.say("trip", 3000) == "same"


def the_operator_may_ignore_them(c):
    nft(c.near, rules(f"tcp dport {PORT} counter drop"))
    server = c.server(c.near, env={"ACCEL_FIREWALL": "ignore"})
    client = c.client(c.far)
    assert client.say("connect", PORT, c.near.address) == ("server" if c.accel else "timeout")
    c.is_accelerated(server, state="listen")


CASES = [an_input_rule_drops, plain_accepts_are_accelerated, a_service_address_is_translated, a_sidecar_gets_its_connections,
         later_rules_hold_for_new_flows, later_rules_hold_for_open_connections, the_operator_may_ignore_them]


def main(mode, *only):
    with Lab() as lab:
        for case in CASES:
            if only and case.__name__ not in only:
                continue
            c = Case(lab, mode == "near")
            try:
                case(c)
            finally:
                c.end()
            print(f"{mode}: {case.__name__}: ok", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
