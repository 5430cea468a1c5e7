"""DNS, over UDP and TCP."""
import re

from .site import Program

ZONE = """$TTL 60
@ IN SOA ns.test. admin.test. 1 3600 600 86400 60
@ IN NS ns
ns IN A 192.0.2.1
""" + "".join(f"host{i} IN A 192.0.2.{i % 250 + 1}\nhost{i} IN TXT \"{'text ' * 20}{i}\"\n" for i in range(1, 600))


def answers(text):
    """Of dig, sorted: servers turn records about."""
    return "\n".join(sorted(line for line in text.splitlines() if line and not line.startswith(";")))


def queries(site, transfer=True):
    dig = ["dig", f"@{site.address}", "-p", str(site.port), "+tries=2", "+time=5", "+nocookie", "+noauthority", "+noadditional"]
    names = [word for i in range(1, 40) for word in (f"host{i}.test", "A", f"host{i}.test", "TXT")]
    found = answers(site.client(*dig, *names)) + answers(site.client(*dig, "+tcp", "+keepopen", *names))
    assert len(re.findall("192.0.2.", found)) == 78, found
    if transfer:
        zone = answers(site.client(*dig, "test", "AXFR"))
        assert zone.count("IN\tA\t") == 600, zone
        found += zone
    return found


def looked_up(site):
    return queries(site, transfer=False)


def unbound(site):
    site.give_to("unbound")
    data = "".join(f'local-data: "host{i}.test. 60 IN A 192.0.2.{i}"\nlocal-data: \'host{i}.test. 60 IN TXT "{"text " * 20}{i}"\'\n'
                   for i in range(1, 40))
    return ["unbound", "-d", "-c", site.file("conf", f"""
server:
  interface: {site.address}
  port: {site.port}
  access-control: 0.0.0.0/0 allow
  do-daemonize: no
  username: unbound
  directory: "{site.directory}"
  chroot: ""
  pidfile: "{site.directory}/pid"
  use-syslog: no
  local-zone: "test." static
  {data}
remote-control:
  control-enable: no
""")]


def knot(site):
    site.file("test.zone", ZONE)
    conf = site.file("conf", f"""
server:
  rundir: {site.directory}
  user: knot:knot
  listen: {site.address}@{site.port}
database:
  storage: {site.directory}
log:
- target: stdout
  any: info
acl:
- id: all
  action: transfer
  address: 0.0.0.0/0
zone:
- domain: test
  storage: {site.directory}
  file: test.zone
  acl: all
""")
    site.give_to("knot")
    return ["knotd", "-c", conf]


def bind(site):
    site.file("test.zone", ZONE)
    conf = site.file("conf", f"""
options {{ directory "{site.directory}"; listen-on port {site.port} {{ {site.address}; }}; listen-on-v6 {{ none; }}; recursion no;
  pid-file none; session-keyfile none; allow-transfer {{ any; }}; managed-keys-directory "{site.directory}"; }};
controls {{ }};
zone "test" {{ type primary; file "test.zone"; }};
""")
    site.give_to("bind")
    return ["named", "-g", "-u", "bind", "-c", conf]


def nsd(site):
    """It gives up root before its servers fork, which have no queue of their parent's: started as its user, with the capabilities."""
    site.file("test.zone", ZONE)
    conf = site.file("conf", f"""
server:
  ip-address: {site.address}@{site.port}
  username: ""
  zonesdir: "{site.directory}"
  database: ""
  pidfile: "{site.directory}/pid"
  xfrdfile: "{site.directory}/xfrd"
  xfrdir: "{site.directory}"
  zonelistfile: "{site.directory}/list"
remote-control:
  control-enable: no
zone:
  name: test
  zonefile: test.zone
  provide-xfr: 0.0.0.0/0 NOKEY
""")
    site.give_to("nsd")
    return site.as_user("nsd", ["nsd", "-d", "-c", conf])


def dnsmasq(site):
    hosts = "".join(f"--host-record=host{i}.test,192.0.2.{i}\n--txt-record=host{i}.test,{'text ' * 20}{i}\n" for i in range(1, 40))
    return ["dnsmasq", "--keep-in-foreground", "--conf-file=/dev/null", "--no-resolv", "--no-hosts", "--bind-interfaces", "--no-daemon",
            f"--listen-address={site.address}", f"--port={site.port}", *hosts.splitlines()]


PROGRAMS = [
    Program("unbound", "unbound", 53, unbound, looked_up, needs=("dig",)),
    Program("knot", "knot", 53, knot, queries, needs=("dig",)),
    Program("bind", "bind9", 53, bind, queries, needs=("dig",), environment=("ACCEL_EARLY_PORTS=1",)),
    Program("nsd", "nsd", 53, nsd, queries, needs=("dig",)),
    Program("dnsmasq", "dnsmasq-base", 53, dnsmasq, looked_up, needs=("dig",)),
]
