#!/usr/bin/env python3
"""HAProxy with master and worker (-W), reloaded under wrk with no failed request: the new worker gets the old one's listeners by SCM_RIGHTS
(expose-fd listeners) and accepts accelerated. A connection a request."""
import argparse
import os
import signal
import sys

from programs import MODES, Lab, accelerated_sockets, descendants, flawless_load, haproxy_configuration, server, statistics, until


def workers(master):
    return set(descendants(master)[1:])


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=MODES, default="both")
    parser.add_argument("--reloads", type=int, default=5)
    options = parser.parse_args()
    on_server, on_client = MODES[options.mode]
    with Lab(queues=2) as lab:  # an old and a new worker have a queue each
        near = lab.near
        lab.directory.chmod(0o711)  # for the workers, which are not root's
        path = haproxy_configuration(lab.directory, f"""
frontend f
  bind {near.address}:8000
  http-request return status 200 content-type text/plain string "hello"
""", f"stats socket {lab.directory}/haproxy.sock mode 600 level admin expose-fd listeners")
        with server(near, ["haproxy", "-W", "-db", "-f", str(path)], 8000, on_server) as master:
            with flawless_load(lab.far, f"http://{near.address}:8000/", on_client, ["Connection: close"]):
                for _ in range(options.reloads):
                    old = workers(master.pid)
                    os.kill(master.pid, signal.SIGUSR2)
                    until(lambda: (now := workers(master.pid)) and not now & old, "a new worker alone")
                    if on_server:
                        until(lambda: accelerated_sockets(master.pid, 8000) == 1, "the new worker's acceleration")
                        opened = lambda: sum(statistics(p)["counters"].get("tcp_passive_opens", 0) for p in workers(master.pid))
                        until(lambda: opened() > 50, "connections of the new worker's own")
    print("ok")


if __name__ == "__main__":
    sys.exit(main())
