"""Time, authentication, relays, streams, monitoring, tunnels."""
import hashlib
import os
import re

from .site import Program, until


def chrony(site):
    """-x: the clock is left alone. It asks for time stamps of what it sends (SO_TIMESTAMPING), which are the kernel's."""
    site.give_to("_chrony")
    return ["chronyd", "-d", "-x", "-u", "_chrony", "-f", site.file("conf", f"""
local stratum 8
allow
bindaddress {site.address}
cmdport 0
pidfile {site.directory}/pid
driftfile {site.directory}/drift
bindcmdaddress /
""")]


def offsets(site):
    """The clock is the same: the offset is nought."""
    said = site.client("chronyd", "-Q", "-t", "20", "-f", site.file("client", f"""
server {site.address} port {site.port} iburst maxsamples 4
pidfile {site.directory}/client-pid
cmdport 0
bindcmdaddress /
"""))
    offset = re.search(r"System clock wrong by (-?[\d.]+) seconds", said)
    assert offset, said
    return str(abs(float(offset[1])) < 0.1)


def freeradius(site):
    os.system(f"cp -aL /etc/freeradius/3.0 {site.directory}/raddb; rm -rf {site.directory}/raddb/sites-enabled/* {site.directory}/raddb/mods-enabled/eap")
    site.file("raddb/sites-enabled/test", f"""server test {{
listen {{
  type = auth
  ipaddr = {site.address}
  port = {site.port}
}}
authorize {{
  files
  pap
}}
authenticate {{
  Auth-Type PAP {{
    pap
  }}
}}
}}
""")
    site.file("raddb/clients.conf", "client all { ipaddr = 0.0.0.0/0\n secret = testing }\n")
    site.file("raddb/mods-config/files/authorize", 'bob Cleartext-Password := "hello"\n  Reply-Message := "welcome"\n')
    site.give_to("freerad")
    return ["freeradius", "-f", "-l", "stdout", "-d", site.directory / "raddb"]


def authenticated(site):
    text = "".join(f'User-Name = "bob", User-Password = "{"hello" if i % 3 else "wrong"}"\n\n' for i in range(30))
    said = site.client("radclient", "-x", f"{site.address}:{site.port}", "auth", "testing", text=text, check=False)
    return "\n".join(sorted(re.findall(r"Received (Access-\w+)|Reply-Message = (.*)", said).__str__().split("), ")))


def coturn(site):
    return ["turnserver", "-c", site.file("conf", f"""
listening-ip={site.address}
listening-port={site.port}
relay-ip={site.address}
allow-loopback-peers
no-tls
no-dtls
no-cli
no-auth
log-file=stdout
pidfile={site.directory}/pid
userdb={site.directory}/db
realm=test
relay-threads=1
""")]


def relayed(site):
    """UDP by way of the relay, then TCP to it."""
    found = ""
    for words in ((), ("-t",)):
        said = site.client("turnutils_uclient", *words, "-y", "-n", "50", "-m", "2", "-l", "300", "-p", str(site.port), site.address)
        found += str(re.findall(r"tot_send_msgs=(\d+), tot_recv_msgs=(\d+)", said)[-1:])
    return found


def icecast(site):
    site.give_to("icecast2")
    return ["icecast2", "-c", site.file("conf", f"""<icecast>
<limits><clients>20</clients><sources>2</sources><burst-on-connect>1</burst-on-connect><burst-size>65535</burst-size></limits>
<authentication><source-password>secret</source-password><admin-password>a</admin-password></authentication>
<hostname>test</hostname>
<listen-socket><port>{site.port}</port><bind-address>{site.address}</bind-address></listen-socket>
<paths><logdir>{site.directory}</logdir><webroot>/usr/share/icecast2/web</webroot><adminroot>/usr/share/icecast2/admin</adminroot></paths>
<logging><accesslog>access</accesslog><errorlog>log</errorlog></logging>
<security><chroot>0</chroot><changeowner><user>icecast2</user><group>icecast</group></changeowner></security>
</icecast>""")]


def streamed(site):
    """ffmpeg sends what a listener hears; both are the client's host's."""
    source = site.directory / "sound.ogg"
    os.system(f"ffmpeg -loglevel error -f lavfi -i sine=frequency=440:duration=60 -b:a 64k -fflags +bitexact {source}")
    site.beside(site.lab.far, ["ffmpeg", "-loglevel", "error", "-re", "-stream_loop", "-1", "-i", source, "-c", "copy", "-f", "ogg", "-content_type",
                               "application/ogg", f"icecast://source:secret@{site.address}:{site.port}/live.ogg"], accel=site.on[1])
    url = f"http://{site.address}:{site.port}"
    until(lambda: "/live.ogg" in (site.directory / "log").read_text(), "a source")
    heard = site.client("curl", "-sS", "--max-time", "4", "-o", site.directory / "heard", f"{url}/live.ogg", check=False)
    data = (site.directory / "heard").read_bytes()
    return f"{data[:4]} {len(data) > 4000} {'timed out' in heard}"


def snmpd(site):
    site.give_to("Debian-snmp")
    return ["snmpd", "-f", "-Lo", "-C", "-u", "Debian-snmp", "-p", site.directory / "pid", "-c",
            site.file("conf", "rocommunity public\nsyslocation somewhere\nsyscontact someone\n"), f"udp:{site.address}:{site.port}"]


def monitored(site):
    where = ["-v2c", "-c", "public", f"{site.address}:{site.port}"]
    return (site.client("snmpget", *where, "1.3.6.1.2.1.1.6.0", "1.3.6.1.2.1.1.4.0") +
            str(len(site.client("snmpwalk", *where, "1.3.6.1.2.1.1").splitlines()) > 10))


def echo(site):
    """What tunnels lead to, on the server's loopback."""
    site.beside(site.lab.near, ["socat", "TCP-LISTEN:7000,bind=127.0.0.1,fork,reuseaddr", "EXEC:cat"], 7000)


def stunnel(site):
    echo(site)
    os.system(f"openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=test -keyout {site.directory}/key -out {site.directory}/cert 2>/dev/null")
    return ["stunnel4", site.file("conf", f"""
foreground = yes
pid =
cert = {site.directory}/cert
key = {site.directory}/key
[echo]
accept = {site.address}:{site.port}
connect = 127.0.0.1:7000
""")]


TLS_CLIENT = """
import socket, ssl, sys
context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT); context.check_hostname = False; context.verify_mode = ssl.CERT_NONE
with context.wrap_socket(socket.create_connection((sys.argv[1], int(sys.argv[2])), 30)) as s:
    for i in range(100):
        s.sendall(b"%d" % i * (i * 10 + 1)); n = 0
        while n < len(b"%d" % i) * (i * 10 + 1): n += len(s.recv(65536))
        print(n)
"""


def by_tls(site):
    return site.python(TLS_CLIENT) + site.python(TLS_CLIENT)


def socat(site):
    return ["socat", f"TCP-LISTEN:{site.port},bind={site.address},reuseaddr", "SYSTEM:sha256sum"]


def summed(site):
    return site.client("socat", "-t", "30", "-", f"TCP:{site.address}:{site.port}", text="some text to sum\n" * 20000)


def netcat(site):
    return ["nc", "-l", "-k", "-N", site.address, site.port]


def copied(site):
    for i in range(5):
        site.client("nc", "-N", site.address, str(site.port), text=f"{i} some text to copy\n" * 5000)
    until(lambda: site.log.read_bytes().count(b"\n") == 25000, "all that was sent")
    return hashlib.sha256(site.log.read_bytes()).hexdigest()


def tinyproxy(site):
    site.beside(site.lab.near, ["/usr/bin/python3", "-m", "http.server", "--bind", "127.0.0.1", "--directory", site.folder("www"), "8000"], 8000)
    site.file("www/page", "line\n" * 20000)
    return ["tinyproxy", "-d", "-c", site.file("conf", f"""
Port {site.port}
Listen {site.address}
User nobody
Group nogroup
LogLevel Error
Timeout 30
""")]


def by_proxy(site):
    words = ["curl", "-sS", "--max-time", "30", "-x", f"http://{site.address}:{site.port}", "http://127.0.0.1:8000/page"]
    return "".join(hashlib.sha256(site.client(*words).encode()).hexdigest() for _ in range(3))


PROGRAMS = [
    Program("chrony", "chrony", 123, chrony, offsets, transport="u", server_kernel="option",
            client_kernel="it asks for the kernel's time stamps"),
    Program("freeradius", "freeradius", 1812, freeradius, authenticated, needs=("radclient",), transport="u"),
    Program("coturn", "coturn", 3478, coturn, relayed),
    Program("icecast", "icecast2", 8000, icecast, streamed, needs=("ffmpeg",), client_share=0.3),  # two clients, one queue
    Program("snmpd", "snmpd", 161, snmpd, monitored, needs=("snmpget",), transport="u"),
    Program("stunnel", "stunnel4", 4433, stunnel, by_tls, needs=("socat",)),
    Program("socat", "socat", 7001, socat, summed),
    # Of some 430 frames up to 57 came for clients that had ended, which are the kernel's.
    Program("netcat", "netcat-openbsd", 7002, netcat, copied, client_share=0.8),
    Program("tinyproxy", "tinyproxy", 8888, tinyproxy, by_proxy),
]
