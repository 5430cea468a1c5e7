#!/usr/bin/env python3
"""Sources that cannot come from the wire, and MAC addresses that are somebody else's: spoofed.py kernel|near

A host on the wire plays others. Which of them a TCP server answers, and whose datagrams a UDP server gets, is the same on the kernel and
accelerated, under each rp_filter; and a frame teaches nobody's MAC address: answers, and what is opened later, wait for ARP."""
import os
import pathlib
import subprocess
import sys

here = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(here.parents[1] / "lab"))
sys.path.insert(0, str(here.parents[1] / "apps"))
from lab import Lab  # noqa: E402
from programs import statistics, until  # noqa: E402
from raw_peer import ACK, RST, SYN, UDP, Connection, Wire, ip, ipv4, packed, segment_of, udp  # noqa: E402

SERVER = """
import os, socket, sys, threading
address, address6 = sys.argv[1:]
listeners = [socket.create_server((a, 7000), family=f, backlog=100) for a, f in ((address, socket.AF_INET), (address6, socket.AF_INET6))]
def accept(l):
    while True: l.accept()
for l in listeners: threading.Thread(target=accept, args=[l], daemon=True).start()
def gather(family, address):
    s = socket.socket(family, socket.SOCK_DGRAM)
    s.bind((address, 7001))
    while True: os.write(1, s.recv(2000) + b"\\n")  # whole lines of two threads
threading.Thread(target=gather, args=(socket.AF_INET6, address6), daemon=True).start()
threading.Thread(target=gather, args=(socket.AF_INET, address), daemon=True).start()
for line in sys.stdin:
    c = socket.socket()
    c.settimeout(10)
    try: c.connect((line.strip(), 80))
    except OSError: pass
"""
HONEST, OTHER = "10.77.0.50", "10.77.0.60"
LSRR = bytes((131, 7, 4, 10, 77, 0, 50, 1))


def expected(near, accelerated):
    """For each source: whether it is answered by the wire and whether its datagram arrives, without rp_filter, strict, loose."""
    yes, no, heard = (True, True), (False, False), (False, True)
    dropped = no if accelerated else heard  # addresses that nobody has, and the kernel lets UDP have nevertheless
    return {
        HONEST: (yes, yes, yes),
        "127.0.0.1": (no, no, no),
        near.address: (no, no, no),
        "0.0.0.5": (dropped, no, no),
        "224.0.0.5": (no, no, no),
        "198.51.100.7": (heard, no, no),  # no route
        "240.0.0.1": (heard, no, no),
        "192.168.50.7": (heard, no, heard),  # by another device
        "fd77::50": (yes, yes, yes),
        "::1": (no, no, no),
        "::ffff:10.77.0.50": (dropped, dropped, dropped),
        "2001:db8::7": (heard, heard, heard),
    }


class Attack:
    def __init__(self, wire, near, server):
        self.wire, self.near, self.server, self.port = wire, near, server, 20000

    def syn(self, source, options=b""):
        self.port += 1
        to = self.near.address6 if ":" in source else self.near.address
        connection = Connection(self.wire, source, to, 7000, self.port)
        if options:
            self.wire.send(ipv4(source, to, 6, connection.segment(SYN), options))
        else:
            connection.send(SYN)
        return connection

    def verdicts(self, sources, options=b""):
        """(answered, heard) for each, by one exchange: what an honest host sends behind them is answered behind them."""
        words, syns = {}, {}
        for source in sources:
            syns[source] = self.syn(source, options)
            words[source] = f"{source} {self.port}"
            to = self.near.address6 if ":" in source else self.near.address
            datagram = udp(source, to, (4000, 7001), words[source].encode())
            self.wire.send(ipv4(source, to, UDP, datagram, options) if options else ip(source, to, UDP, datagram))
        last = [self.syn(HONEST), self.syn("fd77::50")]
        answered = set()
        while last:
            segment = self.wire.wait(segment_of, "answer to an honest host")
            last = [c for c in last if segment.ports != list(c.ports[::-1])]
            if segment.flags & (SYN | ACK) == SYN | ACK:
                answered |= {s for s, c in syns.items() if segment.ports == list(c.ports[::-1])}
        for source in (HONEST, "fd77::50"):
            to = self.near.address6 if ":" in source else self.near.address
            self.wire.send(ip(source, to, UDP, udp(source, to, (4000, 7001), f"end {self.port}".encode())))
        heard, ends = set(), 0
        while ends < 2:
            line = self.server.stdout.readline().strip()
            ends += line == f"end {self.port}"
            heard.add(line)
        for c in syns.values():  # embryos are not to fill the backlog
            c.seq += 1
            c.send(RST)
        return {s: (s in answered, words[s] in heard) for s in sources}


def sources(attack, near, accelerated):
    wanted = expected(near, accelerated)
    for column, rp_filter in enumerate((0, 1, 2)):
        near.enter("sysctl", "-qw", f"net.ipv4.conf.{near.device}.rp_filter={rp_filter}")
        want = {source: row[column] for source, row in wanted.items()}
        # A library hears of the setting a moment later.
        until(lambda: attack.verdicts(["192.168.50.7", "198.51.100.7"]) == {s: want[s] for s in ("192.168.50.7", "198.51.100.7")},
              f"rp_filter {rp_filter}: {attack.verdicts(['192.168.50.7', '198.51.100.7'])}", 30)
        got = attack.verdicts(wanted)
        assert got == want, (rp_filter, {s: (got[s], want[s]) for s in want if got[s] != want[s]})
    near.enter("sysctl", "-qw", f"net.ipv4.conf.{near.device}.rp_filter=0")
    assert attack.verdicts([HONEST], LSRR) == {HONEST: (False, False)}


def neighbours(attack, near):
    """A SYN with a false MAC address: the answer, and a later connect(), go where ARP says."""
    false, true = bytes.fromhex("02deadbeef99"), bytes.fromhex("020000000060")
    connection = Connection(attack.wire, OTHER, near.address, 7000, 30000)
    attack.wire.send(ip(OTHER, near.address, 6, connection.segment(SYN)), false)

    def wanted(frame):
        segment = segment_of(frame)
        if segment and segment.destination == OTHER:
            assert segment.to_mac != false, "to the false address"
            return segment
        if frame[12:14] == b"\x08\x06" and frame[20:22] == b"\0\1" and frame[38:42] == packed(OTHER):
            attack.wire.answer_arp(frame, true)
        return None

    answer = attack.wire.wait(wanted, "SYN-ACK to the true address")
    assert answer.to_mac == true and answer.flags & (SYN | ACK) == SYN | ACK
    attack.server.stdin.write(OTHER + "\n")
    attack.server.stdin.flush()
    opened = attack.wire.wait(lambda f: (s := wanted(f)) and s.ports[1] == 80 and s, "SYN of connect()")
    assert opened.to_mac == true and opened.flags & (SYN | ACK) == SYN


def main(accelerated):
    with Lab() as lab:
        near, far = lab.hosts
        near.ip("link", "add", "other", "type", "veth", "peer", "name", "beyond")
        near.ip("addr", "add", "192.168.50.1/24", "dev", "other")
        for device in ("other", "beyond"):
            near.ip("link", "set", device, "up")
        near.enter("sysctl", "-qw", *(f"net.ipv4.conf.{d}.rp_filter=0" for d in ("all", near.device, "other")))
        wire = Wire(far, near)
        for address in (HONEST, "fd77::50"):
            near.ip("neigh", "add", address, "lladdr", wire.mac.hex(":"), "dev", near.device, "nud", "permanent")
        server = near.popen([sys.executable, "-c", SERVER, near.address, near.address6], accel=accelerated,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for kind in "tu":
            near.wait_for_listener(7000 + (kind == "u"), server, kind=kind)
        if accelerated:
            until(lambda: sum(s["path"] == "xdp" for s in statistics(server.pid).get("sockets", [])) == 4, "four accelerated sockets")
        attack = Attack(wire, near, server)
        sources(attack, near, accelerated)
        neighbours(attack, near)
        if accelerated:
            counters = statistics(server.pid)["counters"]
            assert all(counters[c] > 0 for c in ("drop_martian", "drop_reverse_path", "drop_source_route", "drop_no_way_back")), counters


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("needs root")
        sys.exit(77)
    main(sys.argv[1] == "near")
