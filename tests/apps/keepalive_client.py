#!/usr/bin/env python3
"""Requests on connections that are kept, until SIGINT: keepalive_client.py ADDRESS PORT CONNECTIONS

Prints how they ended, as JSON: "answered"; "crossed": a connection that had answered before ended without a byte of the answer, since the
server's close() and the request crossed, and the client may ask again (RFC 9112 section 9.3.1); "reset": the same by a reset without a FIN; "refused", "fresh": a connection failed
before its first answer; "cut": within an answer."""
import json
import select
import signal
import socket
import sys

KEPT_FOR = 100  # answers; then a fresh one: those that were opened as a reload had no queue for the new worker are the kernel's
REQUEST = b"GET / HTTP/1.1\r\nHost: server\r\n\r\n"


class Connection:
    def __init__(self, client):
        self.client, self.answers, self.text = client, 0, b""
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        self.socket.setblocking(False)
        self.connecting = self.socket.connect_ex(client.server) != 0
        client.connections[self.socket.fileno()] = self
        client.poll.register(self.socket, select.EPOLLOUT if self.connecting else select.EPOLLIN)
        if not self.connecting:
            self.ask()

    def ask(self):
        try:
            self.socket.send(REQUEST)
        except OSError:
            self.end("crossed" if self.answers else "fresh")

    def end(self, how):
        if how:
            self.client.ends[how] += 1
        del self.client.connections[self.socket.fileno()]
        self.client.poll.unregister(self.socket)
        self.socket.close()
        Connection(self.client)

    def event(self):
        if self.connecting:
            if self.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                return self.end("refused")
            self.connecting = False
            self.client.poll.modify(self.socket, select.EPOLLIN)
            return self.ask()
        try:
            got = self.socket.recv(16384)
        except BlockingIOError:
            return None
        except OSError:
            return self.end("cut" if self.text else "reset" if self.answers else "fresh")
        if not got:
            return self.end("cut" if self.text else "crossed" if self.answers else "fresh")
        self.text += got
        head, end, body = self.text.partition(b"\r\n\r\n")
        if not end or len(body) < int(head.split(b"Content-Length: ")[1].split(b"\r\n")[0]):
            return None
        assert head.startswith(b"HTTP/1.1 200"), head
        self.client.ends["answered"] += 1
        self.answers, self.text = self.answers + 1, b""
        return self.end(None) if self.answers == KEPT_FOR or b"Connection: close" in head else self.ask()


class Client:
    def __init__(self, server):
        self.server, self.poll, self.connections = server, select.epoll(), {}
        self.ends = dict.fromkeys(("answered", "crossed", "reset", "refused", "fresh", "cut"), 0)

    def run(self, connections):
        running = [True]
        signal.signal(signal.SIGINT, lambda *_: running.clear())
        for _ in range(connections):
            Connection(self)
        while running:
            for fd, _ in self.poll.poll(1):
                if fd in self.connections:
                    self.connections[fd].event()
        print(json.dumps(self.ends), flush=True)


if __name__ == "__main__":
    Client((sys.argv[1], int(sys.argv[2]))).run(int(sys.argv[3]))
