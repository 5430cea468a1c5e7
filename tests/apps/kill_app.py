#!/usr/bin/env python3
"""kill -9 of either end: the other sees the end or a reset, never a hang, whether it talks or waits, and also while somebody else
holds the device's XDP program. The namespace has no XDP state left after each, and no helper lives on. Then redis-server, with a
client that waits in BLPOP."""
import argparse
import ctypes
import os
import pathlib
import signal
import subprocess
import sys

from programs import MODES, ON_MODEL, Lab, redis, redis_command, until

PEER = r"""
import socket, sys
role, address, silent = sys.argv[1:]
if role == "serve":
    with socket.create_server((address, 7000)) as listener:
        c, _ = listener.accept()
else:
    c = socket.create_connection((address, 7000))
n = 0
try:
    while True:
        if role == "call" and not (silent == "silent" and n == 20):
            c.sendall(b"x" * 1000)
        data = c.recv(1000, socket.MSG_WAITALL)
        if not data:
            break
        if role == "serve":
            c.sendall(data)
        n += 1
        if n == 20:
            print("moving", flush=True)
    print("end", flush=True)
except OSError as e:
    print(type(e).__name__, flush=True)
"""
ENDS = ("end", "ConnectionResetError", "BrokenPipeError")


def helpers(pid):
    """The helpers of a process: it is their argument."""
    wanted = f"accel-guard\0{pid}\0"
    found = []
    for path in pathlib.Path("/proc").glob("[0-9]*/cmdline"):
        try:
            if path.read_text(errors="replace") == wanted:
                found.append(int(path.parent.name))
        except OSError:
            pass
    return found


def hold_program(pid):
    """A descriptor of the device's XDP program that the process has: it stays attached while this is open."""
    for path in pathlib.Path(f"/proc/{pid}/fd").iterdir():
        if os.readlink(path).startswith("anon_inode:bpf_link"):
            process = os.pidfd_open(pid)
            copy = ctypes.CDLL(None, use_errno=True).syscall(438, process, int(path.name), 0)  # pidfd_getfd
            os.close(process)
            assert copy >= 0, os.strerror(ctypes.get_errno())
            return copy
    raise AssertionError(f"process {pid} has no XDP program")


def check_nothing_left(lab, victim):
    for host in lab.hosts:
        assert not host.xdp_left(), f"{host.name}: an XDP program stayed after kill -9"
    until(lambda: not helpers(victim.pid), "the helper of a process that was killed is gone", 20)


def once(lab, on_server, on_client, kill_server, silent, shared=False):
    words = ["/usr/bin/python3", "-c", PEER]
    how = "silent" if silent else "talking"
    server = lab.near.popen([*words, "serve", lab.near.address, how], on_server, stdout=subprocess.PIPE, text=True)
    lab.near.wait_for_listener(7000, server)
    client = lab.far.popen([*words, "call", lab.near.address, how], on_client, stdout=subprocess.PIPE, text=True)
    assert client.stdout.readline() == "moving\n"
    assert server.stdout.readline() == "moving\n"
    victim, other = (server, client) if kill_server else (client, server)
    program = hold_program(victim.pid) if shared else None
    victim.send_signal(signal.SIGKILL)
    victim.wait(20)
    text, _ = other.communicate(timeout=20)
    assert text.split()[-1] in ENDS, text
    if program is not None:
        host = lab.near if kill_server else lab.far
        assert host.accelerated(), "the program went although somebody held it"
        os.close(program)
    victim.stdout.close()
    check_nothing_left(lab, victim)


def redis_is_killed(lab, on_server, on_client):
    with redis(lab.near, on_server) as server:
        client = lab.far.popen(["redis-cli", "-h", lab.near.address, "blpop", "nothing", "0"], on_client, stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True)
        until(lambda: "blocked_clients:1" in redis_command(lab.far, lab.near.address, "info", "clients"), "the client waits")
        server.send_signal(signal.SIGKILL)
        server.wait(20)
        text, _ = client.communicate(timeout=20)
        assert "reset by peer" in text or "closed" in text, text
    check_nothing_left(lab, server)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=MODES, default="both")
    parser.add_argument("--times", type=int, default=2)
    options = parser.parse_args()
    on_server, on_client = MODES[options.mode]
    with Lab() as lab:
        for kill_server in (True, False):
            for silent in (False, True):
                for _ in range(options.times):
                    once(lab, on_server, on_client, kill_server, silent)
                print(f"{options.times} x kill -9 of the {'server' if kill_server else 'client'}, {'silent' if silent else 'talking'} peer: ok",
                      flush=True)
            if (on_server if kill_server else on_client) and not ON_MODEL:
                once(lab, on_server, on_client, kill_server, True, shared=True)
                print("while another process holds the XDP program: ok", flush=True)
        redis_is_killed(lab, on_server, on_client)
        print("redis-server with a blocked client: ok")


if __name__ == "__main__":
    sys.exit(main())
