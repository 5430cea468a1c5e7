#!/usr/bin/env python3
"""Servers with threads, 64 connections, placed freely, a device of two queues: kernel, server accelerated, both ends.

An epoll echo server of 64 B (thread_load.cc), a Java server with a thread for each connection, memcached, HAProxy, Apache's event MPM.
"""
import contextlib
import json

from measure import Lab, build_dir, carried, compare, main
from programs import CommandFailed, haproxy_configuration, server, wrk

CONNECTIONS, SECONDS, PORT = 64, 1, 9200
TOOL = build_dir() / "bin" / "thread_load"
JAVA = """
import java.io.*; import java.net.*;
class Echo {
  public static void main(String[] a) throws Exception {
    try (ServerSocket s = new ServerSocket(Integer.parseInt(a[1]), 1024, InetAddress.getByName(a[0]))) {
      for (;;) { Socket c = s.accept(); c.setTcpNoDelay(true); new Thread(() -> serve(c)).start(); }
    }
  }
  static void serve(Socket c) {
    byte[] data = new byte[4096];
    try (c) {
      for (int n; (n = c.getInputStream().read(data)) > 0;) c.getOutputStream().write(data, 0, n);
    } catch (IOException e) { System.err.println(e); }
  }
}
"""


def loop(threads, kind):
    return lambda host: [TOOL, "echo", host.address, PORT, threads, kind]


def java(host):
    source = host.lab.directory / "Echo.java"
    source.write_text(JAVA)
    return ["java", source, host.address, PORT]


def memcached(threads):
    return lambda host: ["memcached", "-u", "root", "-l", host.address, "-p", PORT, "-U", 0, "-t", threads]


def haproxy(threads):
    def command(host):
        path = haproxy_configuration(host.lab.directory, f"""
frontend f
  bind {host.address}:{PORT}
  http-request return status 200 content-type text/plain string hello
""", f"nbthread {threads}")
        return ["haproxy", "-f", path]
    return command


def apache(host):
    root = host.lab.directory
    root.chmod(0o755)
    (root / "index.html").write_text("hello\n")
    modules = "".join(f"LoadModule {name}_module /usr/lib/apache2/modules/mod_{name}.so\n" for name in ("mpm_event", "authz_core", "dir"))
    (root / "conf").write_text(f"""{modules}
ServerName test
PidFile {root}/pid
DefaultRuntimeDir {root}
ErrorLog {root}/log
Listen {host.address}:{PORT}
User www-data
Group www-data
StartServers 2
ServerLimit 2
ThreadsPerChild 50
MaxRequestWorkers 100
MaxKeepAliveRequests 0
DirectoryIndex index.html
DocumentRoot {root}
""")
    return ["apache2", "-DFOREGROUND", "-d", root, "-f", root / "conf"]


def ask(*exchange):
    def load(lab, accel):
        out = lab.far.run([TOOL, "ask", lab.near.address, PORT, CONNECTIONS, SECONDS, *exchange], accel)
        return json.loads(out)["rate"]
    return load


def pages(lab, accel):
    rate, failed = wrk(lab.far, f"http://{lab.near.address}:{PORT}/", accel, CONNECTIONS, SECONDS)
    if failed:
        raise CommandFailed(f"{failed} requests failed")
    return rate


PROGRAMS = {
    **{f"echo, {n} threads, a listener each": (loop(n, "group"), ask()) for n in (1, 2, 4)},
    **{f"echo, {n} threads, one listener": (loop(n, "shared"), ask()) for n in (1, 2, 4)},
    "java, a thread a connection": (java, ask()),
    **{f"memcached -t {n}": (memcached(n), ask("get a", len("END\r\n"))) for n in (1, 2, 4)},
    **{f"haproxy nbthread {n}": (haproxy(n), pages) for n in (1, 2)},
    "apache event, two processes of 50 threads": (apache, pages),
}


def once(side, command, load):
    with Lab(queues=2) as lab, contextlib.ExitStack() as stack:
        listeners = 2 if command is apache else 1
        stack.enter_context(server(lab.near, list(map(str, command(lab.near))), PORT, side != "kernel", listeners=listeners))
        return carried(side, lab, lambda: load(lab, side == "both")) / 1e3


def measure(rounds=3, only=""):
    rows = []
    for name, (command, load) in PROGRAMS.items():
        if only not in name:
            continue
        results = compare(rounds, lambda side, c=command, run=load: once(side, c, run))
        rows += [{"what": name, "accelerated": side, "k/s": value, "x kernel": value / results["kernel"]}
                 for side, value in results.items()]
    return rows


if __name__ == "__main__":
    main("threads", measure)
