"""Real programs in the lab: how each is started, loaded and read. Shared by tests/apps and benchmarks/."""
import contextlib
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "lab"))
from lab import CommandFailed, Loop, accel_environment, build_dir, until  # noqa: E402,F401
from lab import Lab as PlainLab  # noqa: E402

ON_MODEL = os.environ.get("LAB_DEVICE") == "model"
if ON_MODEL:  # the hosts have model mlx5 NICs (model/)
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "model"))
    from model_lab import ModelLab  # noqa: E402


def Lab(proved=True, **options):
    """proved=False: bytes may be the kernel's (on the model every other one must be the NIC's)."""
    return ModelLab(proved=proved, **options) if ON_MODEL else PlainLab(**options)


# Which ends are preloaded: (server, client).
MODES = {"kernel": (False, False), "server": (True, False), "client": (False, True), "both": (True, True)}


def descendants(pid):
    """The process and all below it."""
    found, wanted = [pid], [pid]
    while wanted:
        parent = wanted.pop()
        with contextlib.suppress(OSError):
            for task in pathlib.Path(f"/proc/{parent}/task").iterdir():
                below = list(map(int, (task / "children").read_text().split()))
                found += below
                wanted += below
    return found


def statistics(pid):
    """`accel stat PID --json` of one process; {} when it has nothing to tell."""
    output = subprocess.run([build_dir() / "bin" / "accel", "stat", str(pid), "--json"], stdout=subprocess.PIPE,
                            stderr=subprocess.DEVNULL, text=True).stdout
    with contextlib.suppress(ValueError, LookupError):
        return json.loads(output)["processes"][0]
    return {}


def accelerated_sockets(pid, port):
    """Sockets bound to the port on an accelerated path, in the process and all below it."""
    return sum(s["path"] in ("xdp", "mlx5", "iwarp") and s.get("state", "-") in ("listen", "-") and s["local"].endswith(f":{port}")
               for p in descendants(pid) for s in statistics(p).get("sockets", []))


def footprint(host):
    """Of all the host's processes together: proportional set size, pinned or not, descriptors, threads, processes."""
    pids = list(map(int, subprocess.run(["ip", "netns", "pids", host.name], stdout=subprocess.PIPE, text=True, check=True).stdout.split()))
    total = {"PSS MiB": 0.0, "descriptors": 0, "threads": 0, "processes": len(pids)}
    for pid in pids:
        folder = pathlib.Path(f"/proc/{pid}")
        total["PSS MiB"] += int(re.search(r"^Pss: +(\d+)", (folder / "smaps_rollup").read_text(), re.M)[1]) / 1024
        total["descriptors"] += len(os.listdir(folder / "fd"))
        total["threads"] += len(os.listdir(folder / "task"))
    return total


@contextlib.contextmanager
def server(host, command, port, accel, env=None, kind="t", directory=None, listeners=1, **options):
    """A server program, listening when the block begins (accelerated: with that many accelerated listeners, one a worker
    process), ended politely when it ends. Its output is in a file of the lab."""
    log = host.lab.directory / f"{pathlib.Path(command[0]).name}-{port}.log"
    with open(log, "w") as out:
        child = host.popen(command, accel, env, stdout=out, stderr=subprocess.STDOUT, cwd=directory, **options)
    try:
        host.wait_for_listener(port, child, kind=kind)
        end = time.monotonic() + 20
        while accel and listeners and accelerated_sockets(child.pid, port) < listeners:
            if time.monotonic() > end or child.poll() is not None:
                raise CommandFailed(f"{command[0]}: {accelerated_sockets(child.pid, port)} of {listeners} listeners accelerated")
        yield child
    except CommandFailed as failure:
        raise CommandFailed(f"{failure}\n--- {log.name}\n{log.read_text()[-2000:]}") from None
    finally:
        host.stop(child)


ECHO = """
import socket, sys, threading
def echo(connection):
    try:
        while data := connection.recv(100): connection.sendall(data)
    except ConnectionResetError: pass  # the client has been ended
def serve(port):
    listener = socket.create_server((sys.argv[1], port))
    while True: threading.Thread(target=echo, args=[listener.accept()[0]], daemon=True).start()
for port in sys.argv[2:]: threading.Thread(target=serve, args=[int(port)]).start()
"""


def echo_server(host, *ports):
    """One on the kernel that answers each connection to its ports with what it sends, and listens by now."""
    child = host.popen([sys.executable, "-c", ECHO, host.address, *ports])
    for port in ports:
        host.wait_for_listener(port, child)
    return child


@contextlib.contextmanager
def redis(host, accel, port=6379, arguments=(), save="", env=None):
    directory = host.lab.directory / f"redis-{port}"
    directory.mkdir(exist_ok=True)
    command = ["redis-server", "--port", port, "--bind", host.address, "--protected-mode", "no", "--save", save,
               "--dir", directory, "--daemonize", "no", *arguments]
    with server(host, list(map(str, command)), port, accel, env) as child:
        yield child


def redis_benchmark(host, target, accel, tests="set,get", requests=100000, clients=50, pipeline=1, port=6379, size=3):
    """Requests a second by test name."""
    output = host.run(["redis-benchmark", "-h", target, "-p", str(port), "-t", tests, "-n", str(requests), "-c", str(clients),
                       "-P", str(pipeline), "-d", str(size), "--csv"], accel)
    rows = dict(re.findall(r'^"([^"]+)","([\d.]+)"', output, re.M))
    if not rows:
        raise CommandFailed(f"redis-benchmark gave no rates:\n{output}")
    return {name: float(rate) for name, rate in rows.items()}


def redis_command(host, target, *words, port=6379, accel=False):
    return host.run(["redis-cli", "-h", target, "-p", str(port), *map(str, words)], accel).strip()


def haproxy_configuration(directory, rest, settings=""):
    """Its file."""
    path = directory / "haproxy.cfg"
    path.write_text(f"""
global
  user haproxy
  group haproxy
  {settings}
defaults
  mode http
  timeout connect 10s
  timeout client 30s
  timeout server 30s
{rest}""")
    return path


def nginx_configuration(host, port, workers, extra="", body="hello from nginx\n", keepalive=True, user="www-data", listen=""):
    directory = host.lab.directory / f"nginx-{port}"
    directory.mkdir(exist_ok=True)
    host.lab.directory.chmod(0o711)  # for the workers, which are not root's
    (directory / "index.html").write_text(body)
    path = directory / "nginx.conf"
    path.write_text(f"""
daemon off; master_process {"on" if workers else "off"}; worker_processes {workers or 1};
pid {directory}/nginx.pid; error_log {directory}/error.log warn; user {user};
events {{ worker_connections 2048; }}
http {{
  access_log off; sendfile on; tcp_nopush on; tcp_nodelay on; keepalive_requests 1000000;
  {"" if keepalive else "keepalive_timeout 0;"}
  client_body_temp_path {directory}; proxy_temp_path {directory}; fastcgi_temp_path {directory};
  uwsgi_temp_path {directory}; scgi_temp_path {directory};
  {extra}
  server {{ listen {host.address}:{port} {listen}; root {directory}; location / {{ }} }}
}}
""")
    return path


@contextlib.contextmanager
def nginx(host, accel, port=8080, workers=1, **configuration):
    path = nginx_configuration(host, port, workers, **configuration)
    with server(host, ["/usr/sbin/nginx", "-c", str(path), "-p", str(path.parent)], port, accel,
                listeners=workers or 1) as child:
        child.log = path.parent / "error.log"
        child.directory = path.parent
        yield child


def wrk(host, url, accel, connections=64, seconds=3, threads=1, headers=()):
    """(requests a second, failed requests)."""
    command = ["wrk", "-t", str(threads), "-c", str(connections), "-d", f"{seconds}s"]
    for h in headers:
        command += ["-H", h]
    output = host.run([*command, url], accel)
    rate = re.search(r"Requests/sec:\s+([\d.]+)", output)
    if not rate:
        raise CommandFailed(f"wrk gave no rate:\n{output}")
    failed = 0
    if errors := re.search(r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", output):
        failed += sum(map(int, errors.groups()))
    if bad := re.search(r"Non-2xx or 3xx responses: (\d+)", output):
        failed += int(bad[1])
    return float(rate[1]), failed


@contextlib.contextmanager
def flawless_load(host, url, accel, headers=()):
    """wrk all the while; it must count no failed request, and at least one a connection."""
    before = host.wire_packets()
    child = host.popen(["wrk", "-t", "1", "-c", "32", "-d", "300s", "--timeout", "60s", *(w for h in headers for w in ("-H", h)), url],
                       accel, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    until(lambda: host.wire_packets() > before + 1000, "traffic")
    yield
    child.send_signal(signal.SIGINT)
    output, _ = child.communicate(timeout=100)
    requests = int(re.search(r"(\d+) requests in", output)[1])
    assert requests > 32 and "Socket errors" not in output and "Non-2xx" not in output, output
    print(f"  {requests} requests, none failed", flush=True)


@contextlib.contextmanager
def sockperf_server(host, accel, tcp, port=11111):
    command = ["sockperf", "server", "-i", host.address, "-p", str(port)]
    command += ["--tcp"] if tcp else []
    with server(host, command, port, accel, kind="t" if tcp else "u") as child:
        yield child
    # It binds without SO_REUSEADDR. A client that hands its connection back as it ends may not have heard the server's FIN, which then
    # comes again.
    until(lambda: not host.enter("ss", "-Htn", "state", "last-ack", f"sport = :{port}"), "the client's last ACK")


def sockperf(host, target, accel, tcp, size=64, seconds=2, port=11111, data_integrity=False, mode="ping-pong"):
    """Median one-way latency in µs (sockperf's half round trip); fails on lost, duplicated or wrong messages."""
    command = ["sockperf", mode, "-i", target, "-p", str(port), "-m", str(size), "-t", str(seconds)]
    command += ["--tcp"] if tcp else []
    command += ["--data-integrity"] if data_integrity else []
    command += ["--mps", "1000", "--reply-every", "10"] if mode == "under-load" else []
    output = host.run(command, accel)
    median = re.search(r"percentile 50.000 =\s+([\d.]+)", output)
    if not median:
        raise CommandFailed(f"sockperf gave no median:\n{output}")
    faults = re.search(r"# dropped messages = (\d+); # duplicated messages = (\d+); # out-of-order messages = (\d+)", output)
    if data_integrity and ("data integrity test failed" in output.lower()):
        raise CommandFailed(f"sockperf: wrong data\n{output}")
    if tcp and faults and any(map(int, faults.groups())):
        raise CommandFailed(f"sockperf: {faults[0]}")
    return float(median[1])


def until_read(child):
    """Until a program that may be accelerated has read what its device holds: its count of frames stands still."""
    seen = []

    def still():
        seen.append(statistics(child.pid).get("counters", {}).get("rx_frames"))
        return len(seen) > 5 and len(set(seen[-5:])) == 1

    until(still, "a silent device")


def sockperf_throughput(host, target, accel, tcp, size=1400, seconds=1, port=11111):
    """Messages sent a second, of 20 000 at most."""
    command = ["sockperf", "throughput", "-i", target, "-p", str(port), "-m", str(size), "-t", str(seconds), "--mps", "20000"]
    output = host.run(command + (["--tcp"] if tcp else []), accel)
    rate = re.search(r"Message Rate is (\d+)", output)
    if not rate or int(rate[1]) == 0:
        raise CommandFailed(f"sockperf gave no rate:\n{output}")
    return int(rate[1])


def iperf3(host, target, accel, arguments=(), seconds=3, port=5201):
    """Received bits a second."""
    output = host.run(["iperf3", "-c", target, "-p", str(port), "-t", str(seconds), "-J", *arguments], accel)
    report = json.loads(output[output.index("{"):])
    if "error" in report:
        raise CommandFailed(f"iperf3: {report['error']}")
    end = report["end"]
    return (end.get("sum_received") or end["sum"])["bits_per_second"]


def bulk_flow(lab, mode, path, seconds, *serving):
    """From near to far over a path of tests/wire, for so long: what the receiver, the sender and the path tell. serving: of flows.py"""
    on_server, on_client = MODES[mode]
    flows = [sys.executable, "-B", pathlib.Path(__file__).resolve().parents[1] / "wire" / "flows.py"]
    lab.impair(path, "delay=10ms")
    with Carried(*accelerated_hosts(mode, lab.near, lab.far)):
        server = lab.near.popen([*flows, "serve", lab.near.address, 9400, *serving], on_server, stdout=subprocess.PIPE, text=True)
        lab.near.wait_for_listener(9400, server)
        got = json.loads(lab.far.run([*flows, "bulk", lab.near.address, 9400, seconds], on_client))
        sent = json.loads(server.stdout.readline())
    lab.near.stop(server)
    return got, sent, lab.counts()


class Carried:
    """Proves who carried the traffic of a block: `with Carried(host): ...` fails when the kernel's stack carried more than a tenth
    of the frames on the wire (kinds: the protocols that count)."""

    def __init__(self, *hosts, kinds=("tcp", "udp"), share=0.1, least=100):
        self.hosts, self.kinds, self.share, self.least = hosts, kinds, share, least
        self.figures = {}

    def __enter__(self):
        self.before = [(h.wire_packets(), h.kernel_packets()) for h in self.hosts]
        return self

    def __exit__(self, kind, *_):
        if kind:
            return
        for host, (wire, kernel) in zip(self.hosts, self.before):
            frames = host.wire_packets() - wire
            now = host.kernel_packets()
            by_kernel = sum(now[k] - kernel[k] for k in self.kinds)
            self.figures[host.name] = (frames, by_kernel)
            if frames < self.least or by_kernel > frames * self.share:
                raise AssertionError(f"{host.name}: of {frames} frames on the wire the kernel's stack carried {by_kernel}")


def accelerated_hosts(mode, server_host, client_host):
    """The hosts that the mode preloads."""
    on = MODES[mode]
    return [h for h, yes in ((server_host, on[0]), (client_host, on[1])) if yes]
