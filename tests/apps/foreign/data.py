"""Databases, directories."""
import shutil

from .site import Program


def mariadb(site):
    """The tables are those that the package's installation made."""
    shutil.copytree("/var/lib/mysql", site.directory / "data", ignore=shutil.ignore_patterns("*.pid", "*.sock", "aria_log_control.lock"))
    site.give_to("mysql")
    init = site.file("init", "create user 'u'@'%' identified by 'secret';\ngrant all on *.* to 'u'@'%';\ncreate database if not exists d;\n")
    return ["mariadbd", "--no-defaults", f"--datadir={site.directory}/data", f"--bind-address={site.address}", f"--port={site.port}",
            "--user=mysql", f"--socket={site.directory}/sock", f"--pid-file={site.directory}/pid", f"--init-file={init}",
            "--innodb-buffer-pool-size=32M", "--skip-name-resolve"]


def tables(site):
    statements = "create or replace table d.t (id int primary key, s varchar(2000));\n"
    statements += "".join(f"insert into d.t values ({i}, repeat('{i % 10}', {i * 4}));\n" for i in range(200))
    statements += "select count(*), sum(length(s)) from d.t; select * from d.t where id > 100; select sleep(0.1);\n"
    words = ["mariadb", "--no-defaults", "-h", site.address, "-P", str(site.port), "-u", "u", "-psecret"]
    return site.client(*words, text=statements) + site.client(*words, "-e", "select md5(group_concat(s)) from d.t", "--compress")


def slapd(site):
    site.folder("db", "openldap")
    return ["slapd", "-d", "0", "-h", f"ldap://{site.address}:{site.port}/", "-u", "openldap", "-g", "openldap", "-f", site.file("conf", f"""
include /etc/ldap/schema/core.schema
include /etc/ldap/schema/cosine.schema
pidfile {site.directory}/db/pid
modulepath /usr/lib/ldap
moduleload back_mdb
database mdb
suffix dc=test
rootdn cn=admin,dc=test
rootpw secret
directory {site.directory}/db
maxsize 10485760
""")]


def entries(site):
    where = ["-x", "-H", f"ldap://{site.address}:{site.port}", "-D", "cn=admin,dc=test", "-w", "secret"]
    text = "dn: dc=test\nobjectClass: domain\ndc: test\n\n"
    text += "".join(f"dn: cn=p{i},dc=test\nobjectClass: person\ncn: p{i}\nsn: s{i}\ndescription: d{'d' * i * 20}\n\n" for i in range(100))
    return site.client("ldapadd", *where, text=text) + site.client("ldapsearch", *where, "-LLL", "-b", "dc=test", "(sn=*)")


PROGRAMS = [
    Program("mariadb", "mariadb-server", 3306, mariadb, tables, needs=("mariadbd", "mariadb"), environment=("ACCEL_EARLY_PORTS=1",)),
    Program("slapd", "slapd", 389, slapd, entries, needs=("ldapadd",)),
]
