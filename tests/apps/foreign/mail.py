"""Mail, chat."""
from .site import CLEARS, Program, until

SMTP_CLIENT = """
import smtplib, sys
for i in range(2):
    with smtplib.SMTP(sys.argv[1], int(sys.argv[2]), local_hostname="far", timeout=30) as s:
        print(s.ehlo()[0], s.has_extn("size"))
        for n in range(3): print(s.sendmail("from@far.test", "to@test", f"Subject: {i}.{n}\\r\\n\\r\\n" + "line of text\\r\\n" * 400 * n))
        try: s.sendmail("from@far.test", "to@elsewhere.test", "x")
        except smtplib.SMTPRecipientsRefused as e: print([r[0] for r in e.recipients.values()])
"""


def exim(site):
    site.folder("spool", "Debian-exim")
    site.folder("mail", "Debian-exim")
    return ["exim4", "-bdf", "-oX", f"{site.address}.{site.port}", "-C", site.file("conf", f"""
primary_hostname = test
spool_directory = {site.directory}/spool
log_file_path = {site.directory}/spool/%s
pid_file_path = {site.directory}/spool/pid
domainlist local = test
host_lookup =
rfc1413_query_timeout = 0s
keep_environment =
acl_smtp_rcpt = rcpt
begin acl
rcpt:
  accept domains = +local
  deny
begin routers
local:
  driver = accept
  transport = file
begin transports
file:
  driver = appendfile
  directory = {site.directory}/mail
  maildir_format
  user = Debian-exim
  group = Debian-exim
begin retry
* * F,2h,1m
""")]


def delivered(site):
    said = site.python(SMTP_CLIENT)
    files = site.directory / "mail" / "new"
    mails = until(lambda: len(found := list(files.glob("*"))) == 6 and [file.read_text() for file in found], "6 mails delivered")
    return f"{said} {sorted(mail.count('line of text') for mail in mails)}"


def postfix(site, imported=""):
    """Its master waits on the listener and starts the smtpd that accepts, as the user postfix, by fork() and exec. imported: variables that
    it leaves in its processes' environment."""
    site.folder("data", "postfix")
    site.folder("spool")
    site.folder("mail", "nobody")
    programs = {"rewrite": "trivial-rewrite", "retry": "error"}
    services = "".join(f"{name} unix - - n - - {programs.get(name, name)}\n"
                       for name in ("rewrite", "bounce", "error", "retry", "proxymap"))
    site.file("conf/master.cf", f"""{site.address}:{site.port} inet n - n - - smtpd
{services}virtual unix - n n - - virtual
cleanup unix n - n - 0 cleanup
qmgr unix n - n 300 1 qmgr
anvil unix - - n - 1 anvil
postlog unix-dgram n - n - 1 postlogd
""")
    site.file("conf/main.cf", f"""
compatibility_level = 3.6
import_environment = MAIL_CONFIG MAIL_DEBUG MAIL_LOGTAG TZ LANG=C {imported}
queue_directory = {site.directory}/spool
data_directory = {site.directory}/data
maillog_file = /dev/stdout
myhostname = host.test
inet_interfaces = {site.address}
mydestination =
alias_maps =
virtual_mailbox_domains = test
virtual_mailbox_base = {site.directory}/mail
virtual_mailbox_maps = static:/
virtual_minimum_uid = 1
virtual_uid_maps = static:65534
virtual_gid_maps = static:65534
smtpd_recipient_restrictions = reject_unauth_destination
smtpd_peername_lookup = no
""")
    return ["postfix", "-c", site.directory / "conf", "start-fg"]


def postfix_preloaded(site):
    return postfix(site, "LD_PRELOAD ACCEL_CONFIG ACCEL_WAIT_FOR_PORTS")


XMPP_CLIENT = """
import base64, socket, sys
def reads(s, text, until):
    s.sendall(text.encode()); got = ""
    while until not in got:
        more = s.recv(65536).decode()
        if not more: sys.exit("closed after " + got)
        got += more
    return got
START = "<stream:stream xmlns='jabber:client' xmlns:stream='http://etherx.jabber.org/streams' to='localhost' version='1.0'>"
def session(user, resource):
    s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 30)
    features = reads(s, START, "</stream:features>"); assert "PLAIN" in features, features
    secret = base64.b64encode(f"\\0{user}\\0secret".encode()).decode()
    print("login", "success" in reads(s, f"<auth xmlns='urn:ietf:params:xml:ns:xmpp-sasl' mechanism='PLAIN'>{secret}</auth>", ">"))
    reads(s, START, "</stream:features>")
    reads(s, f"<iq type='set' id='b'><bind xmlns='urn:ietf:params:xml:ns:xmpp-bind'><resource>{resource}</resource></bind></iq>", "</iq>")
    reads(s, "<presence/>", "presence")
    return s
a, b = session("anna", "a"), session("bert", "b")
for i in range(60):
    text = "x" * i * 40 + "end"
    a.sendall(f"<message to='bert@localhost/b' type='chat'><body>{text}</body></message>".encode())
    got = reads(b, "", "</message>")
    print(i, f"<body>{text}</body>" in got)
"""


def prosody(site):
    """In Lua."""
    for user in ("anna", "bert"):
        site.file(f"data/localhost/accounts/{user}.dat", 'return { ["password"] = "secret"; };\n')
    conf = site.file("conf.cfg.lua", f"""
pidfile = "{site.directory}/pid"
data_path = "{site.directory}/data"
interfaces = {{ "{site.address}" }}
c2s_ports = {{ {site.port} }}
s2s_ports = {{ }}
http_ports = {{ }}
https_ports = {{ }}
modules_enabled = {{ "roster", "saslauth" }}
modules_disabled = {{ "s2s", "offline" }}
c2s_require_encryption = false
allow_unencrypted_plain_auth = true
authentication = "internal_plain"
log = {{ info = "*console" }}
VirtualHost "localhost"
""")
    site.give_to("prosody")
    return site.as_user("prosody", ["prosody", "--config", conf, "-F"])


def ejabberd(site):
    """In Erlang. Who logs in is whom he says."""
    conf = site.file("ejabberd.yml", f"""
hosts: [localhost]
loglevel: info
listen:
  - {{ port: {site.port}, ip: "{site.address}", module: ejabberd_c2s, starttls: false }}
auth_method: [anonymous]
anonymous_protocol: login_anon
modules: {{ mod_roster: {{}} }}
""")
    for name in ("spool", "log"):
        site.folder(name)
    site.give_to("ejabberd")
    return site.as_user("ejabberd", ["env", f"HOME={site.directory}", "INET_DIST_INTERFACE=127.0.0.1", "ERL_EPMD_ADDRESS=127.0.0.1", "ejabberdctl",
                                     "--node", "test@localhost", "--config", conf, "--ctl-config", "/dev/null", "--spool", site.directory / "spool", "--logs",
                                     site.directory / "log", "foreground"])


def chat(site):
    return site.python(XMPP_CLIENT)


IRC_CLIENT = """
import socket, sys
def session(nick):
    s = socket.create_connection((sys.argv[1], int(sys.argv[2])), 30); f = s.makefile("rwb")
    f.write(b"NICK %s\\r\\nUSER %s 0 * :x\\r\\nJOIN #room\\r\\n" % (nick, nick)); f.flush()
    while b" 366 " not in f.readline(): pass
    return f
a, b = session(b"anna"), session(b"bert")
for i in range(100):
    a.write(b"PRIVMSG #room :message %d %s\\r\\n" % (i, b"x" * i * 3)); a.flush()
    while b"PRIVMSG" not in (line := b.readline()): pass
    print(line.split(b":")[-1])
"""


def ngircd(site):
    conf = site.file("conf", f"""
[Global]
Name = irc.test
Info = test
Listen = {site.address}
Ports = {site.port}
ServerUID = irc
ServerGID = irc
[Options]
DNS = no
Ident = no
PAM = no
[Limits]
MaxConnectionsIP = 10
MaxPenaltyTime = 0
""")
    site.give_to("irc")
    return ["ngircd", "--nodaemon", "--config", conf]


def rooms(site):
    return site.python(IRC_CLIENT)


PROGRAMS = [
    Program("exim", "exim4-daemon-light", 25, exim, delivered, server_kernel="handed_back"),
    Program("postfix", "postfix", 25, postfix, delivered, server_kernel=CLEARS),
    # The connection that wakes the master is handed back on its way to smtpd.
    Program("postfix_preloaded", "postfix", 25, postfix_preloaded, delivered, server_share=0.4),
    Program("prosody", "prosody", 5222, prosody, chat),
    Program("ejabberd", "ejabberd", 5222, ejabberd, chat),
    Program("ngircd", "ngircd", 6667, ngircd, rooms, environment=("ACCEL_EARLY_PORTS=1",)),
]
