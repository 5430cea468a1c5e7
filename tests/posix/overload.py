#!/usr/bin/env python3
"""An established connection beside a host that sends 20 000 frames a second of what nobody wants, to a server of one thread that computes
100 ms at a time (tests/posix/overload.cc): overload.py syn|ack|udp|garbage kernel|near

The connection stays accelerated, and its segments do not get lost behind the others: what its peer sends again is bounded."""
import json
import os
import pathlib
import sys

here = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(here.parents[1] / "apps"))
from programs import Lab, accelerated_sockets, build_dir, statistics, until  # noqa: E402

PORT, SECONDS, RATE = 7000, 3, 20000


def main(kind, accelerated):
    program = build_dir() / "bin" / "overload"
    with Lab(proved=False) as lab:
        near, far = lab.hosts
        server = near.popen([program, "serve", near.address, PORT], accel=accelerated)
        near.wait_for_listener(PORT, server)
        until(lambda: not accelerated or accelerated_sockets(server.pid, PORT), "the listener")
        client = far.popen([program, "ask", near.address, PORT, SECONDS], stdout=-1, text=True)
        live = int(client.stdout.readline())
        before = far.snmp()["Tcp:RetransSegs"]
        sent = json.loads(far.run([program, "blast", far.device, kind, RATE, SECONDS - 1, far.address, near.address, PORT, live]))["sent"]
        stat = statistics(server.pid) if accelerated else {}
        trips = json.loads(client.stdout.readline())["trips"]
        assert client.wait(30) == 0
        again = far.snmp()["Tcp:RetransSegs"] - before
        print(f"{sent} frames, {trips} round trips, {again} segments sent again")
        assert sent >= RATE, sent
        assert trips >= 20, trips
        assert again <= trips // 4, (again, trips)
        if accelerated:
            assert {s["path"] for s in stat["sockets"] if s["remote"].endswith(f":{live}")} == {"xdp"}, stat["sockets"]
            assert kind == "garbage" or stat["counters"]["rx_frames"] >= sent // 2, stat["counters"]


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("needs root")
        sys.exit(77)
    main(sys.argv[1], sys.argv[2] == "near")
