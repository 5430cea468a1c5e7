"""accel stat, accel check and the configuration on programs that really run: a TCP server with a client, between two namespaces."""
import argparse
import json
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))
from lab import Lab, until  # noqa: E402

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


def test_reload(tool, lab):
    """The configuration of a process is read again: what may change does, the log is opened anew, and the rest is named."""
    config, log = lab.directory / "reload.toml", lab.directory / "reload.log"
    lines = ["[default]", "spin = 10", f'log_to = "{log}"', 'log = "warning"']
    config.write_text("\n".join(lines))
    program = SERVER.replace("7000", "7010").replace("7001", "7011").replace("7002", "7012")
    server = Program(lab.near, program, lab.near.address, True, env={"ACCEL_CONFIG": str(config)})
    expect(log.exists() and log.stat().st_mode & 0o7 == 0, "the log was not made")
    log.rename(lab.directory / "reload.log.1")
    expect(call(tool, "set", server.pid, "--reload") == "", "nothing but the log has changed")
    expect(log.exists(), "the log was not opened anew")
    config.write_text("\n".join([*lines, "queues = 1", "spin_ = 0"]))
    expect("spin_" in call(tool, "set", server.pid, "--reload", status=1), "a mistake is told")
    config.write_text("\n".join([*lines, "queues = 1"]))
    expect(call(tool, "set", server.pid, "--reload") == "needs a new start of the program: queues\n")
    expect("neither KEY=VALUE nor --reload" in call(tool, "set", server.pid, status=2))
    lab.near.stop(server.child)


def test_reload_without_its_file(tool, lab):
    """The default file, which was there at the start and is gone, behind chroot() for instance: nothing changes. An /etc of its own has the file."""
    program = SERVER.replace("7000", "7020").replace("7001", "7021").replace("7002", "7022")
    script = 'mount -t tmpfs none /etc && printf "[default]\\nspin = 10\\n" > /etc/libaccel.toml && unset ACCEL_CONFIG && exec python3 -c "$0" "$1"'
    child = lab.near.popen(["unshare", "-m", "sh", "-c", script, program, lab.near.address], accel=True, require=False, stdin=subprocess.PIPE,
                           stdout=subprocess.PIPE, text=True)
    expect(child.stdout.readline(), "the program did not start")
    expect(call(tool, "set", child.pid, "--reload") == "", "the file is there")
    subprocess.run(["nsenter", "-m", "-t", str(child.pid), "rm", "/etc/libaccel.toml"], check=True)
    expect("/etc/libaccel.toml: cannot be read" in call(tool, "set", child.pid, "--reload", status=1), "the file is gone")
    lab.near.stop(child)


# As SERVER, for a name of a file. When told so it does one thing of LAST.
COUNTED = """
import os, signal, socket, sys
listener = socket.create_server((sys.argv[1], 7000))
print("ready", flush=True)
connection, _ = listener.accept()
connection.sendall(connection.recv(100000, socket.MSG_WAITALL))
child = os.fork()  # whose end is not the parent's
if child == 0: os._exit(0)
os.waitpid(child, 0)
last = sys.stdin.readline().strip()
if last == "crash": os.kill(os.getpid(), signal.SIGSEGV)
if last == "exec": os.execv("/bin/cat", ["cat"])
if last == "exec fails":
    try: os.execv("/nowhere", ["nowhere"])
    except OSError: sys.stdin.readline()
"""


def counters_in(file, name):
    """The value of a counter, or None while there is no file."""
    found = re.search(rf"(?m)^libaccel_{name}{{pid=\"\d+\",program=\"python3[.\d]*\"}} (\d+)$", file.read_text() if file.exists() else "")
    return int(found[1]) if found else None


def test_counters(tool, lab):
    """A process that a signal ends leaves its counters behind, and no other."""
    for last, left in (("crash", True), ("exit", False), ("exec", False), ("exec fails", False)):
        folder = lab.directory / f"counters {last}"
        folder.mkdir()
        server = Program(lab.near, COUNTED, lab.near.address, True, env={"ACCEL_COUNTERS_TO": str(folder)})
        client = Program(lab.far, CLIENT, lab.near.address, False)
        file, = until(lambda folder=folder: list(folder.iterdir()), "a file with counters")
        expect(file.name.endswith(f".{server.pid}.prom") and file.stat().st_mode & 0o7 == 0, file)
        until(lambda file=file: (counters_in(file, "rx_bytes_total") or 0) >= 100000, "the counters of what has been received")
        before = counters_in(file, "written_seconds")
        server.child.stdin.write(last + "\n")
        server.child.stdin.flush()
        if last == "exec fails":
            until(lambda file=file, before=before: (counters_in(file, "written_seconds") or 0) > before + 1, "counters again after exec has failed")
        if last == "exec":
            until(lambda folder=folder: not any(folder.iterdir()), "no file of a process that is another program")
        server.child.stdin.close()
        server.child.wait()
        expect(any(folder.iterdir()) == left, last, list(folder.iterdir()))
        if left:
            expect(counters_in(file, "tcp_passive_opens_total") == 1 and counters_in(file, "tx_bytes_total") >= 100000, file.read_text())
        expect(server.child.stderr.read() == "", "nothing to say of it")
        client.child.kill()
        client.child.wait()
    for folder, why in (("counters", "is not an absolute path"), (str(lab.directory / "nowhere"), "No such file or directory")):
        server = Program(lab.near, COUNTED, lab.near.address, True, env={"ACCEL_COUNTERS_TO": folder})
        client = Program(lab.far, CLIENT, lab.near.address, False)
        until(lambda server=server: stat(tool, server.pid)["counters"]["tcp_passive_opens"] == 1, "the connection")
        said = server.child.stderr.readline()
        expect(said.startswith("libaccel: counters_to: ") and why in said, said)
        server.child.communicate("exit\n")
        client.child.kill()
        client.child.wait()


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


def call(tool, *words, status=0):
    done = subprocess.run([tool, *map(str, words)], text=True, capture_output=True, timeout=60)
    expect(done.returncode == status, words, done)
    return done.stderr if status else done.stdout


def test_see(tool, lab):
    """ss, explain, set and metrics of a server with one connection."""
    server = Program(lab.near, SERVER, lab.near.address, True)
    client = Program(lab.far, CLIENT, lab.near.address, True)
    listener, local, udp = server.fds
    accepted, = (s for s in stat(tool, server.pid)["sockets"] if s.get("state") == "established")
    expect(accepted["limit"] == "application" and accepted["unsent"] == 0 and accepted["delivery_rate"] > 0 and "busy_us" in accepted, accepted)

    told = call(tool, "ss", "-tip")
    line, = (row for row in told.splitlines() if f"pid={server.pid},fd={accepted['fd']}" in row)
    expect(line.split()[:2] == ["tcp", "ESTAB"] and accepted["remote"] in line, line)
    expect("cwnd:" in told and "bytes_received:100000" in told, told)
    listening = call(tool, "ss", "-tlp")
    expect(f"pid={server.pid},fd={listener}" in listening and f"pid={server.pid},fd={accepted['fd']})" not in listening, listening)
    expect(f"pid={server.pid},fd={udp}" in call(tool, "ss", "-up", "-l") and "tcp" not in call(tool, "ss", "-ua"))

    for name in (accepted["fd"], f"{accepted['local']}-{accepted['remote']}"):
        text = call(tool, "explain", server.pid, name)
        expect("path xdp, accelerated" in text and text.count(" yes") == 9, text)
    loopback = json.loads(call(tool, "explain", server.pid, local, "--json"))["sockets"][0]
    verdicts = [d["verdict"] for d in loopback["decisions"]]
    expect(verdicts == ["yes"] * 3 + ["no"] + ["not reached"] * 5 and loopback["reason"] == "loopback" and loopback["cure"], loopback)
    expect("has no such socket: 999" in call(tool, "explain", server.pid, 999, status=1))

    call(tool, "set", server.pid, "spin=0", "delayed_ack_ms=20")
    expect("no setting; meant is perhaps spin" in call(tool, "set", server.pid, "spinn=0", status=2))
    expect("not a value of it; allowed: 0-1000000" in call(tool, "set", server.pid, "spin=fast", status=2))
    expect("read once" in call(tool, "set", server.pid, "queues=1", status=2))
    expect("is not KEY=VALUE" in call(tool, "set", server.pid, "spin", status=2))

    test_reload(tool, lab)
    test_reload_without_its_file(tool, lab)

    text = call(tool, "metrics")
    labels = f'pid="{server.pid}",program="'
    expect(f'libaccel_up{{{labels}' in text and "libaccel_tcp_passive_opens_total{" in text, text[:2000])
    check_format(text)
    listening = subprocess.Popen([tool, "metrics", "--listen", "127.0.0.1:0"], stdout=subprocess.PIPE, text=True)
    try:
        port = listening.stdout.readline().split("port ")[1].split(",")[0]
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
            expect(answer.headers["Content-Type"].startswith("text/plain; version=0.0.4"), answer.headers)
            served = answer.read().decode()
        expect(labels in served, served[:500])
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{port}/other", timeout=30)
            expect(False, "/other is served")
        except urllib.error.HTTPError as error:
            expect(error.code == 404, error)
    finally:
        listening.terminate()
        expect(listening.wait(20) == 0, listening.returncode)
    # Every metric of the dashboard is one.
    names = set(re.findall(r"^# TYPE (\w+)", text, re.M))
    dashboard = (pathlib.Path(__file__).resolve().parents[2] / "config/grafana/libaccel.json").read_text()
    asked = set(re.findall(r"libaccel_\w+", " ".join(t["expr"] for p in json.loads(dashboard)["panels"] for t in p["targets"])))
    expect(asked and asked <= names, asked - names)
    client.child.kill()


def check_format(text):
    """Prometheus's: each metric has its help and type once, before its samples, which stand together."""
    seen, current = set(), None
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            current = line.split()[2]
            expect(current not in seen and line.split()[3] in ("counter", "gauge"), line)
            seen.add(current)
        elif not line.startswith("#"):
            expect(re.fullmatch(rf'{current}\{{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\}} [0-9]+', line), current, line)


def test_told_apart(tool, lab):
    """No such process, another user's, without libaccel, no socket yet; children without it are listed."""
    gone = subprocess.Popen(["true"])
    gone.wait()
    expect(f"process {gone.pid} does not exist" in call(tool, "stat", gone.pid, status=1))
    plain = subprocess.Popen(["sleep", "60"])
    expect(f"process {plain.pid} runs without libaccel: LD_PRELOAD does not name it" in call(tool, "stat", plain.pid, status=1))
    quiet = lab.near.popen(["sleep", "60"], accel=True, require=False)
    until(lambda: "libaccel.so" in open(f"/proc/{quiet.pid}/maps").read(), "sleep is there")
    expect("no Internet socket of it was made yet" in call(tool, "stat", quiet.pid, status=1))
    told = subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", tool, "stat", str(plain.pid)], text=True, capture_output=True)
    if told.returncode != 126 and told.returncode != 127:
        expect(f"process {plain.pid} is another user's" in told.stderr, told)
    expect("no process of that name" in call(tool, "stat", "no-such-name", status=1))
    parent = Program(lab.near, "import os, subprocess\n" + SERVER.replace('print("ready"', 'c = subprocess.Popen(["sleep", "60"], env={}); print("ready"'),
                     lab.near.address, True)
    children = stat(tool, parent.pid)["children"]
    expect([c["program"] for c in children] == ["sleep"] and "LD_PRELOAD does not name it" in children[0]["why"], children)
    named = json.loads(call(tool, "stat", "python3*", "--json"))
    expect(named["version"] == 2 and parent.pid in [p["pid"] for p in named["processes"]], named)
    kernel = json.loads(call(tool, "stat", parent.pid, "--json", "--filter", "loopback"))["processes"][0]["sockets"]
    expect([s["reason"] for s in kernel] == ["loopback"], kernel)
    for process in (plain, quiet):
        process.kill()
        process.wait()


def test_capture(tool, lab):
    """What tshark reads of a capture is the conversation: both ways, checksums right, nanoseconds, comments; filters and bounds hold."""
    if not shutil.which("tshark"):
        print("skipped: tshark is not installed")
        sys.exit(77)
    server = Program(lab.near, SERVER, lab.near.address, True)
    file = str(lab.directory / "a.pcapng")
    others = str(lab.directory / "b.pcapng")
    taking = [subprocess.Popen([tool, "capture", str(server.pid), *words], stderr=subprocess.PIPE, text=True)
              for words in (["-w", file, "tcp", "port", "7000"],)]
    expect("1 process" in taking[0].stderr.readline(), taking)
    client = Program(lab.far, CLIENT, lab.near.address, False)
    lab.far.run(["python3", "-c", f"import socket; s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.sendto(b'x', ('{lab.near.address}', 7002))"])
    time.sleep(1)
    taking[0].send_signal(signal.SIGINT)
    said = taking[0].communicate(timeout=60)[1]
    expect(taking[0].returncode == 0 and " 0 dropped" in said, said)

    def fields(name, *wanted, display=""):
        words = ["tshark", "-n", "-r", name, "-o", "tcp.check_checksum:TRUE", "-T", "fields", *(w for f in wanted for w in ("-e", f))]
        done = subprocess.run(words + (["-Y", display] if display else []), text=True, capture_output=True)
        expect(done.returncode == 0, done)
        return [line.split("\t") for line in done.stdout.splitlines()]

    rows = fields(file, "frame.time_epoch", "ip.src", "tcp.dstport", "tcp.len", "tcp.checksum.status", "frame.comment")
    expect(rows and all(len(r) == 6 for r in rows), rows[:3])
    both = {r[1] for r in rows}
    expect(both == {lab.near.address, lab.far.address}, both)
    received = sum(int(r[3] or 0) for r in rows if r[1] == lab.far.address)
    sent = sum(int(r[3] or 0) for r in rows if r[1] == lab.near.address)
    expect(received >= 100000 and sent >= 100000, received, sent)
    expect(all(r[4] == "1" for r in rows if r[1] == lab.far.address), "checksums of received segments")
    expect(all(len(r[0].split(".")[1]) == 9 for r in rows) and any(not r[0].endswith("000") for r in rows), rows[0])
    expect(any(f"({server.pid}) fd" in r[5] and "path xdp" in r[5] for r in rows), rows[-1])
    expect(not fields(file, "frame.number", display="udp"), "the filter let UDP pass")
    for source in (lab.near.address, lab.far.address):  # each byte, whatever the order on the wire
        reached = 1
        for seq, length in sorted((int(s), int(n)) for s, n in fields(file, "tcp.seq", "tcp.len", display=f"ip.src == {source} && tcp.len > 0")):
            expect(seq <= reached, "bytes lack of", source, "before", seq)
            reached = max(reached, seq + length)
        expect(reached == 100001, source, reached)
    expect(stat(tool, server.pid)["fresh"], "the server goes on")
    expect("syntax error" in call(tool, "capture", server.pid, "tcp", "prt", "-w", others, status=2))
    expect("No such file" in call(tool, "capture", server.pid, "-w", "/nonexistent/x", status=1))
    call(tool, "capture", server.pid, "-w", others, "--seconds", "0.2")
    expect(fields(others, "frame.number") == [], "silence")
    client.child.kill()


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
    parser.add_argument("part", choices=["stat", "config", "counters", "see", "told_apart", "capture"])
    parser.add_argument("--tool", required=True)
    parser.add_argument("--build", required=True)
    options = parser.parse_args()
    os.environ["ACCEL_BUILD"] = options.build
    with Lab() as the_lab:
        globals()["test_" + options.part](options.tool, the_lab)
