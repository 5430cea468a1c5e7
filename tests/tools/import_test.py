"""accel import: every kind of source, in the syntax of its owner's documents; what comes out is read by libaccel without a complaint."""
import argparse
import json
import os
import re
import sys
import tempfile
import tomllib

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tools_test import call, expect  # noqa: E402

VMA = """# comment
application-id * *
log destination stderr min-level 8
use os udp_connect *:53
use os tcp_server *:5001

application-id tcp_lat\tB1
  use vma tcp_client 192.168.1.0/24:*:*:*
use os tcp_client 10.0.0.5:80-90
use vma udp_receiver 224.4.1.3:*
use sdp tcp_server *:*
use vma tcp_client 1.2.3.4:80:10.0.0.1:*
use vma tcp_servr *:80
use vma tcp_server 1.2.3.400:80
nonsense
"""
ENVIRONMENT = """
export VMA_RX_POLL=-1   # for ever
VMA_SELECT_POLL=100
VMA_TRACELEVEL=3 VMA_SPEC=latency
XLIO_TX_WRE=64000
XLIO_MEM_ALLOC_TYPE=2
XLIO_MEMORY_LIMIT=2GB
XLIO_TSO=auto
XLIO_TCP_CC_ALGO=1
VMA_RX_POL=3
VMA_STRQ=perhaps
Environment="XLIO_INLINE_CONFIG=performance.polling.iomux.poll_usec=50, core.no.such=1"
PATH=/usr/bin
"""
XLIO = {
    "acceleration_control": {"default_acceleration": False, "app_id": "X",
                             "rules": [{"id": "A1", "name": "nginx", "actions": ["use xlio tcp_server *:8080", "use os udp_sender *:*"]}]},
    "core": {"resources": {"memory_limit": "4GB", "hugepages": {"enable": True}}},
    "network": {"protocols": {"tcp": {"nodelay": {"enable": True}, "congestion_control": "cubic", "wmem": "2MB"}}},
    "performance": {"polling": {"iomux": {"poll_usec": -1}}, "rings": {"rx": {"allocation_logic": "per_thread", "ring_elements_count": 1024}}},
    "applications": {"nginx": {"workers_num": 8}}, "profiles": {"spec": "nginx"}, "monitor": {"log": {"level": "info"}}, "made": {"up": 1}}
ONLOAD = """# SPDX
onload_set EF_POLL_USEC 100000
onload_set EF_TCP_FASTSTART_INIT 0
onload_set EF_CLUSTER_SIZE "$num_workers"
onload_set EF_INTERFACE_WHITELIST "eth0 eth1"
onload_set EF_INTERFACE_BLACKLIST eth2
onload_set EF_MAX_ENDPOINTS 99999999
##onload_set EF_TCP_INITIAL_CWND 100000
onload_import other
onload_import absent
onload_set EF_POL_USEC 1
if [ -z "$X" ]; then
onload_set EF_RXQ_SIZE 4096
fi
"""


def run(o, text, name="source", others=None, **options):
    """What comes out as data and as text; libaccel takes it without a word."""
    with tempfile.TemporaryDirectory() as d:
        for file, content in {name: text, **(others or {})}.items():
            with open(os.path.join(d, file), "w") as out:
                out.write(content)
        done = call(o.tool, "import", os.path.join(d, name), **options)
        expect(done.returncode == 0 and not done.stderr, done)
        result = os.path.join(d, "libaccel.toml")
        with open(result, "w") as out:
            out.write(done.stdout)
        said = json.loads(call(o.tool, "check", "--json", env={"ACCEL_CONFIG": result}).stdout)["configuration"]
        expect(said == [{"level": "ok", "what": result, "cure": ""}], said, done.stdout)
        return tomllib.loads(done.stdout), done.stdout.replace(d + "/", "")


def test_vma(o):
    data, text = run(o, VMA, "libvma.conf")
    first, everybody = data["application"]
    expect((first["name"], first["user_id"]) == ("tcp_lat", "B1") and everybody["name"] == "*" and "user_id" not in everybody, data)
    everybodys = [{"role": "udp_connect", "ports": "53", "path": "kernel"}, {"role": "tcp_server", "ports": "5001", "path": "kernel"}]
    expect(everybody["rule"] == everybodys, everybody)
    # The rules for every program come first in the file, so they win for this one as well.
    expect(first["rule"] == everybodys + [{"role": "tcp_client", "address": "192.168.1.0/24", "path": "auto"},
                                          {"role": "tcp_client", "address": "10.0.0.5", "ports": "80-90", "path": "kernel"},
                                          {"role": "udp_receiver", "address": "224.4.1.3", "path": "auto"}], first)
    expect("[[application.rule]]  # libvma.conf:9: use os tcp_client 10.0.0.5:80-90\n" in text, text)
    for line, why in ((3, "setting log"), (11, "no such transport"), (12, "remote end of clients only"), (13, "tcp_servr is not a role"),
                      (14, "an IPv4 address"), (15, "not understood")):
        expect(re.search(rf"^#   libvma\.conf:{line}: .*{why}", text, re.M), line, why, text)


def test_environment(o):
    data, text = run(o, ENVIRONMENT)
    expect(data["default"] == {"profile": "latency", "spin": 50, "log": "info", "tx_ring": 32768, "huge_pages": True, "frames": 524288}, data)
    for what in ("source:2: export VMA_RX_POLL=-1", "is replaced by a later line", "VMA_RX_POL=3: not a known setting; meant is perhaps VMA_RX_POLL",
                 "perhaps is not a value of it", "core.no.such=1: not a known setting", "net.ipv4.tcp_congestion_control", "64-32768 is allowed"):
        expect(what in text, what, text)
    expect("PATH" not in text, text)
    done = call(o.tool, "import", "--environment", env={"VMA_RX_POLL": "7", "EF_RXQ_SIZE": "512"})
    expect(done.returncode == 0 and "spin = 7  # environment: VMA_RX_POLL=7" in done.stdout and "rx_ring = 512" in done.stdout, done)


def test_json(o):
    data, text = run(o, json.dumps(XLIO))
    expect(data["default"] == {"path": "kernel", "profile": "nginx", "spin": 1000000, "frames": 1048576, "huge_pages": True, "send_buffer": 2097152,
                               "rx_ring": 1024, "log": "info"}, data)
    expect(data["application"] == [{"name": "nginx", "user_id": "A1", "rule": [{"role": "tcp_server", "ports": "8080", "path": "auto"},
                                                                             {"role": "udp_sender", "path": "kernel"}]}], data)
    expect("source: performance.rings.rx.allocation_logic = per_thread: a process has one queue pair" in text, text)
    expect("made.up = 1: not a known setting" in text and "applications.nginx.workers_num = 8" in text, text)
    broken = run(o, '{"core": [')[1]
    expect("not JSON: nothing of it was read" in broken, broken)


def test_onload(o):
    data, text = run(o, ONLOAD, "mine.opf", {"other.opf": "onload_set EF_TXQ_SIZE 1024\nonload_import mine\n"})
    expect(data["default"] == {"spin": 100000, "devices": "eth0,eth1,!eth2", "max_connections": 16777216, "tx_ring": 1024, "rx_ring": 4096}, data)
    for what in ("mine.opf:4: onload_set EF_CLUSTER_SIZE \"$num_workers\": the value is the shell's", "tx_ring = 1024  # other.opf:1:",
                 "mine.opf:10: onload_import absent: that profile is not beside this file", "EF_POL_USEC 1: not a known setting; meant is perhaps EF_POLL_USEC",
                 "mine.opf:12: if [ -z \"$X\" ]; then: not understood, or a shell's", "as the kernel's TCP does"):
        expect(what in text, what, text)
    expect("INITIAL_CWND" not in text, text)


def test_every_name(o):
    """Each setting of the table is known by its name and says something; none is lost."""
    with open(os.path.join(o.source, "src/tools/import.def")) as file:
        table = file.read()
    xlio = [n for n in re.findall(r'^XLIO_SETTING\("[^"]*", "(\w+)"', table, re.M) if n != "INLINE_CONFIG"]
    onload = re.findall(r'^ONLOAD_SETTING\("(\w+)"', table, re.M)
    expect(len(xlio) > 130 and len(onload) > 200, len(xlio), len(onload))
    for names in ([f"XLIO_{n}" for n in xlio], [f"VMA_{n}" for n in xlio], onload):
        for value in ("1", "-1", "eth0", ""):
            _, text = run(o, "".join(f"{name}={value}\n" for name in names))
            for name in names:
                expect(f"{name}={value}" in text, name, value)
            expect("not a known setting" not in text, text)


def test_hostile(o):
    expect(call(o.tool, "import", "/nonexistent").returncode == 1 and not call(o.tool, "import", "/nonexistent").stdout)
    expect(call(o.tool, "import").returncode == 2)
    for text in ("application-id \"x\\\" \x01\n use os tcp_server *:1\n", "application-id\n", "use\n", "=\n=1\n", "\0\n", "use os tcp_server :::\n",
                 "EF_INTERFACE_WHITELIST=\"a\\\"b \x07\"\n", "VMA_TX_WRE=99999999999999999999999\n", "XLIO_MEMORY_LIMIT=9999999TB\n", "[" * 100000,
                 '{"a":' * 5000, "x" * 1000000):
        run(o, text)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for path in ("tool", "source"):
        parser.add_argument("--" + path, required=True)
    options = parser.parse_args()
    for name, test in list(globals().items()):
        if name.startswith("test_"):
            test(options)
