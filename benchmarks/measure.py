"""What the benchmarks share: interleaved rounds, medians, ratios, JSON."""
import argparse
import json
import pathlib
import statistics
import sys

sys.dont_write_bytecode = True
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "tests" / "apps"))
from programs import MODES, Carried, CommandFailed, Lab, accelerated_hosts, build_dir  # noqa: E402,F401

SIDES = ("kernel", "server", "both")  # which ends are preloaded


def compare(rounds, once, sides=SIDES):
    """once(side) -> number or dict of numbers. Runs all sides once a round; returns side -> median."""
    results = {side: [] for side in sides}
    for _ in range(rounds):
        for side in sides:
            results[side].append(once(side))
    return {side: median(values) for side, values in results.items()}


def median(values):
    """Of numbers, or by key of dicts of numbers, where a key need not be in each."""
    if isinstance(values[0], dict):
        return {k: statistics.median(v[k] for v in values if k in v) for k in dict.fromkeys(k for v in values for k in v)}
    return statistics.median(values)


def report(title, rows, as_json=False):
    """rows: dicts, most with the same keys. A table for people, or JSON."""
    if as_json:
        print(json.dumps({"benchmark": title, "rows": rows}, indent=1))
        return
    print(f"\n{title}")
    keys = list(dict.fromkeys(k for r in rows for k in r))
    texts = [[f"{r[k]:,.2f}" if isinstance(r.get(k), float) else str(r.get(k, "")) for k in keys] for r in rows]
    widths = [max(len(k), *(len(t[i]) for t in texts)) for i, k in enumerate(keys)]
    print("  ".join(k.ljust(w) for k, w in zip(keys, widths)))
    for t in texts:
        print("  ".join(x.rjust(w) if x[:1].isdigit() else x.ljust(w) for x, w in zip(t, widths)))
    sys.stdout.flush()


def carried(side, lab, run):
    """Runs it and proves by the namespaces' own counters that the accelerated ends carried the traffic themselves."""
    with Carried(*accelerated_hosts(side, lab.near, lab.far)):
        return run()


def main(title, measure):
    """The command line that every benchmark has."""
    parser = argparse.ArgumentParser(description=title)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    report(title, measure(options.rounds), options.json)
