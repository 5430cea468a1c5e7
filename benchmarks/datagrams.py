#!/usr/bin/env python3
"""UDP datagrams of 64 B a second: one way and both ways at once, one a call and 32 a call; kernel, accelerated receiver, sender, both ends; interleaved.

Blocking sockets, as fast as the sender can. Both ways: each end sends and receives on one socket, in a thread each; the rate is both directions'."""
import contextlib
import json
import subprocess

from measure import MODES, Lab, build_dir, carried, compare, main

TOOL = build_dir() / "bin" / "datagrams"
PORT, SIZE = 9300, 64
PIPES = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
SIDES = {"kernel": "kernel", "server": "server", "sender": "client", "both": "both"}
BATCHES = {"send() and recv()": 1, "32 a call": 32}


@contextlib.contextmanager
def tool(host, accelerated, *words, **options):
    """The program, in its place when it says "ready" (a sender says its figures alone), ended with its input."""
    child = host.popen([TOOL, *words], accelerated, **PIPES, **options)
    if words[0] != "send":
        assert child.stdout.readline() == "ready\n", f"{words} ended with {child.wait()}"
    yield child
    child.stdin.close()
    assert child.wait(60) == 0, f"{words} ended with {child.returncode}"


def figures(child):
    return json.loads(child.stdout.readline())


def rates(sent, received, copies=1):
    """Losses are of the datagrams that the sender's calls took, `copies` of each."""
    return {"k/s": received["per_second"] / 1e3, "sent k/s": sent["per_second"] / 1e3,
            "lost %": 100 * (1 - received["messages"] / (sent["messages"] * copies))}


def one_way(side, batch, seconds):
    on_receiver, on_sender = MODES[side]
    with Lab() as lab, tool(lab.near, on_receiver, "receive", lab.near.address, PORT, batch) as receiver:
        def run():
            with tool(lab.far, on_sender, "send", lab.far.address, lab.near.address, PORT, batch, SIZE, seconds, 0) as sender:
                return rates(figures(sender), figures(receiver))
        return carried(side, lab, run)


def both_ways(side, batch, seconds):
    with Lab() as lab, contextlib.ExitStack() as ending:
        ends = [ending.enter_context(tool(host, on, "exchange", host.address, lab.other(host).address, PORT, batch, SIZE, seconds))
                for host, on in zip(lab.hosts, MODES[side])]

        def run():
            for end in ends:
                end.stdin.write("\n")
                end.stdin.flush()
            found = list(map(figures, ends))
            total = {key: sum(each[key] for each in found) for key in found[0]}
            return rates({"messages": total["sent"], "per_second": total["sent"] / seconds}, total)
        return carried(side, lab, run)


def measure(rounds=3, seconds=1):
    rows = []
    for way, once, sides in (("one way", one_way, SIDES), ("both ways", both_ways, ("kernel", "server", "both"))):
        for how, batch in BATCHES.items():
            results = compare(rounds, lambda side, o=once, b=batch: o(SIDES[side], b, seconds), tuple(sides))
            rows += [{"what": f"{way}, {how}", "accelerated": side, **found, "x kernel": found["k/s"] / results["kernel"]["k/s"]}
                     for side, found in results.items()]
    return rows


if __name__ == "__main__":
    main("datagrams of 64 B", measure)
