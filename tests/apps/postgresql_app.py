#!/usr/bin/env python3
"""PostgreSQL, a process for each connection, under pgbench: connections that stay and a connection a transaction; the sums agree."""
import argparse
import contextlib
import os
import pathlib
import pwd
import re
import shutil
import sys

from programs import MODES, CommandFailed, Carried, Lab, accelerated_hosts, server, until

BINARIES = max(pathlib.Path("/usr/lib/postgresql").glob("*/bin"), default=pathlib.Path("/usr/bin"))
PORT = 5432


def as_postgres():
    """The server refuses root, but opens device queues: a user with what that needs."""
    user = pwd.getpwnam("postgres")
    needed = "+net_raw,+net_admin,+bpf,+perfmon,+sys_admin,+ipc_lock"
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", f"--inh-caps={needed}",
            f"--ambient-caps={needed}"]


@contextlib.contextmanager
def postgresql(host, accel):
    directory = host.lab.directory / "postgresql"
    directory.mkdir()
    os.chmod(host.lab.directory, 0o755)
    shutil.chown(directory, "postgres", "postgres")
    host.run([*as_postgres(), BINARIES / "initdb", "-D", directory, "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C"])
    (directory / "pg_hba.conf").write_text("host all all 0.0.0.0/0 trust\nlocal all all trust\n")
    command = [*as_postgres(), BINARIES / "postgres", "-D", directory, "-h", host.address, "-p", PORT, "-k", directory,
               "-c", "fsync=off", "-c", "max_connections=60"]
    with server(host, list(map(str, command)), PORT, accel) as child:
        # It listens before it has started.
        asked = [BINARIES / "pg_isready", "-h", directory, "-p", PORT]
        until(lambda: "accepting" in host.run(asked, check=False), "a database that accepts connections")
        yield child


def pgbench(client, target, accel, *words):
    output = client.run([BINARIES / "pgbench", "-h", target, "-p", str(PORT), "-U", "postgres", *words, "postgres"], accel, timeout=300)
    if "-i" in words:
        return 0
    done = re.search(r"transactions actually processed: (\d+)", output)
    failed = re.search(r"number of failed transactions: (\d+)", output)
    if not done or (failed and int(failed[1])):
        raise CommandFailed(output)
    return int(done[1])


def psql(client, target, accel, query):
    return client.run([BINARIES / "psql", "-h", target, "-p", str(PORT), "-U", "postgres", "-At", "-c", query, "postgres"], accel).strip()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=MODES, default="both")
    parser.add_argument("--transactions", type=int, default=100)
    options = parser.parse_args()
    on_server, on_client = MODES[options.mode]
    n = str(options.transactions)
    with Lab() as lab:
        near, far = lab.near, lab.far
        hosts = accelerated_hosts(options.mode, near, far)
        with postgresql(near, on_server), Carried(*hosts, share=1.0 if on_server else 0.1) as carried:
            ask = lambda *words: pgbench(far, near.address, on_client, *words)  # noqa: E731
            ask("-i", "-s", "1", "-q")
            done = ask("-c", "8", "-j", "2", "-t", n) + ask("-c", "4", "-C", "-n", "-t", n)
            assert done == 12 * options.transactions, done
            query = lambda text: psql(far, near.address, on_client, text)  # noqa: E731
            sums = {query(f"select sum({c}) from {t}") for c, t in (
                ("abalance", "pgbench_accounts"), ("bbalance", "pgbench_branches"), ("tbalance", "pgbench_tellers"), ("delta", "pgbench_history"))}
            assert len(sums) == 1 and query("select count(*) from pgbench_history") == str(done), sums
            large = query("select repeat('0123456789', 1000000)")
            assert large == "0123456789" * 1000000, len(large)
        print(f"{done} transactions, frames (wire, kernel's): {carried.figures}")
    print("ok")


if __name__ == "__main__":
    sys.exit(main())
