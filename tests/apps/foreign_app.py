#!/usr/bin/env python3
"""Programs of the distribution as they are, each with its usual client: foreign_app.py [NAME...] [--modes kernel,server,both]

Each row (tests/apps/foreign) runs on the kernel, then with libaccel at the server, the client, both. The client must get the same every time.
Each end's share of frames that libaccel carried is printed; where the frames are the kernel's by right the row says for which reason, and
the test holds it. A program that this machine lacks is skipped, and said so (status 77, where all are)."""
import argparse
import difflib
import importlib
import pathlib
import sys
import time

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
from programs import MODES, CommandFailed, Lab  # noqa: E402
from foreign.site import CLEARS, OWN_CALLS, Site, frames, missing, version  # noqa: E402

KINDS = ("web", "names", "messages", "mail", "data", "files", "languages", "services")


def table():
    return {p.name: p for kind in KINDS for p in importlib.import_module(f"foreign.{kind}").PROGRAMS}


class Figures:
    """An end's frames over a block: `share` is the part that did not pass the kernel's stack."""

    def __init__(self, host):
        self.host = host
        self.before = frames(host)

    def take(self):
        self.wire, kernel = (now - before for now, before in zip(frames(self.host), self.before))
        self.share = 1 - min(max(kernel, 0), self.wire) / max(self.wire, 1)
        return self

    def __str__(self):
        return f"{100 * self.share:.0f} % of {self.wire}"


def run(program, mode):
    """(what the client got, server's figures, client's, reasons of the server's sockets, seconds)."""
    begun = time.monotonic()
    with Lab(queues=program.workers) as lab:
        site = Site(lab, program, MODES[mode])
        try:
            site.serve()
            ends = Figures(lab.near), Figures(lab.far)
            result = program.ask(site)
            server, client = (end.take() for end in ends)
            site.look()
        except AssertionError as failure:  # CommandFailed among them
            said = "".join(f"\n--- {path.name}\n{path.read_text(errors='replace')[-3000:]}" for path in site.outputs())
            raise CommandFailed(f"{failure}{said}") from None
        return result, server, client, site.reasons_seen, time.monotonic() - begun


def judge(program, mode, expected, got):
    """What is wrong with a run, as text."""
    result, server, client, reasons, _ = got
    on = MODES[mode]
    faults = []
    if result != expected:
        faults.append("the client's result is not the kernel's:\n" + "\n".join(
            list(difflib.unified_diff(expected.splitlines(), result.splitlines(), "kernel", mode, n=0, lineterm=""))[:20]))
    if on[0] and program.server_kernel in (OWN_CALLS, CLEARS):
        if reasons:
            faults.append(f"{program.server_kernel}, and yet libaccel knows of sockets: {sorted(reasons)}")
    elif on[0] and program.server_kernel:
        if program.server_kernel not in reasons:
            faults.append(f"the server's frames should be the kernel's for {program.server_kernel}; its sockets say {sorted(reasons)}")
    elif on[0] and server.share < program.server_share:
        faults.append(f"the server's share is {server}; its sockets say {sorted(reasons)}")
    if on[1] and not program.client_kernel and client.share < program.client_share:
        faults.append(f"the client's share is {client}")
    return faults


def try_program(program, modes):
    """Whether all is as it should be."""
    expected, faults = None, []
    for mode in modes:
        try:
            got = run(program, mode)
        except CommandFailed as failure:
            if expected is None:  # on the kernel
                print(f"{program.name} {mode}: {failure}", flush=True)
                return False
            faults.append(f"{mode}: {failure}")
            continue
        expected = got[0] if expected is None else expected
        faults += [f"{mode}: {fault}" for fault in judge(program, mode, expected, got)]
        on = MODES[mode]
        print(f"{program.name:12} {version(program):28} {mode:7} server {str(got[1]) if on[0] else '-':16} client "
              f"{str(got[2]) if on[1] else '-':16} {got[4]:5.1f} s" +
              (f"  the server's frames are the kernel's: {program.server_kernel}" if on[0] and program.server_kernel else "") +
              (f"  the client's: {program.client_kernel}" if on[1] and program.client_kernel else ""), flush=True)
    if program.defect:
        print(f"{program.name}: {'fails as expected' if faults else 'FAILS NO MORE, mend the row'}: {program.defect}")
        return bool(faults)
    print("".join(f"{program.name} {fault}\n" for fault in faults), end="", flush=True)
    return not faults


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--modes", default="kernel,server,both")
    parser.add_argument("--all", action="store_true", help="run none, but make sure that these are all that there are")
    options = parser.parse_args()
    programs = table()
    if options.all:
        print("".join(f"{name}: not in both the table and tests/apps/CMakeLists.txt\n" for name in set(options.names) ^ set(programs)), end="")
        return 0 if set(options.names) == set(programs) else 1
    skipped = failed = 0
    for name in options.names or programs:
        if lacks := missing(programs[name]):
            print(f"{name}: SKIPPED, this machine lacks {lacks}")
            skipped += 1
        else:
            failed += not try_program(programs[name], options.modes.split(","))
    return 1 if failed else 77 if skipped == len(options.names or programs) else 0


if __name__ == "__main__":
    sys.exit(main())
