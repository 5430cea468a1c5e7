#!/usr/bin/env python3
"""An established connection's round trips while a host on the wire sends 20 000 to 40 000 frames a second: overload.py [RATE] [SECONDS]

The server has one thread, which computes 100 ms once a second (tests/posix/overload.cc). The kernel and libaccel in turns. Per kind of frame: the worst
and the median round trip."""
import json
import pathlib
import sys

here = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(here.parents[1] / "tests" / "apps"))
from programs import Lab, accelerated_sockets, build_dir, statistics, until  # noqa: E402

KINDS = ("none", "syn", "ack", "udp", "garbage")
PORT = 7000


def measure(kind, accelerated, rate, seconds):
    program = build_dir() / "bin" / "overload"
    with Lab(proved=False) as lab:
        near, far = lab.hosts
        server = near.popen([program, "serve", near.address, PORT], accel=accelerated)
        near.wait_for_listener(PORT, server)
        if accelerated:
            until(lambda: accelerated_sockets(server.pid, PORT), "the listener")
        client = far.popen([program, "ask", near.address, PORT, seconds], stdout=-1, text=True)
        live = int(client.stdout.readline())
        sent = 0
        if kind != "none":
            blast = far.run([program, "blast", far.device, kind, rate, seconds - 1, far.address, near.address, PORT, live])
            sent = json.loads(blast)["sent"]
        stat = statistics(server.pid) if accelerated else {}
        paths = {s["path"] for s in stat.get("sockets", []) if s["remote"].endswith(f":{live}")}
        assert paths == ({"xdp"} if accelerated else set()), paths
        result = json.loads(client.stdout.readline())
        assert client.wait(30) == 0
        return {**result, "frames_a_second": round(sent / (seconds - 1)), "counters": {k: v for k, v in stat.get("counters", {}).items() if v}}


def main(rate=30000, seconds=6):
    for kind in KINDS:
        for accelerated in (False, True):
            r = measure(kind, accelerated, rate, seconds)
            print(f"{kind:<8} {'libaccel' if accelerated else 'kernel':<9} sent {r['frames_a_second']:>6}/s  trips {r['trips']:>4}"
                  f"  median {r['median_us'] / 1e3:>7.2f} ms  worst {r['worst_us'] / 1e3:>7.1f} ms", flush=True)
            if "--counters" in sys.argv:
                print("   ", r["counters"], flush=True)


if __name__ == "__main__":
    main(*(int(a) for a in sys.argv[1:] if a.isdigit()))
