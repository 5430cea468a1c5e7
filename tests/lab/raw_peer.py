"""A host on the lab's wire that says what it likes: frames made byte by byte, sent and received by a packet socket in far's
namespace. It plays addresses that far does not have, so far's kernel keeps out of it.

    wire = Wire(lab.far)
    wire.send(ethernet(near_mac, wire.mac, ipv4("10.77.0.50", near, 17, udp(...))))
"""
import ctypes
import os
import re
import select
import socket
import struct
import threading
import time

FIN, SYN, RST, PSH, ACK = 1, 2, 4, 8, 16
TCP, UDP, ICMP = 6, 17, 1
HOP_BY_HOP, ROUTING, FRAGMENT, DESTINATION_OPTIONS = 0, 43, 44, 60
_CLONE_NEWNET = 0x40000000


def _sum(data):
    total = sum(struct.unpack(f"!{(len(data) + 1) // 2}H", data + b"\0" * (len(data) % 2)))
    while total >> 16:
        total = (total & 0xffff) + (total >> 16)
    return ~total & 0xffff


def packed(address):
    return socket.inet_pton(socket.AF_INET6 if ":" in address else socket.AF_INET, address)


def ethernet(to, source, packet):
    kind = b"\x08\x00" if packet[0] >> 4 == 4 else b"\x86\xdd"
    return to + source + kind + packet


def ipv4(source, destination, protocol, payload, options=b"", identity=0, fragment=0):
    """`fragment`: flags and offset as they are in the header."""
    length = 20 + len(options)
    head = struct.pack("!BBHHHBBH", 0x40 | length // 4, 0, length + len(payload), identity, fragment, 64, protocol, 0)
    head += packed(source) + packed(destination) + options
    return head[:10] + struct.pack("!H", _sum(head)) + head[12:] + payload


def ipv6(source, destination, following, payload):
    return struct.pack("!IHBB", 6 << 28, len(payload), following, 64) + packed(source) + packed(destination) + payload


def ip(source, destination, protocol, payload):
    return (ipv6 if ":" in source or ":" in destination else ipv4)(source, destination, protocol, payload)


def _with_sum(source, destination, protocol, segment, at):
    pseudo = packed(source) + packed(destination) + struct.pack("!HH", protocol, len(segment))
    return segment[:at] + struct.pack("!H", _sum(pseudo + segment)) + segment[at + 2:]


def tcp(source, destination, ports, seq, ack, flags, payload=b""):
    segment = struct.pack("!HHIIBBHHH", *ports, seq & 0xffffffff, ack & 0xffffffff, 5 << 4, flags, 65535, 0, 0) + payload
    return _with_sum(source, destination, TCP, segment, 16)


def udp(source, destination, ports, payload):
    return _with_sum(source, destination, UDP, struct.pack("!HHHH", *ports, 8 + len(payload), 0) + payload, 6)


def fragments(source, destination, protocol, payload, cuts, identity):
    """IP packets, one for each cut (offset, end); the last ends where the payload does."""
    for offset, end in cuts:
        more = end < len(payload)
        if ":" in source:
            head = struct.pack("!BBHI", protocol, 0, offset | more, identity)
            yield ipv6(source, destination, FRAGMENT, head + payload[offset:end])
        else:
            yield ipv4(source, destination, protocol, payload[offset:end], identity=identity, fragment=offset // 8 | more << 13)


class Segment:
    """A TCP segment that was received."""

    def __init__(self, frame):
        six = frame[12:14] == b"\x86\xdd"
        self.to_mac, self.from_mac = frame[:6], frame[6:12]
        self.source, self.destination = ((frame[22:38], frame[38:54]) if six else (frame[26:30], frame[30:34]))
        size = len(self.source)
        self.source = socket.inet_ntop(socket.AF_INET6 if size == 16 else socket.AF_INET, self.source)
        self.destination = socket.inet_ntop(socket.AF_INET6 if size == 16 else socket.AF_INET, self.destination)
        at = 54 if six else 14 + (frame[14] & 15) * 4
        end = 54 + struct.unpack_from("!H", frame, 18)[0] if six else 14 + struct.unpack_from("!H", frame, 16)[0]
        *self.ports, self.seq, self.ack, offset, self.flags = struct.unpack_from("!HHIIBB", frame, at)
        self.payload = frame[at + (offset >> 4) * 4:end]


def segment_of(frame):
    protocol = frame[23] if frame[12:14] == b"\x08\x00" else frame[20] if frame[12:14] == b"\x86\xdd" else None
    return Segment(frame) if protocol == TCP else None


def _socket_in(namespace):
    """A packet socket of another network namespace."""
    made = []

    def make():
        libc = ctypes.CDLL(None, use_errno=True)
        with open(f"/run/netns/{namespace}", "rb") as there:
            assert libc.setns(there.fileno(), _CLONE_NEWNET) == 0, os.strerror(ctypes.get_errno())
        made.append(socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3)))  # ETH_P_ALL

    thread = threading.Thread(target=make)  # whose namespace ends with it
    thread.start()
    thread.join()
    return made[0]


class Wire:
    def __init__(self, host, peer):
        """A packet socket on host's device; `peer`: the host under attack."""
        self.socket = _socket_in(host.name)
        self.socket.bind((host.device, 0))
        self.mac = self.mac_of(host)
        self.peer_mac = self.mac_of(peer)

    @staticmethod
    def mac_of(host):
        return bytes.fromhex(re.search(r"link/ether ([0-9a-f:]+)", host.ip("link", "show", "dev", host.device))[1].replace(":", ""))

    def send(self, packet, mac=None):
        self.socket.send(ethernet(self.peer_mac, mac or self.mac, packet))

    def send_frame(self, frame):
        self.socket.send(frame)

    def frames(self, timeout):
        """Those that the peer sends, as long as they are asked for within the time."""
        end = time.monotonic() + timeout
        while (left := end - time.monotonic()) > 0 and select.select([self.socket], [], [], left)[0]:
            frame, (*_, kind, _, _) = self.socket.recvfrom(65536)
            if kind != socket.PACKET_OUTGOING:
                yield frame

    def wait(self, condition, what, timeout=20):
        """The first frame that the condition gives something for, and that."""
        for frame in self.frames(timeout):
            if found := condition(frame):
                return found
        raise AssertionError(f"within {timeout} s no {what}")

    def answer_arp(self, request, mac):
        """`request`: a frame that asks who has an address."""
        self.send_frame(request[6:12] + mac + b"\x08\x06" + request[14:20] + b"\0\2" + mac + request[38:42] + request[22:32])


class Connection:
    """The peer's end of a TCP connection, by hand."""

    def __init__(self, wire, source, destination, port, source_port):
        self.wire, self.source, self.destination = wire, source, destination
        self.ports, self.seq, self.ack = (source_port, port), 1000, 0

    def segment(self, flags, payload=b""):
        return tcp(self.source, self.destination, self.ports, self.seq, self.ack, flags, payload)

    def send(self, flags, payload=b""):
        self.wire.send(ip(self.source, self.destination, TCP, self.segment(flags, payload)))

    def mine(self, frame):
        segment = segment_of(frame)
        return segment if segment and tuple(segment.ports) == self.ports[::-1] and segment.destination == self.source else None

    def open(self):
        self.send(SYN)
        answer = self.wire.wait(self.mine, "SYN-ACK")
        assert answer.flags & (SYN | ACK | RST) == SYN | ACK, answer.flags
        self.seq, self.ack = self.seq + 1, answer.seq + 1
        self.send(ACK)

    def receive(self, size, timeout=20):
        """So many bytes in order, acknowledged; a reset is an error. Fewer when the time is over."""
        data = b""
        for frame in self.wire.frames(timeout):
            segment = self.mine(frame)
            if segment is None:
                continue
            assert not segment.flags & RST, "reset"
            if segment.payload and segment.seq == self.ack:
                data += segment.payload
                self.ack = self.ack + len(segment.payload) & 0xffffffff
                self.send(ACK)
            if len(data) >= size:
                break
        return data
