#!/usr/bin/env python3
"""The main job on real programs, kernel against libaccel, in two namespaces joined by veth. `./demo` runs it."""
import nginx
import redis
import same_host
import siw
import sockperf
from measure import report


def main():
    print("Two namespaces, one cable (veth, offloads off), both hosts on this machine's cores. 'server': only the server is")
    print("preloaded, 'both': server and client. Rounds are interleaved, figures are medians; each accelerated round proved by the")
    print("namespaces' own counters that libaccel's stack carried it, not the kernel's.")
    report("redis-benchmark, 50 clients, 3 B values", redis.measure(rounds=3, requests=60000))
    report("nginx + wrk, one worker, 64 keep-alive connections", nginx.measure(rounds=3, seconds=2))
    report("sockperf ping-pong, 64 B, blocking", sockperf.measure(rounds=3, seconds=1))
    report("two programs of one host over 127.0.0.1, both preloaded: the kernel's loopback and shared memory",
           same_host.measure(rounds=3, wanted=("a CPU each", "SET", "GET, 50", "keep-alive")))
    print("\nSoft-iWARP is for talking to RDMA hosts, and costs. Here without AF_XDP, libaccel at both ends, beside plain TCP:")
    report("soft-iWARP over the kernel's TCP", siw.measure())


if __name__ == "__main__":
    main()
