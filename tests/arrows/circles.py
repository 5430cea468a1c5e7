#!/usr/bin/env python3
"""Holds the circles of includes: circles.py SOURCE_DIR

No headers include each other in a circle. Units of a layer, a header with its source, do so at most three at a time, in the layers of NONE
not at all."""
import pathlib
import re
import sys

source = pathlib.Path(sys.argv[1]) / "src"
MOST = 3  # units
NONE = {"engine", "posix", "stack"}


def includes(node_of):
    """Which nodes each node includes, itself left out; node_of(path) is None where the path is no node."""
    graph = {}
    for path in sorted(source.rglob("*")):
        node = node_of(path) if path.suffix in {".h", ".cc"} else None
        if node is None:
            continue
        known = graph.setdefault(node, set())
        for target in re.findall(r'^\s*#\s*include\s+"([^"]+)"', path.read_text(), re.MULTILINE):
            to = node_of(source / target) if (source / target).exists() else None
            if to not in (None, node):
                known.add(to)
    return graph


def circles(graph):
    """Sets of nodes that reach each other."""
    def reach(start):
        found, todo = set(), [start]
        while todo:
            for to in graph.get(todo.pop(), ()):
                if to not in found:
                    found.add(to)
                    todo.append(to)
        return found

    reached = {node: reach(node) for node in graph}
    return sorted({tuple(sorted(n for n in reached[node] if node in reached.get(n, ()))) for node in graph if node in reached[node]})


def unit_of(layer):
    def unit(path):
        inside = path.relative_to(source)
        return str(inside.with_suffix("")) if inside.parts[0] == layer else None
    return unit


def faults():
    for circle in circles(includes(lambda path: str(path.relative_to(source)) if path.suffix == ".h" else None)):
        yield f"headers include each other in a circle: {', '.join(circle)}"
    for layer in layers:
        most = 1 if layer in NONE else MOST
        for circle in circles(includes(unit_of(layer))):
            sizes.append(f"{layer} {len(circle)}")
            if len(circle) > most:
                yield f"{layer}: {len(circle)} units include each other in a circle, {most} at most: {', '.join(circle)}"


layers = sorted(path.name for path in source.iterdir() if path.is_dir())
sizes = []
found = list(faults())
print("\n".join(found) or f"units in circles: {', '.join(sizes) or 'none'}")
sys.exit(bool(found))
