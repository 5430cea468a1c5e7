#!/usr/bin/env python3
"""dovecot, a supervisor: its master waits on the listeners and starts the processes that accept by fork() and exec. It clears their
environment, so they are programs without libaccel; or, configured so (import_environment), leaves it. Clients log in, read and leave."""
import argparse
import re
import sys

from programs import MODES, Lab, descendants, server, statistics

PORT, SESSIONS = 1143, 12
CLIENT = """
import imaplib, sys, threading
def session(i):
    c = imaplib.IMAP4(sys.argv[1], int(sys.argv[2]), timeout=30)
    c.login(f"user{i}", "secret")
    assert c.append("INBOX", None, None, b"Subject: hello\\r\\n\\r\\n" + b"x" * 3000)[0] == "OK"
    assert c.select("INBOX")[0] == "OK"
    assert len(c.fetch("1", "(BODY[])")[1][0][1]) > 3000
    c.logout()
    sys.stdout.write("ok\\n")  # at once: print() writes the end of the line apart
n = int(sys.argv[3])
for i in range(n // 2): session(i)  # one after the other; then together
together = [threading.Thread(target=session, args=(i,)) for i in range(n // 2, n)]
for t in together: t.start()
for t in together: t.join()
"""


def configuration(host, kept):
    directory = host.lab.directory / f"dovecot-{kept}"
    (directory / "mail").mkdir(parents=True)
    host.lab.directory.chmod(0o711)
    (directory / "mail").chmod(0o777)
    path = directory / "dovecot.conf"
    path.write_text(f"""
base_dir = {directory}/run
state_dir = {directory}/state
log_path = /dev/stderr
protocols = imap
listen = {host.address}
ssl = no
disable_plaintext_auth = no
mail_location = maildir:{directory}/mail/%u
import_environment = TZ {"LD_PRELOAD ACCEL_CONFIG" if kept else ""}
passdb {{
  driver = static
  args = password=secret
}}
userdb {{
  driver = static
  args = uid=nobody gid=nogroup home={directory}/mail/%u
}}
first_valid_uid = 1
first_valid_gid = 1
service imap-login {{
  inet_listener imap {{
    port = {PORT}
  }}
  inet_listener imaps {{
    port = 0
  }}
}}
""")
    return path


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--mode", choices=MODES, default="both")
    options = parser.parse_args()
    on_server, on_client = MODES[options.mode]
    for kept in (False, True) if on_server else (False,):
        with Lab(proved=False, queues=4) as lab:
            command = ["dovecot", "-F", "-c", str(configuration(lab.near, kept))]
            with server(lab.near, command, PORT, on_server, listeners=0, require=False) as master:
                before = lab.near.wire_packets(), lab.near.kernel_packets()["tcp"]
                said = lab.far.run([sys.executable, "-c", CLIENT, lab.near.address, str(PORT), str(SESSIONS)], on_client, timeout=90)
                assert len(re.findall("^ok$", said, re.M)) == SESSIONS, said
                wire = lab.near.wire_packets() - before[0]
                kernel = lab.near.kernel_packets()["tcp"] - before[1]
                paths = sorted({s["path"] for p in descendants(master.pid) for s in statistics(p).get("sockets", [])
                                if s["local"].endswith(f":{PORT}")})
                print(f"{SESSIONS} sessions, libaccel in the workers' environment: {kept and on_server}; of {wire} frames the kernel's stack "
                      f"carried {kernel}; listeners' paths: {paths}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
