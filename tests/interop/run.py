#!/usr/bin/env python3
"""Soft-iWARP against the kernel's siw in a QEMU guest, both directions: rping, rstream with verification, programs under librspreload.

usage: run.py [-v] [Class[.test]...]      Skipped, with status 0 and a line that says why, where there can be no guest.

Nothing is tried again: what fails leaves in $INTEROP_KEEP (default: a new folder in /tmp) what passed on the wire, a bad FPDU itself, and the console
of a guest that no longer answers.

A machine that stands still for ten seconds breaks a connection in set-up: the guest's clock goes on, and siw waits no longer for MPA's reply.
librspreload then connects by plain TCP to our listener, which has its one connection: "connect: Connection refused" in the guest, while the trace
ends with our reply.
"""
import hashlib
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

import guest
from guest import GUEST_ADDRESS, HOST_ADDRESS

HERE = pathlib.Path(__file__).resolve().parent
BUILD = pathlib.Path(os.environ.get("LAB_BUILD", HERE.parents[1] / "build-release"))
KEEP = os.environ.get("INTEROP_KEEP")
RPING_PORT, RSTREAM_PORT, PORT = 7174, 7471, 7000
SIZE = 2_000_000
SECONDS = 90  # for one exchange; it takes one to five
# siw as acceptor grants every wish.
OUR_SETTINGS = [{"crc": crc, "rtr": rtr} for crc, rtr in itertools.product(["off", "on"], ["none", "write", "read"])]


class Peer:
    """Our end of a conversation (interop_peer)."""

    def __init__(self, what, stdin=subprocess.DEVNULL, **options):
        words = [w for name, value in options.items() for w in ("--" + name.replace("_", "-"), str(value))]
        self._process = subprocess.Popen([BUILD / "bin" / "interop_peer", what, "--keep", KEEP, *words], stdin=stdin, stdout=subprocess.PIPE,
                                         stderr=subprocess.PIPE)
        if "-server" in what:
            assert self._process.stderr.readline() == b"listening\n"

    def ended_within(self, seconds):
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def result(self):
        """What it says of the connection; `output` is then what it wrote."""
        try:
            self.output, said = self._process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            raise
        return json.loads(said.splitlines()[-1])


class Program:
    """An unmodified program of this host under libaccel, which must speak iWARP."""

    def __init__(self, *words, stdin=subprocess.DEVNULL, **settings):
        env = dict(os.environ, LD_PRELOAD=str(BUILD / "lib" / "libaccel.so"), ACCEL_CONFIG="/dev/null", ACCEL_IWARP="require",
                   ACCEL_LOG="info", **settings)
        self._process = subprocess.Popen(list(map(str, words)), stdin=stdin, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=env)

    def await_listener(self, port):
        deadline = time.monotonic() + SECONDS
        while f":{port:04X} 00000000:0000 0A" not in pathlib.Path("/proc/net/tcp").read_text():
            assert self._process.poll() is None and time.monotonic() < deadline, "it does not listen"
            time.sleep(0.02)

    def wait(self):
        """Its status, `output` and `errors`."""
        try:
            self.output, self.errors = self._process.communicate(timeout=SECONDS)
        except subprocess.TimeoutExpired:
            self.stop()
            raise
        return self._process.returncode

    def stop(self):
        self._process.kill()
        self._process.communicate()


class Siw:
    """What both builds of siw must do; the guest is booted once a class, with one CPU (which provokes siw's lost wake-up)."""

    @classmethod
    def setUpClass(cls):
        cls.guest = guest.Guest(cls.folder, KEEP, module=cls.module)
        cls.guest.__enter__()
        cls.addClassCleanup(cls.guest.__exit__)

    def we_connect(self, program, port, what, **options):
        """A server in the guest, our client; returns what our client says."""
        server = self.guest.start(program)
        self.guest.await_listener(port)
        self.peer = Peer(what, address=GUEST_ADDRESS, port=port, **options)
        said = self.peer.result()
        self.assertEqual(said["error"], "", server.output)
        return said, server

    def they_connect(self, program, port, what, **options):
        self.peer = Peer(what, port=port, **options)
        client = self.guest.start(program)
        said = self.peer.result()
        self.assertEqual(client.wait(SECONDS), 0, f"{client.output}\n{said}")
        self.assertEqual(said["error"], "", client.output)
        return said

    def check_agreement(self, said, setting, they_want_crc=False):
        self.assertEqual(said["crc"], setting["crc"] == "on" or they_want_crc)
        self.assertEqual(said["rtr"], setting["rtr"])

    def test_we_rping(self):
        for setting in OUR_SETTINGS:
            with self.subTest(**setting):
                said, server = self.we_connect("rping -s -C 3 -S 5000 -v", RPING_PORT, "rping-client", count=3, size=5000, **setting)
                server.wait(SECONDS)  # its status says only that the client went away
                self.assertEqual(server.output.count("server ping data: rdma-ping-"), 3, server.output)
                self.check_agreement(said, setting)

    def test_we_rstream(self):
        for setting in OUR_SETTINGS:
            with self.subTest(**setting):
                said, server = self.we_connect("rstream -T v -S 10000 -C 50 -I 2", RSTREAM_PORT, "stream-client", size=10000, count=50,
                                               iterations=2, **setting)
                self.assertEqual(server.wait(SECONDS), 0, server.output)
                self.check_agreement(said, setting)

    def test_we_rstream_in_large_frames(self):
        said, server = self.we_connect("rstream -T v -T b -S 65536 -C 100 -I 1", RSTREAM_PORT, "stream-client", size=65536, count=100, fpdu=65000,
                                       crc="on")
        self.assertEqual(server.wait(SECONDS), 0, server.output)
        self.assertTrue(said["crc"])

    def test_they_rping(self):
        for setting in self.their_settings:
            with self.subTest(**setting):
                said = self.they_connect(f"rping -c -a {HOST_ADDRESS} -V -C 3 -S 5000", RPING_PORT, "rping-server", count=3, size=5000, **setting)
                self.check_agreement(said, setting, self.wants_crc)

    def test_they_rstream(self):
        for setting in self.their_settings:
            with self.subTest(**setting):
                said = self.they_connect(f"rstream -s {HOST_ADDRESS} -T v -S 10000 -C 50 -I 2", RSTREAM_PORT, "stream-server", size=10000, count=50,
                                         iterations=2, **setting)
                self.check_agreement(said, setting, self.wants_crc)

    def make_files(self):
        """The sum of a new file in the guest, and bytes of ours."""
        self.guest.run(f"dd if=/dev/urandom of=/tmp/theirs bs=1000 count={SIZE // 1000}; rm -f /tmp/ours")
        return self.guest.run("sha256sum < /tmp/theirs").split()[0], os.urandom(SIZE)

    def check_files(self, we_send, theirs, ours, received):
        if we_send:
            self.assertEqual(self.guest.run("sha256sum < /tmp/ours").split()[0], hashlib.sha256(ours).hexdigest())
        else:
            self.assertEqual(hashlib.sha256(received).hexdigest(), theirs)

    @staticmethod
    def netcat(we_connect, we_send):
        where = f"listen 0.0.0.0 {PORT}" if we_connect else f"connect {HOST_ADDRESS} {PORT}"
        return f"LD_PRELOAD=/lib/librspreload.so netcat {where} " + ("receive > /tmp/ours" if we_send else "send < /tmp/theirs")

    def test_plain_programs(self):
        """An ordinary program of the guest under librspreload, two megabytes each way; who connects and who sends, in all four ways."""
        theirs, ours = self.make_files()
        for crc, we_connect, we_send in itertools.product(["off", "on"], [True, False], [True, False]):
            with self.subTest(crc=crc, we_connect=we_connect, we_send=we_send), tempfile.TemporaryFile() as file:
                file.write(ours)
                file.seek(0)
                setting = dict(self.their_settings[0], crc=crc)
                what = ("send-" if we_send else "receive-") + ("client" if we_connect else "server")
                if we_connect:
                    _, server = self.we_connect(self.netcat(we_connect, we_send), PORT, what, stdin=file, **setting)
                    self.assertEqual(server.wait(SECONDS), 0, server.output)
                else:
                    self.they_connect(self.netcat(we_connect, we_send), PORT, what, stdin=file, **setting)
                self.check_files(we_send, theirs, ours, self.peer.output)

    def test_accelerated_programs(self):
        """The same program at both ends: under librspreload there, under libaccel here."""
        theirs, ours = self.make_files()
        netcat = BUILD / "bin" / "interop_netcat"
        for crc, we_connect, we_send in itertools.product(["0", "1"], [True, False], [True, False]):
            with self.subTest(crc=crc, we_connect=we_connect, we_send=we_send), tempfile.TemporaryFile() as file:
                file.write(ours)
                file.seek(0)
                words = [netcat, "connect" if we_connect else "listen", GUEST_ADDRESS if we_connect else HOST_ADDRESS, PORT,
                         "send" if we_send else "receive"]
                if we_connect:
                    there = self.guest.start(self.netcat(we_connect, we_send))
                    self.guest.await_listener(PORT)
                    here = Program(*words, stdin=file, ACCEL_IWARP_CRC=crc)
                else:
                    here = Program(*words, stdin=file, ACCEL_IWARP_CRC=crc)
                    here.await_listener(PORT)
                    there = self.guest.start(self.netcat(we_connect, we_send))
                self.assertEqual(here.wait(), 0, here.errors)
                self.assertEqual(there.wait(SECONDS), 0, there.output)
                self.check_files(we_send, theirs, ours, here.output)

    def test_accelerated_rstream(self):
        """rstream on plain sockets here; on rsockets there, where it has the last word, closes and exits at once. Whatever came to its siw after
        that, such as credits, would make the guest's TCP reset the connection and drop the last bytes (rsocket.h grant_late())."""
        rstream = "rstream -T v -S 10000 -C 50 -I 2"
        for we_connect in [True, False] * 3:
            with self.subTest(we_connect=we_connect):
                if we_connect:
                    there = self.guest.start(rstream)
                    self.guest.await_listener(RSTREAM_PORT)
                    here = Program(*rstream.split(), "-T", "s", "-s", GUEST_ADDRESS)
                else:
                    here = Program(*rstream.split(), "-T", "s")
                    here.await_listener(RSTREAM_PORT)
                    there = self.guest.start(f"{rstream} -s {HOST_ADDRESS}")
                self.assertEqual(here.wait(), 0, f"{here.errors}\n{there.output}")
                self.assertEqual(there.wait(SECONDS), 0, there.output)

    def test_accelerated_redis(self):
        """redis-server under libaccel (epoll, non-blocking), redis-cli in the guest."""
        theirs, _ = self.make_files()
        server = Program("redis-server", "--bind", HOST_ADDRESS, "--save", "", "--protected-mode", "no")
        self.addCleanup(server.stop)
        server.await_listener(6379)
        cli = f"LD_PRELOAD=/lib/librspreload.so redis-cli -h {HOST_ADDRESS} "
        self.assertEqual(self.guest.run(cli + "ping", SECONDS), "PONG\n")
        self.assertEqual(self.guest.run(cli + "-x set theirs < /tmp/theirs", SECONDS), "OK\n")
        got = self.guest.run(cli + f"--raw get theirs | head -c {SIZE} | sha256sum", SECONDS)
        self.assertEqual(got.split()[0], theirs)

    def test_lost_wakeup(self):
        """As acceptor siw drops the event of what arrives while its program's modify_qp() holds the queue pair's lock (siw_qp_llp_data_ready()):
        the bytes lie in its socket until more come. One connection in three to ten; none in dozens where a first message is agreed, as the
        library always asks for. The empty Write that we send after three seconds of silence gets it going."""
        unread = f"sleep 1; awk '$2 ~ /:{RPING_PORT:04X}$/ && $4 == \"01\" && $5 !~ /:00000000$/' /proc/net/tcp | wc -l"
        slept = 0
        for _ in range(100):
            server = self.guest.start("rping -s -C 1")
            self.guest.await_listener(RPING_PORT)
            peer = Peer("rping-client", address=GUEST_ADDRESS, port=RPING_PORT, count=1, size=64, rtr="none", kick_after=3000)
            if not peer.ended_within(0.5):
                slept = int(self.guest.run(unread))
            said = peer.result()
            self.assertEqual(said["error"], "", server.output)
            server.wait(SECONDS)
            if slept and said["kicks"]:
                return
        self.fail("not provoked in 100 connections")


class Stock(Siw, unittest.TestCase):
    """siw as Debian's source has it: no CRC unless asked, and it asks for no peer-to-peer set-up itself."""
    module, wants_crc = "siw", False
    their_settings = [{"crc": "off", "rtr": "none"}, {"crc": "on", "rtr": "none"}]


class Rnic(Siw, unittest.TestCase):
    """siw that asks for CRCs and peer-to-peer set-up, as RDMA NICs do; which first message, we choose."""
    module, wants_crc = "siw-rnic", True
    their_settings = [{"crc": crc, "rtr": rtr} for crc in ("off", "on") for rtr in ("write", "read")]


def main():
    why = guest.missing()
    if why:
        print(f"SKIPPED: interoperability with the kernel's siw: {why}")
        return
    if os.environ.get("INTEROP_NAMESPACE") != "yes":  # a namespace of our own: it goes with us
        os.environ["INTEROP_NAMESPACE"] = "yes"
        os.environ["INTEROP_KEEP"] = KEEP or tempfile.mkdtemp(prefix="interop-kept-")
        # Before: it may have to fetch packages, which needs the host's network.
        os.environ["INTEROP_GUEST"] = subprocess.run([HERE / "make_guest"], check=True, stdout=subprocess.PIPE, text=True).stdout.strip()
        os.execvp("unshare", ["unshare", "--net", sys.executable, "-B", *sys.argv])
    Siw.folder = os.environ["INTEROP_GUEST"]
    os.makedirs(KEEP, exist_ok=True)
    program = unittest.main(verbosity=2, exit=False)
    if not os.listdir(KEEP):
        os.rmdir(KEEP)
    sys.exit(not program.result.wasSuccessful())


if __name__ == "__main__":
    main()
