#!/usr/bin/env python3
"""The MTU of both ends changes under a server's traffic, up and down: mtu.py kernel|near

It may grow within what the port's buffers hold (1600) and beyond (9000). The server sees what the kernel's would: datagrams that may not be cut
go up to the new MTU and no further, those that come are as long, and a connection that transfers all the while loses nothing."""
import pathlib
import subprocess
import sys

here = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(here.parents[1] / "lab"))
sys.path.insert(0, str(here.parents[1] / "apps"))
from lab import Lab  # noqa: E402
from programs import statistics, until  # noqa: E402

PORT = 7005
# Answers each datagram by one as long that is not to be cut; echoes what comes by one connection.
SERVER = """
import errno, socket, sys, threading
listener = socket.create_server((sys.argv[1], int(sys.argv[2])))
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.bind((sys.argv[1], int(sys.argv[2])))
s.setsockopt(socket.IPPROTO_IP, 10, 2)  # IP_MTU_DISCOVER, IP_PMTUDISC_DO
def echo():
    c, _ = listener.accept()
    while b := c.recv(65536): c.sendall(b)
    c.close()
threading.Thread(target=echo).start()
while True:
    data, peer = s.recvfrom(65536)
    if data == b"end": break
    try: s.sendto(data, peer)
    except OSError as e: s.sendto(errno.errorcode[e.errno].encode(), peer)
"""
# Sends datagrams as long as it is told and says how long the answer is; meanwhile a connection transfers.
CLIENT = """
import os, socket, sys, threading
to = sys.argv[1], int(sys.argv[2])
c = socket.create_connection(to, 30)
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.settimeout(5)
s.setsockopt(socket.IPPROTO_IP, 10, 0)  # IP_PMTUDISC_DONT
done = False
rounds = 0
def transfer():
    global rounds
    while not done:
        data = os.urandom(200000)
        sender = threading.Thread(target=c.sendall, args=(data,))
        sender.start()
        got = b""
        while len(got) < len(data): got += c.recv(65536)
        sender.join()
        assert got == data
        rounds += 1
    c.shutdown(socket.SHUT_WR)
    assert c.recv(1) == b""
t = threading.Thread(target=transfer)
t.start()
print("ready", flush=True)
for line in sys.stdin:
    if line == "rounds\\n":
        print(rounds, flush=True)
        continue
    s.sendto(bytes(int(line)), to)
    try: answer = s.recv(65536)
    except TimeoutError: answer = b"lost"
    print(answer.decode() if answer.strip(b"\\0") else len(answer), flush=True)
done = True
t.join()
s.sendto(b"end", to)
print("ok" if not t.is_alive() and rounds else "broken", flush=True)
"""


class Client:
    def __init__(self, far, address):
        self.child = far.popen([sys.executable, "-c", CLIENT, address, str(PORT)], accel=False, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                               text=True)
        assert self.line() == "ready"

    def line(self):
        return self.child.stdout.readline().strip()

    def ask(self, what):
        self.child.stdin.write(f"{what}\n")
        self.child.stdin.flush()
        return self.line()

    def end(self):
        self.child.stdin.close()
        assert self.line() == "ok"


def main():
    accelerated = sys.argv[1] == "near"
    with Lab() as lab:
        near, far = lab.hosts
        server = near.popen([sys.executable, "-c", SERVER, near.address, str(PORT)], accel=accelerated, require=False)
        near.wait_for_listener(PORT, server)
        client = Client(far, near.address)

        def port_mtu():
            return statistics(server.pid)["ports"][0]["mtu"] if accelerated else None

        for mtu in 1500, 1600, 1400, 9000, 1500, 9000, 1300:
            for host in lab.hosts:
                host.ip("link", "set", host.device, "mtu", str(mtu))
            if accelerated:
                until(lambda: port_mtu() == mtu, f"a port of MTU {mtu}")
            before = int(client.ask("rounds"))
            until(lambda: int(client.ask("rounds")) > before + 1, "the connection's progress")
            for size, wanted in (mtu - 28, str(mtu - 28)), (mtu - 27, "EMSGSIZE"):
                got = client.ask(size)
                assert got == wanted, f"MTU {mtu}, {size} bytes: {got}"
            print(f"MTU {mtu}: ok", flush=True)
        client.end()
        assert server.wait(20) == 0, server.returncode


if __name__ == "__main__":
    sys.exit(main())
