#!/usr/bin/env python3
"""TCP Fast Open of both ends, on each side by the kernel and by libaccel: fast_open.py kernel|near|far|both

The first connection fetches a cookie, the second has its text in the SYN: TCP_INFO of both ends says so. A cookie that an accelerated listener
gave is good for one of the kernel's, since the host's key makes it. A connection whose SYN with text is not answered, one that waits for its
first write, and one of a listener whose last ACK is missing go on in the kernel without a byte lost.
"""
import os
import pathlib
import subprocess
import sys

here = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(here.parents[1] / "apps"))
from programs import Lab, statistics, until  # noqa: E402

PORT, OTHER_PORT = 7000, 7001
SYN_DATA = 0x20
SYN_SENT, SYN_RECV = 2, 3
PROGRAM = """
import socket, struct, sys
TCP_FASTOPEN, TCP_FASTOPEN_CONNECT, MSG_FASTOPEN = 23, 30, 0x20000000
listener = c = None
def info(s):
    state, ca, retransmits, probes, backoff, options = struct.unpack("6B", s.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 6))
    return state, options
for line in sys.stdin:
    what, *words = line.split()
    if what == "listen":
        listener = socket.socket()
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setsockopt(socket.IPPROTO_TCP, TCP_FASTOPEN, 16)
        listener.bind(("0.0.0.0", int(words[0])))
        listener.listen()
    elif what == "accept": c = listener.accept()[0]
    elif what == "send": c.sendall(words[0].encode())
    elif what == "receive": print(c.recv(int(words[0]), socket.MSG_WAITALL).decode())
    elif what == "message":
        c = socket.socket()
        c.sendto(words[2].encode(), MSG_FASTOPEN, (words[0], int(words[1])))
    elif what == "begin":
        c = socket.socket()
        print(c.sendto(words[2].encode(), MSG_FASTOPEN | socket.MSG_DONTWAIT, (words[0], int(words[1]))))
    elif what == "connect":
        c = socket.socket()
        c.setsockopt(socket.IPPROTO_TCP, TCP_FASTOPEN_CONNECT, 1)
        c.connect((words[0], int(words[1])))
    elif what == "leave": c.setsockopt(socket.SOL_SOCKET, 29, 1)
    elif what == "info": print(*info(c))
    elif what == "close": c.close()
    print("done", flush=True)
"""


class Program:
    def __init__(self, host, accelerated):
        self.accelerated = accelerated
        self.child = host.popen([sys.executable, "-c", PROGRAM], accel=accelerated, require=False, stdin=subprocess.PIPE,
                                stdout=subprocess.PIPE, text=True)

    def begin(self, *words):
        print(*words, file=self.child.stdin, flush=True)

    def end(self):
        said = []
        while (line := self.child.stdout.readline().strip()) != "done":
            assert line or self.child.poll() is None, "the program has ended"
            said.append(line)
        return said[0] if said else ""

    def __call__(self, *words):
        self.begin(*words)
        return self.end()

    def info(self):
        state, options = map(int, self("info").split())
        return state, options

    def counter(self, name):
        return statistics(self.child.pid).get("counters", {}).get(name, 0)


def echo(server, client, text):
    """The handshake over, `text` has come; another one goes back."""
    server("accept")
    assert server("receive", len(text)) == text
    server("send", "answer")
    assert client("receive", 6) == "answer"


def with_cookie(server, client, address, port=PORT):
    client("message", address, port, "first")
    echo(server, client, "first")
    client("close")
    server("close")


def opened_at_once(server, client, text):
    echo(server, client, text)
    assert client.info()[1] & SYN_DATA, client.info()
    assert server.info()[1] & SYN_DATA, server.info()
    client("close")
    server("close")


def plain(server, client, address):
    with_cookie(server, client, address)
    for i in range(20):
        client("message", address, PORT, f"second{i:02}")
        opened_at_once(server, client, f"second{i:02}")
        client("connect", address, PORT)
        assert client.info()[0] == SYN_SENT
        client("send", f"third{i:02}")
        opened_at_once(server, client, f"third{i:02}")
    for one in (server, client):
        assert (one.counter("tcp_fast_opens") == 40) == one.accelerated, one.counter("tcp_fast_opens")


def shared_key(host, client, address):
    """The cookie that the client has is good for the kernel's listener."""
    kernel = Program(host, False)
    kernel("listen", OTHER_PORT)
    client("message", address, OTHER_PORT, "kernel")
    opened_at_once(kernel, client, "kernel")


def hold(host, port, flags):
    host.enter("nft", f"add table inet hold; add chain inet hold in {{ type filter hook input priority 0; }}; "
                      f"add rule inet hold in tcp dport {port} tcp flags & (syn|ack) == {flags} counter drop")


def release(host):
    host.enter("nft", "delete", "table", "inet", "hold")


def leaves_with_text(server_host, server, client, address):
    """The SYN with text is lost, and then the socket becomes the kernel's."""
    if not server.accelerated:  # which does not see what netfilter drops
        hold(server_host, PORT, "syn")
        assert client("begin", address, PORT, "text-of-the-syn") == "15"
        client("leave")
        release(server_host)
        echo(server, client, "text-of-the-syn")
        client("close")
        server("close")
    client("connect", address, PORT)
    client("leave")
    client("send", "first-write")
    echo(server, client, "first-write")
    client("close")
    server("close")


def leaves_half_open(client_host, server, client, address):
    """The accepted connection becomes the kernel's before the handshake's last ACK has come."""
    if client.accelerated:  # whose SYN-ACK netfilter would not drop
        return
    client_host.enter("nft", f"add table inet hold; add chain inet hold in {{ type filter hook input priority 0; }}; "
                             f"add rule inet hold in tcp sport {PORT} counter drop")
    assert client("begin", address, PORT, "half-open") == "9"
    server("accept")
    assert server.info()[0] == SYN_RECV, server.info()
    assert server("receive", 9) == "half-open"
    release(client_host)
    until(lambda: client.info()[0] == 1, "the handshake's end")  # the SYN-ACK comes again
    server("leave")
    server("send", "answer")
    assert client("receive", 6) == "answer"
    client("send", "more")
    assert server("receive", 4) == "more"
    client("close")
    server("close")


def main(mode):
    with Lab(proved=False) as lab:
        near, far = lab.hosts
        for host in lab.hosts:
            host.enter("sysctl", "-qw", "net.ipv4.tcp_fastopen=3")
        server = Program(near, mode in ("near", "both"))
        client = Program(far, mode in ("far", "both"))
        server("listen", PORT)
        plain(server, client, near.address)
        shared_key(near, client, near.address)
        leaves_with_text(near, server, client, near.address)
        leaves_half_open(far, server, client, near.address)


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("needs root")
        sys.exit(77)
    main(sys.argv[1])
