"""What moves the bytes over the impaired wire: plain Python sockets that know nothing of libaccel.

    flows.py serve ADDRESS PORT [ALGORITHM]
                                           sends to all who ask, in one thread; one line of JSON for each bulk flow that has ended.
                                           ALGORITHM: of congestion control, "cubic"; or "default", the host's
    flows.py bulk ADDRESS PORT SECONDS [SKIP [AT]]
                                           receives for so long; prints {"bytes", "seconds", "options"} of what came after SKIP seconds. AT: when
                                           it connects, of the host's monotonic clock
    flows.py short ADDRESS PORT N BYTES    N connections, one after the other, that get so many bytes each; prints {"ms": [...]}
"""
import json
import selectors
import socket
import struct
import sys
import time

REQUEST = struct.Struct("!cq")
BLOCK = bytes(range(256)) * 256
SAMPLE_EVERY = 0.02


def tcp_info(connection):
    raw = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 256)
    words = struct.unpack_from("24I", raw, 8)
    return {"cwnd": words[18], "ssthresh": words[17], "rtt_us": words[15], "retransmissions": words[23],
            "segments": struct.unpack_from("I", raw, 156)[0], "options": raw[5], "delivered_ce": struct.unpack_from("I", raw, 196)[0],
            "pacing_rate": struct.unpack_from("Q", raw, 104)[0], "delivery_rate": struct.unpack_from("Q", raw, 160)[0]}


class Flow:
    """A connection of the server's: the request, then what it asks for."""

    def __init__(self, connection):
        self.connection, self.left, self.bulk = connection, 0, False
        self.began, self.sampled, self.last = time.monotonic(), 0.0, {}
        self.algorithm = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0").decode()

    def asked(self):
        """Reads the request, or the end. False: the peer has gone."""
        request = self.connection.recv(REQUEST.size)
        if len(request) != REQUEST.size:
            return False
        kind, n = REQUEST.unpack(request)
        self.bulk, self.left = kind == b"B", n
        return True

    def send(self):
        now = time.monotonic()
        if self.bulk and now - self.sampled > SAMPLE_EVERY:
            self.sampled, self.last = now, tcp_info(self.connection)
        n = len(BLOCK) if self.bulk else min(self.left, len(BLOCK))
        sent = self.connection.send(BLOCK[:n])
        self.left -= 0 if self.bulk else sent

    def ended(self):
        if self.bulk:
            print(json.dumps({"algorithm": self.algorithm, "seconds": time.monotonic() - self.began, **self.last}), flush=True)


def serve(address, port, algorithm="cubic"):
    ready = selectors.EpollSelector()
    listener = socket.create_server((address, port), backlog=128)
    if algorithm != "default":  # the host's own
        listener.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, algorithm.encode())
    listener.setblocking(False)
    ready.register(listener, selectors.EVENT_READ)
    while True:
        for key, events in ready.select():
            if key.data is None:
                connection, _ = listener.accept()
                connection.setblocking(False)
                ready.register(connection, selectors.EVENT_READ, Flow(connection))
                continue
            flow = key.data
            try:
                alive = flow.asked() if events & selectors.EVENT_READ else True
                if alive and (flow.bulk or flow.left > 0):
                    flow.send()
            except BlockingIOError:
                alive = True
            except OSError:
                alive = False
            if not alive:
                ready.unregister(flow.connection)
                flow.ended()
                flow.connection.close()
            else:
                wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if flow.bulk or flow.left > 0 else 0)
                ready.modify(flow.connection, wanted, flow)


def bulk(address, port, seconds, skip=0.0, at=0.0):
    time.sleep(max(0.0, at - time.monotonic()))
    with socket.create_connection((address, port)) as connection:
        opened = began = time.monotonic()
        connection.sendall(REQUEST.pack(b"B", 0))
        buffer, received = bytearray(1 << 18), 0
        while (left := opened + skip + seconds - (now := time.monotonic())) > 0:
            if began == opened and now >= opened + skip:
                began, received = now, 0
            connection.settimeout(left)
            try:
                received += connection.recv_into(buffer)
            except TimeoutError:
                break
        took = time.monotonic() - began
        options = tcp_info(connection)["options"]
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    print(json.dumps({"bytes": received, "seconds": took, "options": options}), flush=True)


def short(address, port, count, size):
    times = []
    socket.create_connection((address, port)).close()  # what comes first also opens what a process needs once
    for _ in range(count):
        began = time.monotonic()
        with socket.create_connection((address, port)) as connection:
            connection.sendall(REQUEST.pack(b"R", size))
            left = size
            while left > 0:
                n = len(connection.recv(left))
                if n == 0:
                    raise EOFError("the server has ended the connection")
                left -= n
        times.append(1000 * (time.monotonic() - began))
    print(json.dumps({"ms": times}), flush=True)


if __name__ == "__main__":
    role, where, at, *rest = sys.argv[1:]
    {"serve": serve, "bulk": bulk, "short": short}[role](where, int(at), *map({"serve": str, "bulk": float, "short": int}[role], rest))
