#!/usr/bin/env python3
"""benchmarks/run without measuring: rounds are interleaved and kept, a failed suite does not end the others, changes beyond noise are told from
noise, and the page needs no other file."""
import contextlib
import importlib.machinery
import importlib.util
import io
import json
import pathlib
import re
import sys
import tempfile

sys.dont_write_bytecode = True
ROOT = pathlib.Path(__file__).resolve().parents[2]


def load():
    loader = importlib.machinery.SourceFileLoader("benchmarks_run", str(ROOT / "benchmarks" / "run"))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("benchmarks_run", loader))
    loader.exec_module(module)
    return module


def expect(condition, *what):
    if not condition:
        sys.exit("FAILED: " + " ".join(str(w) for w in what))


def rows_of(suite, identity, factor=1.0):
    """As its suite gives them: some rows of each."""
    sides = ["kernel", "server", "both"]
    values = {"protocol": ["tcp", "udp"], "bytes": [64, 4096], "connections": [1, 16], "load %": [10, 90], "unit": ["Gb/s"], "what": ["one", "two"],
              "program": ["a", "b"]}
    keys = [k for k in identity if k != "accelerated"]
    figures = {"latency": ["us", "x kernel"], "distribution": ["0.5", "0.9", "0.99", "0.999"], "sizes": ["Gb/s", "CPU ns a KiB"],
               "connections": ["k/s", "CPU us a request"], "throughput": ["rate", "x kernel"], "underload": ["sent/s", "lost %", "p50 us", "p99 us"],
               "multicast": ["k/s", "sent k/s", "lost %"]}.get(suite, ["requests/s", "x kernel"])
    rows = []
    for i in range(2 if keys else 1):
        for side in sides if "accelerated" in identity else [None]:
            row = {k: values.get(k, ["a", "b"])[i % len(values.get(k, ["a", "b"]))] for k in keys}
            if side:
                row["accelerated"] = side
            rows.append({**row, **{f: factor * (10 + i + sides.index(side or "kernel") + 5 * n) for n, f in enumerate(figures)}})
    return rows


def main():
    run = load()
    order = []
    suites = {}
    for name, (title, _, identity) in run.SUITES.items():
        def once(rounds, name=name, identity=identity):
            order.append(name)
            if name == "siw" and order.count("siw") == 2:
                raise AssertionError("a <reason>")
            return rows_of(name, identity, 1 + 0.01 * order.count(name))
        suites[name] = (title, once, identity)
    run.SUITES = suites
    with contextlib.redirect_stderr(io.StringIO()) as said:
        result = run.measure(3, list(suites))
    expect(order == list(suites) * 3, order)
    expect(f"[{3 * len(suites)}/{3 * len(suites)}] round 3 of 3" in said.getvalue(), said.getvalue())
    expect(result["failed"] == ["siw, round 2: a <reason>"], result["failed"])
    rows = result["suites"]["redis"]["rows"]
    expect([round(v, 6) for v in rows["kernel"]["figures"]["requests/s"]] == [10.1, 10.2, 10.3], rows)
    counts = {name: {len(v) for row in suite["rows"].values() for v in row["figures"].values()} for name, suite in result["suites"].items()}
    expect(counts == {name: {2 if name == "siw" else 3} for name in suites}, counts)

    # The same again is no change; what is 20 % more in each round is; 20 % more in one round of three is noise; 3 % more is too little. What
    # is lost where nothing was is a change, and what was sent is none.
    lossy = next(iter(result["suites"]["multicast"]["rows"]))
    result["suites"]["multicast"]["rows"][lossy]["figures"]["lost %"] = [0, 0, 0]
    changed = json.loads(json.dumps(result))
    expect(run.changes(result, changed)[0] == [], run.changes(result, changed)[0])
    for suite, figure, factors in (("nginx", "requests/s", (1.2, 1.2, 1.2)), ("latency", "us", (1.2, 1.2, 1.2)), ("redis", "requests/s", (1, 1, 1.2)),
                                   ("connections", "k/s", (1.03, 1.03, 1.03))):
        row = next(iter(changed["suites"][suite]["rows"].values()))
        row["figures"][figure] = [v * f for v, f in zip(row["figures"][figure], factors)]
    changed["suites"]["multicast"]["rows"][lossy]["figures"].update({"lost %": [1, 2, 3], "sent k/s": [99, 99, 99]})
    found, compared = run.changes(result, changed)
    expect([(c[0], c[2], c[4]) for c in found] == [("latency", "us", False), ("multicast", "lost %", False), ("nginx", "requests/s", True)], found)
    expect(compared > 50, compared)
    with contextlib.redirect_stdout(io.StringIO()) as said:
        status = run.compare(result, changed)
    expect(status == 1 and said.getvalue().index("WORSE") < said.getvalue().index("better"), said.getvalue())
    with contextlib.redirect_stdout(io.StringIO()):
        expect(run.compare(result, result) == 0, "the same run has changed")
    changed["suites"]["same_host"]["rows"] = {"a": {"of": {"load": "redis, 1/s"}, "figures": {"kernel": [10, 20], "shm": [20, 50]}}}

    # Of each round its own ratio; a figure of which less is better is turned round.
    with contextlib.redirect_stdout(io.StringIO()) as said:
        run.ratios(changed)
    table = said.getvalue()
    expect(table.startswith("| Measured | Figure | Kernel | server | both |\n"), table)
    expect("wrk, one worker, 64 keep-alive connections | requests/s | 12.24 | 0.92 (0.92 to 0.92) | 1.00 (1.00 to 1.00) |" in table, table)
    expect("shared memory: redis | 1/s | 15.00 |  | 2.25 (2.00 to 2.50) |" in table, table)
    expect("blocking: tcp, 64 | us | 12.24 | 1.09 (1.09 to 1.09) | 1.00 (1.00 to 1.00) |" in table, table)

    with tempfile.NamedTemporaryFile("w", suffix=".json") as other:
        other.write('{"format": 0}')
        other.flush()
        try:
            run.loaded(other.name)
            expect(False, "another format was read")
        except SystemExit as refused:
            expect("another version" in str(refused), refused)

    if not run.has_plots():
        print("python3-matplotlib is not installed: the page was not made")
        sys.exit(77)
    text = run.page(result)
    expect(all(f"id={name}>" in text for name in suites), "a suite is missing")
    expect("a &lt;reason&gt;" in text and "<reason>" not in text, "a text is not escaped")
    expect(not re.search(r'(?:src|href)="?(?!#)[a-z]+:|<script|<link|@import', text), "it needs another file")
    expect(text.count("<svg") >= 10, text.count("<svg"))


main()
