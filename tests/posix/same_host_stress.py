#!/usr/bin/env python3
"""Connections of one host that move into shared memory and back at random points, with all their bytes compared (same_host/stress.cc).

    same_host_stress.py PROGRAM [--moves N | --kills N] [--burners N]

Runs until the server has moved so many connections there and back, in rounds of other sizes: few threads and many, from the first transfer on
and later, with forks that are rare and frequent. --burners: so many processes besides that take CPU time, since what two ends do to each other
depends on who is interrupted where. --kills: instead, one of the two programs is killed at a random point, so many times. Of the other one every
call returns, what has come is right, and no descriptor is left.
"""
import argparse
import contextlib
import os
import pathlib
import random
import signal
import subprocess
import sys
import time

here = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(here.parents[1] / "lab"))
sys.path.insert(0, str(here.parents[1] / "apps"))
from lab import Lab, until  # noqa: E402
from programs import statistics  # noqa: E402

# Threads of the client, transfers before the move, longest pause between two forks in ms.
ROUNDS = [(2, 0, 100), (8, 0, 1000), (16, 4, 30), (1, 1, 5000), (4, 0, 10)]
SECONDS = 8


def round_of(lab, program, number):
    """How many went there, and how many back."""
    threads, after, pause = ROUNDS[number % len(ROUNDS)]
    env = {"ACCEL_SAME_HOST": "auto", "ACCEL_SAME_HOST_AFTER": str(after), "ACCEL_PATH": "kernel", "STRESS_FORK_PAUSE": str(pause)}
    options = {"accel": True, "require": False, "env": env, "stdout": subprocess.PIPE, "text": True}
    server = lab.near.popen([program, "--serve"], stdin=subprocess.PIPE, **options)
    ports = server.stdout.readline().split()
    client = lab.near.popen([program, SECONDS, number, threads, *ports], **options)
    said = client.communicate(timeout=SECONDS + 120)[0]
    assert client.returncode == 0, f"round {number} ended with {client.returncode}: {said}"
    counters = statistics(server.pid)["counters"]
    lab.near.stop(server)
    there, back = counters.get("shm_opened", 0), counters.get("shm_left", 0)
    assert there > 0 and counters.get("shm_broken", 0) == 0, counters
    print(f"round {number}: {said.strip()}; {there} connections in shared memory, {back} back, {counters['shm_bytes_in']} bytes", flush=True)
    return there, back


def connections(process):
    """Sockets that the program has: the library's own descriptors are above."""
    found = 0
    for number in os.listdir(f"/proc/{process.pid}/fd"):
        with contextlib.suppress(FileNotFoundError):  # it has just been closed
            found += int(number) < 900 and os.readlink(f"/proc/{process.pid}/fd/{number}").startswith("socket:")
    return found


def kill_one(lab, program, number):
    choice = random.Random(number)
    env = {"ACCEL_SAME_HOST": "auto", "ACCEL_SAME_HOST_AFTER": str(choice.choice((0, 0, 2))), "ACCEL_PATH": "kernel", "STRESS_KILLED": "1",
           "STRESS_FORK_PAUSE": str(choice.choice((20, 1000)))}
    options = {"accel": True, "require": False, "env": env, "stdout": subprocess.PIPE, "text": True}
    server = lab.near.popen([program, "--serve"], stdin=subprocess.PIPE, **options)
    ports = server.stdout.readline().split()
    before = connections(server)
    client = lab.near.popen([program, 60, number, 4, *ports], **options)
    until(lambda: statistics(server.pid).get("counters", {}).get("shm_opened", 0) > 0, "a connection in shared memory")
    time.sleep(choice.random() / 20)
    if choice.random() < 0.5:
        server.send_signal(signal.SIGKILL)
        assert client.wait(40) == 0, f"kill {number}: the client ended with {client.returncode}"
        server.wait()
        return "server"
    client.send_signal(signal.SIGKILL)
    client.wait()
    until(lambda: connections(server) <= before, f"kill {number}: the server's connections have ended", 40)
    lab.near.stop(server)
    return "client"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("--moves", type=int, default=2000)
    parser.add_argument("--kills", type=int)
    parser.add_argument("--burners", type=int, default=0)
    options = parser.parse_args()
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(options.burners)]
    try:
        with Lab() as lab:
            if options.kills:
                killed = []
                for number in range(options.kills):
                    killed.append(kill_one(lab, options.program, number))
                    if number % 20 == 19:
                        print(f"{number + 1} kills", flush=True)
                print(f"{killed.count('server')} servers and {killed.count('client')} clients were killed")
                return
            there = back = number = 0
            while there + back < options.moves or back == 0:
                went, came = round_of(lab, options.program, number)
                there, back, number = there + went, back + came, number + 1
        print(f"{there} connections into shared memory, {back} of them back before their end: all bytes arrived")
    finally:
        for burner in burners:
            burner.kill()
            burner.wait()


if __name__ == "__main__":
    main()
