#!/usr/bin/env python3
"""Clients that fork and exec for each transfer: git over http and over its own daemon, wget, node; what arrives is what was sent."""
import argparse
import os
import shutil
import subprocess
import sys

from programs import MODES, Carried, CommandFailed, Lab, accelerated_hosts, nginx, server

IDENTITY = {"GIT_AUTHOR_NAME": "n", "GIT_AUTHOR_EMAIL": "e", "GIT_COMMITTER_NAME": "n", "GIT_COMMITTER_EMAIL": "e",
            "GIT_CONFIG_COUNT": "1", "GIT_CONFIG_KEY_0": "safe.directory", "GIT_CONFIG_VALUE_0": "*"}
NODE_SERVER = """
require('http').createServer((q, r) => { let n = 0; q.on('data', d => n += d.length); q.on('end', () => r.end('x'.repeat(100000 + n))) })
  .listen(8100, process.argv[1])"""
NODE_CLIENT = """
const http = require('http'), agent = new http.Agent({keepAlive: true, maxSockets: 8});
let done = 0;
for (let i = 0; i < 100; ++i)
  http.request({host: process.argv[1], port: 8100, method: 'POST', agent}, r => {
    let n = 0;
    r.on('data', d => n += d.length);
    r.on('end', () => { if (n != 100000 + i * 1000) throw n; if (++done == 100) { console.log('done'); agent.destroy() } });
  }).end(Buffer.alloc(i * 1000))"""


def git(*words):
    return subprocess.run(["git", *map(str, words)], env=dict(os.environ, **IDENTITY), check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def repository(directory):
    """A bare one with some megabytes; its newest commit."""
    tree = directory / "tree"
    git("init", "-q", tree)
    for i in range(20):
        (tree / f"file{i}").write_bytes(os.urandom(200000))
    git("-C", tree, "add", ".")
    git("-C", tree, "commit", "-qm", "content")
    git("clone", "-q", "--bare", tree, directory / "repo.git")
    git("-C", directory / "repo.git", "update-server-info")
    return git("-C", tree, "rev-parse", "HEAD")


def clone(host, accel, url, newest):
    copy = host.lab.directory / "copy"
    host.run(["git", "clone", "-q", url, copy], accel, env=IDENTITY)
    assert git("-C", copy, "rev-parse", "HEAD") == newest and not git("-C", copy, "fsck")
    shutil.rmtree(copy)
    print(f"cloned {url.split(':')[0]}://")


def wget(host, accel, url, original):
    copy = host.lab.directory / "wgot"
    host.run(["wget", "-q", "-O", copy, url], accel)
    assert copy.read_bytes() == original.read_bytes()
    print("fetched by wget")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=MODES, default="both")
    options = parser.parse_args()
    on_server, on_client = MODES[options.mode]
    with Lab() as lab:
        near, far = lab.near, lab.far
        hosts = accelerated_hosts(options.mode, near, far)
        with nginx(near, on_server) as web, Carried(*hosts) as carried:
            newest = repository(web.directory)
            large = web.directory / "large"
            large.write_bytes(os.urandom(5000000))
            clone(far, on_client, f"http://{near.address}:8080/repo.git", newest)
            wget(far, on_client, f"http://{near.address}:8080/large", large)
            served = lab.directory / "served"
            shutil.copytree(web.directory / "repo.git", served / "repo.git")
        print(f"frames (wire, kernel's): {carried.figures}")
        # git daemon gives each connection to a child that execs: they go on in the kernel
        daemon = ["git", "daemon", "--export-all", f"--base-path={served}", f"--listen={near.address}", "--reuseaddr", "--port=9418"]
        with server(near, daemon, 9418, on_server, env=IDENTITY):
            clone(far, on_client, f"git://{near.address}/repo.git", newest)
        with server(near, ["node", "-e", NODE_SERVER, near.address], 8100, on_server), Carried(*hosts) as carried:
            if "done" not in (said := far.run(["node", "-e", NODE_CLIENT, near.address], on_client)):
                raise CommandFailed(said)
        print(f"node: 100 requests, frames (wire, kernel's): {carried.figures}")
    print("ok")
    return 0


if __name__ == "__main__":
    sys.exit(main())
