"""accel stat, accel check and the configuration on programs that really run: a TCP server with a client, between two namespaces."""
import argparse
import json
import os
import pathlib
import signal
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))
from lab import Lab  # noqa: E402

# Says "ready", takes one connection, echoes what it gets; a UDP socket and a loopback listener beside it.
SERVER = """
import socket, sys
address = sys.argv[1]
listener = socket.create_server((address, 7000))
local = socket.create_server(("127.0.0.1", 7001))
udp = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
udp.bind((address, 7002))
print("ready", listener.fileno(), local.fileno(), udp.fileno(), flush=True)
connection, _ = listener.accept()
while data := connection.recv(65536):
    connection.sendall(data)
"""
CLIENT = """
import socket, sys
s = socket.create_connection((sys.argv[1], 7000))
s.sendall(b"x" * 100000)
left = 100000
while left:
    left -= len(s.recv(left))
print("done", s.fileno(), flush=True)
sys.stdin.read()
"""


def expect(condition, *what):
    if not condition:
        sys.exit("FAILED: " + " ".join(str(w) for w in what))


class Program:
    def __init__(self, host, text, address, accel, env=None):
        self.child = host.popen(["python3", "-c", text, address], accel=accel, env=env, require=False,
                                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.pid = self.child.pid
        words = self.child.stdout.readline().split()
        expect(words, "the program did not start:", self.child.stderr.read() if not words else "")
        self.fds = [int(w) for w in words[1:]]


def stat(tool, pid):
    done = subprocess.run([tool, "stat", str(pid), "--json"], text=True, capture_output=True, timeout=60)
    found = json.loads(done.stdout)["processes"]
    expect(done.returncode == (0 if found else 1), done)
    return found[0] if found else None


def test_stat(tool, lab):
    server = Program(lab.near, SERVER, lab.near.address, True)
    client = Program(lab.far, CLIENT, lab.near.address, True)
    seen = stat(tool, server.pid)
    expect(seen["engine"] and seen["fresh"] and seen["program"].startswith("python3"), seen)
    sockets = {s["fd"]: s for s in seen["sockets"]}
    listener, local, udp = server.fds
    for fd in (listener, udp):
        expect(sockets[fd]["path"] == "xdp" and sockets[fd]["reason"] == "accelerated", sockets[fd])
    expect(sockets[listener]["state"] == "listen" and sockets[listener]["local"] == f"{lab.near.address}:7000", sockets)
    expect(sockets[local]["path"] == "kernel" and sockets[local]["reason"] == "loopback", sockets)
    expect(sockets[local]["state"] == "listen" and sockets[local]["local"] == "127.0.0.1:7001", sockets)
    accepted = [s for s in seen["sockets"] if s.get("state") == "established"]
    expect(len(accepted) == 1 and accepted[0]["rx_bytes"] == accepted[0]["tx_bytes"] == 100000, accepted)
    expect(accepted[0]["rtt_us"] > 0 and accepted[0]["cwnd"] > 0 and accepted[0]["mss"] > 500, accepted)
    other = stat(tool, client.pid)
    mine = {s["fd"]: s for s in other["sockets"]}[client.fds[0]]
    expect(mine["local"] == accepted[0]["remote"] and mine["remote"] == accepted[0]["local"], mine, accepted)
    expect(mine["rx_bytes"] == 100000 and mine["path"] == "xdp", mine)
    port, = seen["ports"]
    expect(port["name"] == lab.near.device and port["path"] == "xdp" and port["mtu"] == 1500, port)
    counters = seen["counters"]
    expect(counters["tcp_passive_opens"] == 1 and counters["rx_bytes"] > 100000 < counters["tx_bytes"], counters)
    expect(counters["rx_frames"] == other["counters"]["tx_frames"] or counters["rx_bytes"] < 200000, "frames counted twice", counters)

    server.child.send_signal(signal.SIGSTOP)
    expect(stat(tool, server.pid)["fresh"] is False)
    server.child.send_signal(signal.SIGCONT)
    expect(stat(tool, server.pid)["fresh"] is True)
    checked = json.loads(lab.near.run([tool, "check", "--json"], env={"ACCEL_CONFIG": "/dev/null"}, check=False))
    nic, = (n for n in checked["nics"] if n["name"] == lab.near.device)
    expect(nic["queues_held"] == nic["queues"] and not nic["usable"] and not checked["usable"], nic)
    server.child.kill()
    server.child.wait()
    expect(stat(tool, server.pid) is None)
    text = lab.near.run([tool, "check"], env={"ACCEL_CONFIG": "/dev/null"})
    expect(f"{lab.near.device}: veth" in text and "usable" in text, text)


def test_config(tool, lab):
    def serve(text, env=None):
        """The paths and reasons of the three sockets, and what the program said, under a configuration."""
        with tempfile.TemporaryDirectory() as directory:
            file = os.path.join(directory, "libaccel.toml")
            open(file, "w").write(text)
            program = Program(lab.near, SERVER, lab.near.address, True, {"ACCEL_CONFIG": file, **(env or {})})
            seen = stat(tool, program.pid)
            sockets = {s["fd"]: s for s in seen["sockets"]} if seen else {}
            program.child.kill()
            said = program.child.communicate()[1].replace(file, "FILE")
            return [(sockets[fd]["path"], sockets[fd]["reason"]) if fd in sockets else None for fd in program.fds], said

    ours, loopback = ("xdp", "accelerated"), ("kernel", "loopback")
    by_setting = [("kernel", "path_setting"), loopback, ("kernel", "path_setting")]
    misread = [("kernel", "misread"), loopback, ("kernel", "misread")]
    paths, said = serve("")
    expect(paths == [ours, loopback, ours] and said == "", paths, said)
    paths, said = serve("[[application]]\nname='python3*'\n[[application.rule]]\nrole='tcp_server'\nports=7000\npath='kernel'\n")
    expect(paths == [("kernel", "rule"), loopback, ours] and said == "", paths, said)
    paths, said = serve("[[application]]\nname='redis*'\npath='kernel'\n")
    expect(paths == [ours, loopback, ours] and said == "", paths, said)
    paths, said = serve("[[application]]\nuser_id='cache'\npath='kernel'\n", {"ACCEL_APP_ID": "cache"})
    expect(paths == by_setting, paths)
    paths, said = serve(f"[default]\ndevices='!{lab.near.device}'\n")
    expect(paths[0][0] == "kernel" and paths[2][0] == "kernel", paths)
    paths, said = serve("[default]\nspinn = 3\n")
    expect(paths == misread, paths)
    expect(said.startswith('libaccel: FILE:2:1: unknown key "spinn"; meant is perhaps "spin"; allowed: path, require,') and said.count("\n") == 1, said)
    paths, said = serve("[default]\nspin = 3\n", {"ACCEL_SPIN": "-1"})
    expect(said == 'libaccel: ACCEL_SPIN: "-1" is not a value of it; allowed: 0-1000000\n', said)
    expect(paths == [ours, loopback, ours], paths)  # the setting only tunes: its default serves
    paths, said = serve("[default]\nstats = false\n")
    expect(paths == [None, None, None] and said == "", paths, said)
    paths, said = serve("[default\n", {"ACCEL_LOG": "off"})
    expect(paths == misread and said == "", paths, said)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=["stat", "config"])
    parser.add_argument("--tool", required=True)
    parser.add_argument("--build", required=True)
    options = parser.parse_args()
    os.environ["ACCEL_BUILD"] = options.build
    with Lab() as the_lab:
        globals()["test_" + options.part](options.tool, the_lab)
