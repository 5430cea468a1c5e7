#!/usr/bin/env python3
"""Fragments and IPv6 extension headers of an honest peer, and of the kernel's own traffic: fragments.py kernel|near

A connection outlives what a path does to its segments: the bytes arrive, nobody resets it. Datagrams arrive as well, and fragments that are
not an accelerated socket's reach the kernel."""
import itertools
import os
import pathlib
import subprocess
import sys

here = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(here.parents[1] / "lab"))
sys.path.insert(0, str(here.parents[1] / "apps"))
from lab import Lab  # noqa: E402
from programs import statistics, until  # noqa: E402
from raw_peer import (ACK, DESTINATION_OPTIONS, FRAGMENT, HOP_BY_HOP, PSH, ROUTING, TCP, UDP, Connection, Wire, fragments,  # noqa: E402
                      ip, ipv6, udp)

SERVER = """
import os, socket, sys, threading
def echo(c):
    while b := c.recv(65536): c.sendall(b)
def accept(l):
    while True: threading.Thread(target=echo, args=(l.accept()[0],), daemon=True).start()
def gather(s):
    while True: os.write(1, b"%d\\n" % len(s.recv(65536)))
for family, address in zip((socket.AF_INET, socket.AF_INET6), sys.argv[1:]):
    threading.Thread(target=accept, args=[socket.create_server((address, 7000), family=family)], daemon=True).start()
    s = socket.socket(family, socket.SOCK_DGRAM)
    s.bind((address, 7001))
    threading.Thread(target=gather, args=[s], daemon=True).start()
sys.stdin.read()
"""
ADDRESSES = "10.77.0.50", "fd77::50"
_text = itertools.count()


class Peer(Connection):
    identity = itertools.count(1)

    def cut(self, *at):
        """A segment's packets, cut there, and its text; the segment is sent when they are."""
        text = (f"{next(_text):08}" * 40).encode()
        segment = self.segment(PSH | ACK, text)
        self.seq += len(text)
        edges = [0, *at, len(segment)]
        return list(fragments(self.source, self.destination, TCP, segment, zip(edges, edges[1:]), next(self.identity))), text

    def echoed(self, text, what, timeout=20):
        got = self.receive(len(text), timeout)
        assert got == text, (what, len(got), len(text))

    def echo(self, packets, text, what):
        for packet in packets:
            self.wire.send(packet)
        self.echoed(text, what)

    def extended(self, headers):
        """One segment behind extension headers: (number, its bytes without the next one's number)."""
        text = f"{next(_text):08}".encode()
        payload = self.segment(PSH | ACK, text)
        self.seq += len(text)
        following = TCP
        for number, rest in reversed(headers):
            payload = bytes([following]) + rest + payload
            following = number
        self.wire.send(ipv6(self.source, self.destination, following, payload))
        return text


def in_order(peer):
    # RFC 8200 section 4.5: of IPv6 the first fragment has the whole TCP header.
    for at in ((64,), (24, 200, 208), *([] if ":" in peer.source else [(16, 104), (8, 16, 104)])):
        packets, text = peer.cut(*at)
        peer.echo(packets, text, at)
    packets, text = peer.cut(64, 128)
    peer.echo([packets[0], packets[0], *packets[1:], packets[2]], text, "duplicates")
    packets, text = peer.cut(64, 128)
    peer.echo([packets[0], packets[2], packets[1]], text, "the last before the middle")


def behind_headers(peer):
    padding, routing, atomic = b"\0\1\4\0\0\0\0", b"\0\0\0\0\0\0\0", b"\0\0\0\0\0\0\7"
    for headers in ([(HOP_BY_HOP, padding)], [(DESTINATION_OPTIONS, padding)], [(ROUTING, routing)], [(FRAGMENT, atomic)],
                    [(HOP_BY_HOP, padding), (DESTINATION_OPTIONS, padding), (FRAGMENT, atomic)],
                    [(DESTINATION_OPTIONS, b"\2\1\4\0\0\0\0" + 4 * b"\5\2\0\0")]):
        peer.echoed(peer.extended(headers), headers)


def last_first(peer):
    """The first fragment comes behind the others: what is lost of it a sender sends again, and nobody resets."""
    before = peer.seq
    packets, text = peer.cut(64)
    for packet in reversed(packets):
        peer.wire.send(packet)
    segment = None
    for _ in range(40):  # as a sender's timer would
        if peer.receive(len(text), 0.5) == text:
            return
        segment, peer.seq = peer.seq, before
        for packet in reversed(list(fragments(peer.source, peer.destination, TCP, peer.segment(PSH | ACK, text), ((0, 64), (64, 20 + len(text))),
                                              next(peer.identity)))):
            peer.wire.send(packet)
        peer.seq = segment
    raise AssertionError("it never arrived")


def datagrams(wire, near, server):
    for source, to in zip(ADDRESSES, (near.address, near.address6)):
        for size in (2000, 9001, 64):
            payload = udp(source, to, (4000, 7001), bytes(size))
            edges = [*range(0, len(payload), 1400), len(payload)]
            packets = list(fragments(source, to, UDP, payload, zip(edges, edges[1:]), next(Peer.identity)))
            for packet in packets if size != 9001 else reversed(packets):
                wire.send(packet)
            assert server.stdout.readline() == f"{size}\n", size
        wire.send(ip(source, to, UDP, udp(source, to, (4000, 7001), bytes(5))))
        assert server.stdout.readline() == "5\n"


def main(accelerated):
    with Lab() as lab:
        near, far = lab.hosts
        wire = Wire(far, near)
        for address in ADDRESSES:
            near.ip("neigh", "add", address, "lladdr", wire.mac.hex(":"), "dev", near.device, "nud", "permanent")
        server = near.popen([sys.executable, "-c", SERVER, near.address, near.address6], accel=accelerated,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for kind in "tu":
            near.wait_for_listener(7000 + (kind == "u"), server, kind=kind)
        if accelerated:
            until(lambda: sum(s["path"] == "xdp" for s in statistics(server.pid).get("sockets", [])) == 4, "four accelerated sockets")
        peers = [Peer(wire, a, to, 7000, 30000) for a, to in zip(ADDRESSES, (near.address, near.address6))]
        for peer in peers:
            peer.open()
            in_order(peer)
        behind_headers(peers[1])
        datagrams(wire, near, server)
        if accelerated:
            counters = statistics(server.pid)["counters"]
            assert counters["ip_reassembled"] >= 10 and counters["handed_back"] == 0, counters
            assert sum(s["path"] == "xdp" for s in statistics(server.pid)["sockets"]) == 6
        # The kernel's own fragments pass.
        for address in (near.address, near.address6):
            far.run(["ping", "-c", "3", "-i", "0.1", "-s", "6000", address])
        for peer in peers:
            last_first(peer)
            in_order(peer)


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("needs root")
        sys.exit(77)
    main(sys.argv[1] == "near")
