#!/usr/bin/env python3
"""libaccel's mlx5 port on the model NIC (model/) when things go wrong: faults.py CASE. The model's checker is on throughout.

A case transfers bytes there and back, equal by sha256 (tests/apps/transfer_app.py), with the faults named; or starts a program where a call
is denied, and reads the one line that says why."""
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import time

here = pathlib.Path(__file__).resolve()
sys.path.insert(0, str(here.parents[2] / "model"))
sys.path.insert(0, str(here.parents[1] / "apps"))
import sysfs  # noqa: E402
from accel import transfer as stream  # noqa: E402
from model_lab import ModelLab  # noqa: E402

from lab import until  # noqa: E402

TRANSFER = here.parents[1] / "apps" / "transfer_app.py"


def under_way(host, frames=2000, timeout=60):
    end = time.monotonic() + timeout
    while host.counters().get("rx_packets", 0) < frames:
        assert time.monotonic() < end, f"nothing moves: {host.counters()}"
        time.sleep(0.01)


def transfer(mib=16, faults="", env=None, mtu=1500, during=None, patience=100, within=()):
    """Both ends accelerated; during(lab) is called under load. Returns both ends' stderr and counters. within: Python's arguments before the
    program, of one that runs it."""
    with ModelLab(mtu=mtu) as lab:
        for host in lab.hosts:
            host.faults = faults
        me = ["/usr/bin/python3", "-B", *within, str(TRANSFER), "--mib", str(mib)]
        errors = [open(lab.directory / f"stderr{i}", "w+") for i in (1, 2)]
        pipes = {"stdout": subprocess.PIPE, "text": True, "env": env}
        server = lab.near.popen([*me, "--serve", lab.near.address], accel=True, stderr=errors[0], **pipes)
        lab.near.wait_for_listener(9000, server)
        client = lab.far.popen([*me, "--call", lab.near.address], accel=True, stderr=errors[1], **pipes)
        if during:
            under_way(lab.near)
            during(lab)
        try:
            mine, theirs = client.communicate(timeout=patience)[0].split(), server.communicate(timeout=patience)[0].split()
        except subprocess.TimeoutExpired as late:
            raise AssertionError(f"hangs: {late}\n" + "".join(open(f.name).read() for f in errors)) from None
        said = ""
        for file in errors:
            file.seek(0)
            said += file.read()
        assert client.returncode == 0 and server.returncode == 0, said
        size = str(mib << 20)
        assert mine[1] == size and theirs[1] == size and mine[0] == theirs[0] and mine[2] == theirs[2], (mine, theirs, said)
        print(f"{mib} MiB there and back, equal; faults '{faults}', {env or ''}\n{said}")
        counters = [host.counters() for host in lab.hosts]
        assert all(c["stale_moves"] == c["kernel_warnings"] == 0 for c in counters), counters
        return said, counters


def loss():
    _, counters = transfer(faults="loss=0.005,reorder=0.005,duplicate=0.002,corrupt=0.001,seed=7")
    assert all(c["rx_packets"] > 5000 for c in counters), counters


def told_once(said, kind):
    """No process says twice what one line says."""
    told = re.findall(rf"(\w+): {kind} error, syndrome 0x.*: queue reset", said)
    assert told and len(told) == len(set(told)), said


def send_errors():
    said, _ = transfer(faults="send_error=0.002,seed=3")
    told_once(said, "send")


def receive_errors():
    said, counters = transfer(faults="receive_error=0.001,seed=5")
    told_once(said, "receive")
    assert all(c["faults_error_cqe"] > 2 for c in counters), counters  # so that once is not for want of more


def overrun():
    transfer(faults="overrun=0.002,seed=2")


def stall():
    transfer(mib=4, faults="stall=20ms:5ms")


def compression():
    transfer(env={"ACCEL_MLX5_CQE_COMPRESSION": "true"})


def plain_descriptors():
    transfer(env={"ACCEL_MLX5_MULTI_PACKET": "false", "ACCEL_MLX5_INLINE": "0", "ACCEL_MLX5_TX_BATCH": "1"})


STRIDING = {"ACCEL_MLX5_STRIDING_RQ": "true"}


def striding():
    """Long buffers that hold many frames: also long ones, with losses, where buffers run out, and by compressed completions."""
    for env, faults, mtu in (STRIDING, "loss=0.005,reorder=0.005,overrun=0.002,seed=7", 1500), (STRIDING, "", 9000), \
            ({**STRIDING, "ACCEL_MLX5_CQE_COMPRESSION": "true"}, "", 1500), ({**STRIDING, "ACCEL_RX_RING": "64"}, "stall=20ms:5ms", 1500):
        said, counters = transfer(mib=2, env=env, faults=faults, mtu=mtu)
        assert not said.strip(), said
        assert all(c["rx_strided"] == c["rx_packets"] > 100 for c in counters), counters
        if "ACCEL_MLX5_CQE_COMPRESSION" in env:
            assert all(c["cqes_compressed"] > 0 for c in counters), counters


def striding_errors():
    said, counters = transfer(mib=8, faults="receive_error=0.001,seed=5", env=STRIDING)
    assert "receive error" in said and "queue reset" in said, said
    assert all(c["rx_strided"] == c["rx_packets"] for c in counters), counters


def striding_removal():
    said, _ = transfer(mib=24, env=STRIDING, during=lambda lab: lab.near.remove_device())
    assert "port lost" in said and "was removed or failed" in said, said


def jumbo():
    transfer(mtu=9000)


def full_rule_table():
    """No rule but the first, which tries whether there is steering: the kernel path, without a byte lost."""
    transfer(mib=2, env={"MLX5_MODEL_REFUSE": "create_flow:ENOSPC:1", "ACCEL_REQUIRE": "off"})


def link_down():
    def during(lab):
        lab.near.ip("link", "set", lab.near.device, "down")
        lab.near.ip("link", "set", lab.near.device, "up")
    transfer(mib=64, during=during)


def removal():
    """The device goes under load: the connections go on in the kernel."""
    said, _ = transfer(mib=64, during=lambda lab: lab.near.remove_device())
    assert "port lost" in said and "was removed or failed" in said, said


def recovery_denied():
    """The queue of an error completion cannot be reset: as if the device were gone."""
    for refused, kind in ("modify_wq:EIO:1", "receive"), ("modify_qp:EIO:3", "send"):
        said, _ = transfer(mib=64, env={"MLX5_MODEL_REFUSE": refused}, during=lambda lab, kind=kind: getattr(lab.near, f"fail_{kind}")())
        assert re.search(rf"veth1: port lost.*{kind} error, syndrome 0x.*; the queue cannot be reset: Input/output error", said), said


# Runs a program and forks children once it has its connection (another process that has the socket before leaves it to the kernel): which end at
# once, write to memory that was the parent's, execute another program, or stay.
FORKING = """
import os, runpy, signal, socket, sys, threading
over, staying, count = threading.Event(), [], 0
def fork():
    global count
    inherited = bytearray(1 << 20)
    while not over.is_set():
        count += 1
        stays = count % 4 == 0 and len(staying) < 5
        child = os.fork()
        if child == 0:
            if count % 3 == 1: inherited[:] = bytes(len(inherited))
            if count % 3 == 2: os.execv("/bin/true", ["true"])
            if stays: signal.pause()
            os._exit(0)
        staying.append(child) if stays else os.waitpid(child, 0)
forks = threading.Thread(target=fork)
def connected(call):
    def then(*a, **named):
        result = call(*a, **named)
        if not forks.ident: forks.start()
        return result
    return then
socket.create_connection, socket.socket.accept = connected(socket.create_connection), connected(socket.socket.accept)
try:
    sys.argv = sys.argv[1:]
    runpy.run_path(sys.argv[0], run_name="__main__")
finally:
    over.set()
    forks.join()
    for child in staying:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    print(count, "forks", file=sys.stderr)
"""


def forks():
    """The parent's queues are its own, whatever becomes of the children."""
    said, counters = transfer(within=("-c", FORKING))
    assert all(int(n) >= 10 for n in re.findall(r"(\d+) forks", said)) and len(said.splitlines()) == 2, said
    assert counters[1]["contexts"] == 1 and all(c["error_cqes"] == 0 and c["left"] == 0 for c in counters), counters


GREETER = """
import socket, sys, threading
def greet(c):
    try:
        c.sendall(b"hello")
        while b := c.recv(65536): c.sendall(b)
    except OSError: pass
    c.close()
for address in sys.argv[1:]:
    s = socket.create_server((address, 7004), family=socket.AF_INET6 if ":" in address else socket.AF_INET, backlog=512)
    def serve(s=s):
        while True: threading.Thread(target=greet, args=(s.accept()[0],), daemon=True).start()
    threading.Thread(target=serve).start()
print("ready", flush=True)
"""
# Connections whose handshake is cut (from the ports named), others one after the other meanwhile, until stdin ends. Each must end; says how.
CALLERS = """
import collections, errno, select, socket, sys, threading
address, here, ranges = sys.argv[1], sys.argv[2], [int(p) for p in sys.argv[3:]]
family = socket.AF_INET6 if ":" in address else socket.AF_INET
ended, over, counting = collections.defaultdict(collections.Counter), threading.Event(), threading.Lock()
def count(name, how):
    with counting: ended[name][how] += 1
def call(name, port=0, nonblocking=False):
    s = socket.socket(family)
    s.settimeout(25)
    try:
        if port: s.bind((here, port))
        if nonblocking:
            s.setblocking(False)
            s.connect_ex((address, 7004))
            p = select.poll(); p.register(s, select.POLLOUT)
            if not p.poll(25000): raise TimeoutError("connect")
            if e := s.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR): raise OSError(e, "connect")
            s.settimeout(25)
        else:
            s.connect((address, 7004))
        got = s.recv(5)  # nothing is sent before, which would bring a reset of itself
        s.sendall(b"x" * 2000)
        while len(got) < 2005 and (more := s.recv(2005)): got += more
        count(name, "served" if got == b"hello" + b"x" * 2000 else f"ended after {len(got)}")
    except ConnectionResetError: count(name, "reset")
    except OSError as e: count(name, f"{type(e).__name__} {e}")
    s.close()
def load():
    while not over.is_set(): call("load")
threads = [threading.Thread(target=load) for _ in range(4)]
for first in ranges:
    threads += [threading.Thread(target=call, args=(first, first + i, i % 2 == 1)) for i in range(20)]
for t in threads: t.start()
print("started", flush=True)
sys.stdin.readline()
over.set()
for t in threads: t.join()
print({name: dict(found) for name, found in ended.items()})
"""


def cut_handshakes(near_calls, v6):
    """The device goes while handshakes are under way that the cable holds up, among others that go through. Far's end is the kernel's."""
    lost_ack, lost_syn_ack = 21000, 22000  # no ephemeral ports, which the load has
    with ModelLab() as lab:
        near, far = lab.hosts
        server, caller = (far, near) if near_calls else (near, far)
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        to, me = (server.address6, caller.address6) if v6 else (server.address, caller.address)
        serving = server.popen([sys.executable, "-c", GREETER, to], accel=not near_calls, **pipes)
        assert serving.stdout.readline() == "ready\n"
        # A caller on the model never sends the ACK before it has left SYN-SENT, so there only the first kind is.
        out, back = ("input", "output") if near_calls else ("output", "input")
        rules = f"add table inet t; add chain inet t o {{ type filter hook {out} priority 0; }}; " \
                f"add chain inet t b {{ type filter hook {back} priority 0; }}; " \
                f"add rule inet t b tcp dport {lost_syn_ack}-{lost_syn_ack + 19} drop; " \
                f"add rule inet t o tcp sport {lost_ack}-{lost_ack + 19} tcp flags & (syn|ack) == ack drop"
        far.enter("nft", rules)
        ports = [lost_syn_ack] if near_calls else [lost_ack, lost_syn_ack]
        calling = caller.popen([sys.executable, "-c", CALLERS, to, me, *map(str, ports)], accel=near_calls, **pipes,
                               env={"ACCEL_REQUIRE": "off"})  # afterwards they go by the kernel
        assert calling.stdout.readline() == "started\n"

        def stuck(state, first):
            return len(far.enter("ss", "-Htn", "state", state, f"sport >= :{first} and sport <= :{first + 19}").splitlines())
        if near_calls:
            until(lambda: len(far.enter("ss", "-Htn", "state", "syn-recv", f"dport >= :{lost_syn_ack} and dport <= :{lost_syn_ack + 19}")
                              .splitlines()) == 20, "no SYNs")
        else:
            until(lambda: stuck("established", lost_ack) == 20 and stuck("syn-sent", lost_syn_ack) == 20, "no handshakes")
        under_way(near, 400)
        near.remove_device()
        until(lambda: "dup to" not in near.enter("nft", "list", "ruleset"), "the rules stay")
        far.enter("nft", "delete table inet t")
        calling.stdin.write("\n")
        calling.stdin.flush()
        said = calling.communicate(timeout=60)[0]
        print(said)
        ended = eval(said)
        served = {"served": 20}
        assert ended[lost_syn_ack] == served, said
        assert near_calls or ended[lost_ack] == {"reset": 20}, said
        assert set(ended["load"]) <= {"served", "reset"} and ended["load"]["served"] > 20 and ended["load"].get("reset", 0) <= 4, said


def handshakes():
    """A device goes while handshakes are under way: each ends served or reset, none hangs."""
    for v6 in (False, True):
        cut_handshakes(False, v6)
        cut_handshakes(True, v6)


BARREN = """
import os, socket, sys
def of_verbs(fd):
    target = os.readlink(f"/proc/self/fd/{fd}")
    return target == "/dev/null" or target.startswith("pipe:")
before = {fd for fd in range(1024) if os.path.lexists(f"/proc/self/fd/{fd}")}
one, two = (socket.create_server((sys.argv[1], port)) for port in (7100, 7101))
u = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
u.bind((sys.argv[1], 7100))
left = [fd for fd in range(1024) if fd not in before and os.path.lexists(f"/proc/self/fd/{fd}") and of_verbs(fd)]
print(left)
one.accept()[0].sendall(b"served")
"""


def only_rule():
    """The device takes no rule: its queues are given back at once, and what would steer is the kernel's without asking again."""
    for error in ("ENOSPC", "EPERM"):
        with ModelLab() as lab:
            env = {"MLX5_MODEL_REFUSE": f"create_flow:{error}:1", "ACCEL_REQUIRE": "off", "ACCEL_LOG": "warning"}
            errors = open(lab.directory / "stderr", "w+")
            child = lab.near.popen([sys.executable, "-c", BARREN, lab.near.address], accel=True, env=env, stdout=subprocess.PIPE,
                                   stderr=errors, text=True)
            assert child.stdout.readline() == "[]\n", "descriptors of the device are left"
            got = lab.far.run([sys.executable, "-c", "import socket, sys; print(socket.create_connection((sys.argv[1], 7100)).recv(9))",
                               lab.near.address])
            errors.seek(0)
            said = errors.read()
            assert child.wait(20) == 0 and got == "b'served'\n" and said.count("only flow rule is refused") == 1, (got, said)
            assert len(list((lab.near.folder / "report").glob("counters.*"))) == 1, "the device was opened again"


REFUSALS = {  # what the kernel denies: what the line must say
    "reg_mr:ENOMEM": r"frame memory cannot be registered with mlx5_0",
    "create_qp:EPERM": r"raw-packet queues: CAP_NET_RAW of the host",
    "create_flow:EOPNOTSUPP": r"takes no flow rule.*eswitch",
    "create_cq:ENOMEM": r"queues cannot be made on mlx5_0.*smaller rings",
}


def refusals():
    """Each denial has its line, and the program goes on: on the kernel's path where mlx5 is not required."""
    script = ("import socket; s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n"
              "s.bind(('{}', 9100)); s.listen(); print('listening')")
    for refuse, wanted in REFUSALS.items():
        with ModelLab() as lab:
            env = {"MLX5_MODEL_REFUSE": refuse, "ACCEL_PATH": "stack"}
            command = ["/usr/bin/python3", "-c", script.format(lab.near.address)]
            for require in ("mlx5", None):
                child = lab.near.popen(command, accel=True, require=require, env=env, stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT, text=True)
                said = child.communicate(timeout=60)[0]
                print(f"--- {refuse}, required: {require}: {child.returncode}\n{said}")
                if require:
                    assert child.returncode != 0 and re.search(wanted, said), said
                else:
                    assert child.returncode == 0 and "listening" in said, said


def driven_by_mlx5(sys_folder, device):
    (sys_folder / "class" / "net" / device / "device" / "driver").symlink_to("../../drivers/mlx5_core")


def without_module(sys_folder, device):
    """mlx5_core drives the netdev, and there is no RDMA class."""
    shutil.rmtree(sys_folder / "class" / "infiniband")
    shutil.rmtree(sys_folder / "class" / "infiniband_verbs")
    shutil.rmtree(sys_folder / "module")
    driven_by_mlx5(sys_folder, device)


def another_node(sys_folder, _):
    (sys_folder / "class/infiniband_verbs/uverbs0").rename(sys_folder / "class/infiniband_verbs/uverbs7")


def another_major(sys_folder, _):
    (sys_folder / "class/infiniband_verbs/uverbs0/dev").write_text("231:192\n")


def newer_abi(sys_folder, _):
    (sys_folder / "class/infiniband_verbs/abi_version").write_text("7\n")


def no_device(sys_folder, device):
    shutil.rmtree(sys_folder / "class" / "infiniband" / "mlx5_0")
    driven_by_mlx5(sys_folder, device)


def mounted(what):
    return ["unshare", "-m", "sh", "-c", what + ' && exec "$@"', "sh"]


LOCKED_DOWN = mounted("mount -t tmpfs none /sys/kernel && mkdir /sys/kernel/security && "
                      "echo 'none [integrity] confidentiality' > /sys/kernel/security/lockdown")
NO_DRIVERS = mounted("mount -t tmpfs none /etc/libibverbs.d")
NO_LIBRARY = mounted("mount --bind /dev/null $(readlink -f /lib/x86_64-linux-gnu/libibverbs.so.1)")
# What lacks: how sysfs says so, environment, the words that the program is started by, what the line must say, its cure included.
LACKS = {
    "module": (without_module, {}, [], r"mlx5_ib is not loaded: modprobe mlx5_ib ib_uverbs"),
    "signed modules": (without_module, {}, LOCKED_DOWN, r"signed modules only \(Secure Boot\).*mokutil"),
    "ABI": (newer_abi, {}, [], r"verbs ABI is version 7, libibverbs knows 3 to 6"),
    "device": (no_device, {}, [], r"no RDMA device belongs to veth1: devlink.*rdma system set netns shared"),
    "node": (another_node, {}, [], r"/dev/infiniband/uverbs7 does not exist: udevadm trigger"),
    "major": (another_major, {}, [], r"uverbs0 is another driver's device number: remove the stale node"),
    "node's permission": (None, {"MLX5_MODEL_REFUSE": "open:EACCES"}, [], r"uverbs0 may not be opened: chmod 0666"),
    "device that answers": (None, {"MLX5_MODEL_REFUSE": "open:EIO"}, [], r"mlx5_0 does not answer .*: devlink dev reload"),
    "library": (None, {}, NO_LIBRARY, r"libibverbs cannot be loaded .*: apt install libibverbs1"),
    "RDMAV_DRIVERS": (None, {"RDMAV_DRIVERS": "rxe"}, NO_DRIVERS, r"RDMAV_DRIVERS or IBV_DRIVERS is 'rxe', without mlx5"),
    "IBV_DRIVERS": (None, {"IBV_DRIVERS": "siw"}, NO_DRIVERS, r"RDMAV_DRIVERS or IBV_DRIVERS is 'siw', without mlx5"),
    "userspace driver": (None, {}, NO_DRIVERS, r"no userspace driver for mlx5_0: apt install ibverbs-providers"),
    "privilege": (None, {}, ["setpriv", "--bounding-set=-net_raw"], r"CAP_NET_RAW is needed.*AmbientCapabilities"),
    "locked memory": (None, {"MLX5_MODEL_REFUSE": "reg_mr:ENOMEM"}, ["prlimit", "--memlock=65536", "setpriv", "--bounding-set=-ipc_lock"],
                      r"locked memory: 64 KiB allowed, \d+ KiB needed: ulimit -l"),
}
SERVED = "import socket, sys; s = socket.create_server((sys.argv[1], 9100)); print('listening', flush=True); s.accept()[0].sendall(b'served')"
ASK = "import socket, sys; print(socket.create_connection((sys.argv[1], 9100), 20).recv(9))"


def no_bpf(lab):
    """mlx5 has no use for it."""
    served = lab.near.popen(["setpriv", "--bounding-set=-bpf,-sys_admin", "/usr/bin/python3", "-c", SERVED, lab.near.address], accel=True,
                            stdout=subprocess.PIPE, text=True)
    assert served.stdout.readline() == "listening\n"
    assert lab.far.run([sys.executable, "-c", ASK, lab.near.address]).strip() == "b'served'" and served.wait(20) == 0


def without(lab, what):
    """The line is said once; where mlx5 is required nothing is served, where not, another path serves."""
    change, env, words, wanted = LACKS[what]
    link = json.loads(lab.near.ip("-j", "link", "show", "dev", lab.near.device))[0]
    shutil.rmtree(lab.near.folder / "sys")
    sysfs.write(lab.near.folder / "sys", lab.near.device, link["ifindex"], link["address"])
    if change:
        change(lab.near.folder / "sys", lab.near.device)
    command = [*words, "/usr/bin/python3", "-c", SERVED, lab.near.address]
    said = lab.near.run(command, accel=True, env=env, check=False, timeout=20)
    lines = [line for line in said.splitlines() if re.search(wanted, line)]
    assert len(lines) == 1 and "listening" not in said, (what, said)
    print(f"--- no {what}\n{lines[0]}")
    errors = open(lab.directory / "stderr", "w+")
    child = lab.near.popen(command, accel=True, require=None, env={**env, "ACCEL_LOG": "info"}, stdout=subprocess.PIPE,
                           stderr=errors, text=True)
    assert child.stdout.readline() == "listening\n", (what, open(errors.name).read())
    assert lab.far.run([sys.executable, "-c", ASK, lab.near.address]).strip() == "b'served'"
    assert child.wait(20) == 0
    lines = [line for line in open(errors.name).read().splitlines() if re.search(wanted, line)]
    assert len(lines) == 1, (what, open(errors.name).read())


def lacks():
    """Each thing that may lack is told apart with its cure, in one line, and the program is served by another path; or not, where mlx5
    is required."""
    with ModelLab() as lab:
        # libibverbs adds what these name to what its configuration does: so it is here.
        for variable in ("RDMAV_DRIVERS", "IBV_DRIVERS"):
            served = lab.near.popen([*NO_DRIVERS, "/usr/bin/python3", "-c", SERVED, lab.near.address], accel=True, env={variable: "mlx5"},
                                    stdout=subprocess.PIPE, text=True)
            assert served.stdout.readline() == "listening\n", variable
            assert lab.far.run([sys.executable, "-c", ASK, lab.near.address]).strip() == "b'served'" and served.wait(20) == 0
        no_bpf(lab)
        for what in LACKS:
            without(lab, what)


def lacks_under_load():
    """The same while another process receives by the NIC, which goes on."""
    def meanwhile(lab, receiver):
        for what in LACKS:
            before = lab.near.counters(receiver.pid).get("rx_bytes", 0)
            without(lab, what)
            until(lambda: lab.near.counters(receiver.pid).get("rx_bytes", 0) > before + (1 << 18), f"traffic beside {what}", 20)
    stream(meanwhile=meanwhile)


if __name__ == "__main__":
    if os.geteuid() != 0:
        print("needs root")
        sys.exit(77)
    globals()[sys.argv[1].replace("-", "_")]()
