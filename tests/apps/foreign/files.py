"""Files and shells. All fork for each connection: the child's first use of it hands it to the kernel. tftpd's child has a socket of its
own, and has given up root by then."""
import hashlib
import os
import subprocess

from .site import Program

CONTENT = "".join(f"{i} some text of a file\n" for i in range(60000)).encode()


def tree(site):
    for i in range(8):
        site.file(f"served/sub{i % 3}/file{i}", CONTENT[: 1 << (13 + i)])
    return site.directory / "served"


def listing(path):
    """A folder's files and their sums."""
    return "\n".join(f"{p.relative_to(path)} {hashlib.sha256(p.read_bytes()).hexdigest()}" for p in sorted(path.rglob("*")) if p.is_file())


def rsync(site):
    return ["rsync", "--daemon", "--no-detach", "--config", site.file("conf", f"""
address = {site.address}
port = {site.port}
use chroot = no
log file = {site.directory}/log
[files]
path = {tree(site)}
uid = nobody
gid = nogroup
"""), "--log-file-format="]


def mirrored(site):
    said = "".join(site.client("rsync", "-rt", f"--port={site.port}", f"rsync://{site.address}/files/", f"{site.directory}/copy/")
                   for _ in range(2))
    return said + listing(site.directory / "copy")


def openssh(site):
    for name in ("host", "user"):
        os.system(f"ssh-keygen -q -t ed25519 -N '' -f {site.directory}/{name}")
    (site.directory / "user.pub").rename(site.directory / "keys")
    os.makedirs("/run/sshd", exist_ok=True)
    tree(site)
    return ["/usr/sbin/sshd", "-D", "-e", "-f", site.file("conf", f"""
ListenAddress {site.address}
Port {site.port}
HostKey {site.directory}/host
PidFile none
AuthorizedKeysFile {site.directory}/keys
StrictModes no
PermitRootLogin yes
UsePAM no
Subsystem sftp internal-sftp
""")]


def logged_in(site):
    to = ["-F", "none", "-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR",
          "-i", f"{site.directory}/user", ]
    host = f"root@{site.address}"
    said = site.client("ssh", *to, "-p", str(site.port), host, "cat; echo $?; false || echo ended", text="some input\n" * 5000)
    said += site.client("sftp", "-b", "-", *to, "-P", str(site.port), host, text=f"get -r {site.directory}/served {site.directory}/copy\n")
    return said.replace(str(site.directory), "") + listing(site.directory / "copy")


def vsftpd(site):
    return ["vsftpd", site.file("conf", f"""
listen=YES
background=NO
listen_address={site.address}
listen_port={site.port}
anonymous_enable=YES
anon_root={tree(site)}
no_anon_password=YES
xferlog_enable=NO
secure_chroot_dir={site.folder("empty")}
pasv_address={site.address}
seccomp_sandbox=NO
ftpd_banner=test
""", 0o600)]


def by_ftp(site):
    url = f"ftp://{site.address}:{site.port}"
    found = site.client("curl", "-sS", "--max-time", "30", "-l", f"{url}/", f"{url}/sub0/")
    for name in ("sub0/file0", "sub1/file7"):
        found += hashlib.sha256(site.client("curl", "-sS", "--max-time", "30", f"{url}/{name}").encode()).hexdigest()
    return found


def samba(site):
    for name in ("private", "state", "cache", "lock", "pid"):
        site.folder(name)
    conf = site.file("conf", f"""
[global]
bind interfaces only = yes
interfaces = {site.address}/24
smb ports = {site.port}
private dir = {site.directory}/private
state directory = {site.directory}/state
cache directory = {site.directory}/cache
lock directory = {site.directory}/lock
pid directory = {site.directory}/pid
ncalrpc dir = {site.directory}/pid
log level = 0
log file = {site.directory}/log
map to guest = bad user
load printers = no
disable spoolss = yes
[files]
path = {tree(site)}
guest ok = yes
""")
    return ["smbd", "--foreground", "--no-process-group", "--debug-stdout", f"--configfile={conf}"]


def by_smb(site):
    site.folder("copy")
    said = site.client("smbclient", "-N", "-p", str(site.port), f"//{site.address}/files", "-s", "/dev/null", "-c",
                       f"lcd {site.directory}/copy; prompt; recurse; mget *")
    return str("NT_STATUS" in said) + listing(site.directory / "copy")


def tftpd(site):
    return ["in.tftpd", "--foreground", "--secure", "--ipv4", "--user", "nobody", "--address", f"{site.address}:{site.port}", tree(site)]


# A transfer that has its first block and goes on when told to: tftpd's child is there meanwhile. RFC 1350.
BEGUN_TRANSFER = """
import socket, struct, sys
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
s.sendto(struct.pack("!H", 1) + b"sub0/file0\\0octet\\0", (sys.argv[1], int(sys.argv[2])))
block, child = s.recvfrom(516)
print(len(block), flush=True)
sys.stdin.readline()
s.sendto(struct.pack("!HHx", 5, 0), child)
"""


def by_tftp(site):
    begun = site.beside(site.lab.far, ["/usr/bin/python3", "-c", BEGUN_TRANSFER, site.address, site.port],
                        stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    size = begun.stdout.readline().decode()
    site.look()
    begun.communicate(b"\n", timeout=30)
    return size + "".join(
        hashlib.sha256(site.client("curl", "-sS", "--max-time", "30", f"tftp://{site.address}:{site.port}/{name}").encode()).hexdigest()
        for name in ("sub0/file0", "sub1/file4", "sub1/file7"))


PROGRAMS = [
    Program("rsync", "rsync", 873, rsync, mirrored, server_kernel="handed_back",
            client_kernel="its receiver and generator are two processes with one connection"),
    Program("openssh", "openssh-server", 2222, openssh, logged_in, needs=("ssh", "sftp"), server_kernel="handed_back"),
    Program("vsftpd", "vsftpd", 2121, vsftpd, by_ftp, server_kernel="handed_back"),
    Program("samba", "samba", 445, samba, by_smb, needs=("smbclient",), server_kernel="handed_back"),
    Program("tftpd", "tftpd-hpa", 69, tftpd, by_tftp, transport="u", server_kernel="no_privilege"),
]
