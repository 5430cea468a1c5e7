"""A QEMU guest that runs the kernel's siw, on a TAP device in this process's network namespace (see make_guest)."""
import os
import pathlib
import queue
import shutil
import socket
import subprocess
import tempfile
import threading
import time

HERE = pathlib.Path(__file__).resolve().parent
HOST_ADDRESS, GUEST_ADDRESS = "10.78.0.1", "10.78.0.2"
QEMU = "qemu-system-x86_64"
SHELL_PORTS = range(9000, 9008)  # as in guest_init
BOOT_SECONDS = 180  # 15 to 30 when nobody else computes


def missing():
    """Why there can be no guest here; None when there can."""
    for tool in (QEMU, "cpio", "make", "gcc-12", "xz", "rstream"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed (scripts/install_packages interop)"
    if os.geteuid() != 0:
        return "a TAP device needs root"
    if not os.path.exists("/dev/net/tun"):
        return "no /dev/net/tun"
    return None


class GuestFailed(AssertionError):
    pass


class Command:
    """A shell command in the guest: `output` grows while it runs, `status` is there when it has ended."""

    def __init__(self, guest, text):
        self.text, self.output, self.status = text, "", None
        self._guest, self._port = guest, guest.shells.get(timeout=60)
        self._socket = guest._connect(self._port)
        script = f"( exec 2>&1 < /dev/null; {text}\n)\necho \"status=$?\"\n"
        self._socket.sendall(script.encode())
        self._socket.shutdown(socket.SHUT_WR)
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self):
        raw = b""
        while piece := self._receive():
            raw += piece
            self.output = raw.decode(errors="replace")
        head, mark, status = self.output.rpartition("status=")
        if mark:
            self.output, self.status = head, int(status)
        self._socket.close()
        self._guest.shells.put(self._port)

    def _receive(self):
        try:
            return self._socket.recv(65536)
        except OSError:
            return b""

    def wait(self, seconds):
        """The exit status; None when it has not ended by then."""
        self._reader.join(seconds)
        return self.status


class Guest:
    """`keep` is the folder for its console, should it answer no more."""

    def __init__(self, folder, keep, module="siw", cpus=1, mtu=1500):
        self.folder, self.keep, self.module, self.cpus, self.mtu = pathlib.Path(folder), pathlib.Path(keep), module, cpus, mtu

    def __enter__(self):
        self.shells = queue.Queue()  # ports of those that are idle
        for port in SHELL_PORTS:
            self.shells.put(port)
        self._files = tempfile.TemporaryDirectory(prefix="interop-")
        self.console = pathlib.Path(self._files.name) / "console"
        for words in (["link", "set", "lo", "up"], ["tuntap", "add", "tap0", "mode", "tap"], ["link", "set", "tap0", "mtu", str(self.mtu), "up"],
                      ["address", "add", HOST_ADDRESS + "/24", "dev", "tap0"]):
            subprocess.run(["ip", *words], check=True)
        # loglevel: a transmit queue that stands still is a warning.
        append = f"console=ttyS0 loglevel=5 panic=-1 mitigations=off siw={self.module} address={GUEST_ADDRESS}/24 mtu={self.mtu}"
        # One CPU more than it has, that never comes: for a machine of a single CPU QEMU before 8.1 leaves the guest's memory barriers out
        # (tcg_gen_mb()), although its devices run in a thread beside it: virtio-net loses a notification, and with it the network, in minutes.
        self._qemu = subprocess.Popen(
            [QEMU, "-accel", "tcg", "-cpu", "max", "-smp", f"{self.cpus},maxcpus={self.cpus + 1}", "-m", "256", "-display", "none",
             "-nodefaults", "-no-reboot", "-kernel", self.folder / "vmlinuz", "-initrd", self.folder / "initrd", "-append", append,
             "-serial", f"file:{self.console}",
             "-netdev", "tap,id=n,ifname=tap0,script=no,downscript=no", "-device", "virtio-net-pci,netdev=n,romfile="],
            stdin=subprocess.DEVNULL)
        try:
            self._await_boot()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        self._qemu.kill()
        self._qemu.wait()
        subprocess.run(["ip", "link", "del", "tap0"], check=True)
        self._files.cleanup()

    def _await_boot(self):
        deadline = time.monotonic() + BOOT_SECONDS
        while "guest is up" not in (text := self.console.read_text(errors="replace") if self.console.exists() else ""):
            if self._qemu.poll() is not None or time.monotonic() > deadline:
                raise GuestFailed(f"the guest did not come up; its console:\n{text}")
            time.sleep(0.2)
        if "siw0/1 state ACTIVE" not in text:
            raise GuestFailed(f"the guest has no siw0; its console:\n{text}")

    def _connect(self, port):
        """To the shell of that port, which may have to be born again after its last command."""
        deadline = time.monotonic() + 20
        while True:
            try:
                connection = socket.create_connection((GUEST_ADDRESS, port), timeout=5)
                connection.settimeout(None)
                return connection
            except OSError:
                if time.monotonic() > deadline:
                    shutil.copy(self.console, self.keep / f"{self.module}.console")
                    raise
                time.sleep(0.05)

    def start(self, text):
        return Command(self, text)

    def run(self, text, seconds=60):
        """Output of a command that must succeed."""
        command = Command(self, text)
        if command.wait(seconds) != 0:
            raise GuestFailed(f"in the guest: {text}: status {command.status}\n{command.output}")
        return command.output

    def await_listener(self, port):
        self.run(f"until grep -q ':{port:04X} .* 0A ' /proc/net/tcp /proc/net/tcp6; do sleep 0.05; done")
