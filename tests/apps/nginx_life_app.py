#!/usr/bin/env python3
"""nginx as it lives: `daemon on`, 4 workers; configuration reloads and a binary upgrade under wrk with no failed request, a killed worker
replaced. --reuseport: with a listener for each worker, which all of them inherit. A connection a request, so that every moment finds some that are being opened and some that nobody has accepted yet.
--keepalive: reloads only, with connections that are kept; nginx closes those that it knows as idle, which crosses requests on the kernel, too.
No other request fails."""
import argparse
import contextlib
import json
import os
import pathlib
import signal
import subprocess
import sys

from programs import MODES, ON_MODEL, CommandFailed, Lab, accelerated_sockets, descendants, flawless_load, nginx_configuration, statistics, until

WORKERS = 4
KEPT = 32  # connections of a client that keeps them


class Nginx:
    def __init__(self, host, accel, user, listen, keepalive=False):
        self.host, self.accel = host, accel
        path = nginx_configuration(host, 8080, WORKERS, keepalive=keepalive, user=user, listen=listen)
        # nginx clears its environment; the upgraded binary is to be preloaded as the first one was.
        kept = "LD_PRELOAD ACCEL_REQUIRE ACCEL_CONFIG ACCEL_FIREWALL SYSFS_PATH MLX5_MODEL_NETDEV MLX5_MODEL_REPORT".split()
        path.write_text("".join(f"env {name};\n" for name in kept) + path.read_text().replace("daemon off", "daemon on"))
        self.directory = path.parent
        host.run(["/usr/sbin/nginx", "-c", path, "-p", path.parent], accel, timeout=60)
        self.master = until(self.named_master, "a pid file")
        self.serving()

    def named_master(self):
        with contextlib.suppress(OSError, ValueError):
            return int((self.directory / "nginx.pid").read_text())
        return None

    def workers(self):
        return set(descendants(self.master)[1:])

    def serving(self, besides=frozenset()):
        """All workers are new and listen, accelerated if they are to be."""
        def ready():
            workers = self.workers()
            return len(workers) == WORKERS and not workers & besides and (
                not self.accel or accelerated_sockets(self.master, 8080) == WORKERS)
        until(ready, f"{WORKERS} new workers that listen")
        return self.workers()

    def reload(self):
        old = self.workers()
        os.kill(self.master, signal.SIGHUP)
        self.serving(old)

    def upgrade(self):
        old, workers = self.master, self.workers()
        os.kill(old, signal.SIGUSR2)
        self.master = until(lambda: (pid := self.named_master()) not in (None, old) and pid, "a new master")
        self.serving()
        os.kill(old, signal.SIGWINCH)
        until(lambda: not set(descendants(old)) & workers, "the old workers' end")
        os.kill(old, signal.SIGQUIT)
        until(lambda: not os.path.exists(f"/proc/{old}"), "the old master's end")

    def lose_worker(self):
        victim = min(self.workers())
        os.kill(victim, signal.SIGKILL)
        self.serving({victim})

    def end(self):
        master = self.named_master() or self.master
        with contextlib.suppress(ProcessLookupError):
            os.kill(master, signal.SIGTERM)
        until(lambda: not os.path.exists(f"/proc/{master}"), "nginx's end")

    def opened(self):
        """Connections that each of the present workers' stacks has opened."""
        return [statistics(p).get("counters", {}).get("tcp_passive_opens", 0) for p in self.workers()]


@contextlib.contextmanager
def kept_connections(host, server, accel):
    """A client that keeps its connections: requests may cross the server's close(), and none fails otherwise."""
    before = host.wire_packets()
    client = pathlib.Path(__file__).with_name("keepalive_client.py")
    child = host.popen([sys.executable, client, server.address, "8080", str(KEPT)], accel, stdout=subprocess.PIPE, text=True)
    until(lambda: host.wire_packets() > before + 1000, "traffic")
    yield
    child.send_signal(signal.SIGINT)
    ends = json.loads(child.communicate(timeout=100)[0])
    print(f"  {ends}", flush=True)
    assert ends["answered"] > KEPT, ends
    assert ends["refused"] + ends["fresh"] + ends["cut"] == 0, ends


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=MODES, default="both")
    parser.add_argument("--reloads", type=int, default=3)
    parser.add_argument("--user", default="www-data", help="of the workers")
    parser.add_argument("--reuseport", action="store_true")
    parser.add_argument("--keepalive", action="store_true")
    parser.add_argument("--upgrades", type=int, default=1)
    options = parser.parse_args()
    on_server, on_client = MODES[options.mode]
    with Lab(proved=False, queues=2 * WORKERS) as lab:  # an old and a new worker have a queue each
        url = f"http://{lab.near.address}:8080/"
        server = Nginx(lab.near, on_server, options.user, "reuseport" if options.reuseport else "", options.keepalive)

        def carries():
            """On mlx5 each worker has its share; on AF_XDP what comes by the queues that it holds."""
            return not on_server or (all if ON_MODEL else any)(server.opened())
        load = (kept_connections(lab.far, lab.near, on_client) if options.keepalive
                else flawless_load(lab.far, url, on_client))
        try:
            with load:
                for _ in range(options.reloads):
                    until(carries, "connections of the workers' own")
                    server.reload()
                until(carries, "connections of the reloaded workers")
            print(f"{options.reloads} reloads: ok", flush=True)
            if options.keepalive:
                return
            server.lose_worker()
            with flawless_load(lab.far, url, on_client):
                until(carries, "connections after a worker's replacement")
            print("a killed worker replaced: ok", flush=True)
            for _ in range(options.upgrades):
                with flawless_load(lab.far, url, on_client):
                    server.upgrade()
                    until(carries, "connections of the new binary")
                print("binary upgrade: ok", flush=True)
        except CommandFailed as failure:
            raise CommandFailed(f"{failure}\n{(server.directory / 'error.log').read_text()[-3000:]}") from None
        finally:
            server.end()


if __name__ == "__main__":
    sys.exit(main())
