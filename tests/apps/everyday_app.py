#!/usr/bin/env python3
"""Programs that are merely preloaded behave as without: same output, same status."""
import os
import re
import subprocess
import sys
import tempfile

from programs import accel_environment

COMMANDS = [
    ["bash", "-c", "echo a | tr a b; (exit 3); echo $?; for i in $(seq 50); do /bin/true; done; ls / | head -3"],
    ["/usr/bin/python3", "-c", "import socket,subprocess,json;s,t=socket.socketpair();s.send(b'x');print(t.recv(1));"
     "print(subprocess.check_output(['echo','child']));import threading;threading.Thread(target=print,args=('thread',)).start()"],
    ["/usr/bin/python3", "-c", "import socket,threading\nl=socket.create_server(('127.0.0.1',0))\n"
     "def go():\n c,_=l.accept();c.sendall(c.recv(9));c.close()\nt=threading.Thread(target=go);t.start()\n"
     "s=socket.create_connection(l.getsockname());s.sendall(b'loop');print(s.recv(9));t.join()"],
    ["curl", "-sS", "file:///etc/hostname"],
    ["curl", "-sS", "--max-time", "5", "http://127.0.0.1:1/"],
    ["bash", "-c", "cd $(mktemp -d) && git init -q . && echo x > f && git add f && git -c user.name=n -c user.email=e commit -qm m && "
     "git log --format=%s && git clone -q . copy && ls copy && rm -rf \"$PWD\""],
    ["apt-get", "--version"],
    ["apt-cache", "policy", "bash"],
    ["apt-get", "-s", "install", "bash"],
    ["perl", "-e", "print join(',', map { $_ * 2 } 1..5), qq(\\n); exit 4"],
    ["sh", "-c", "ulimit -n 64; exec /usr/bin/python3 -c 'print(1)'"],
]


def run(command, env):
    with tempfile.TemporaryDirectory() as home:
        done = subprocess.run(command, env=dict(env, HOME=home), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, timeout=120)
    return done.returncode, done.stdout, re.sub(rb"after \d+ ms", b"after some ms", done.stderr)


def main():
    bad = 0
    for command in COMMANDS:
        plain, preloaded = run(command, dict(os.environ)), run(command, accel_environment(require=False))
        same = plain == preloaded
        bad += not same
        print("same" if same else f"DIFFERENT\n  without: {plain}\n  with:    {preloaded}", " ".join(command)[:70], flush=True)
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
