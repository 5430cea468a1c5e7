#!/usr/bin/env python3
"""Holds that no function of src is dead: dead.py SOURCE_DIR BUILD_DIR

What the linker's --gc-sections would drop is found in the objects of the build: functions that nothing leads to from what the library, its
modules and the command export, by the relocations of each. Local functions count as used, the compiler warns of those. A function that was
inlined wherever it is called has none; the debug information tells, without which this is skipped."""
import collections
import json
import pathlib
import re
import subprocess
import sys

SKIPPED = 77
# What nothing leads to yet, or by the table of symbols alone, by how its name begins.
KEPT = (
    "accel::TcpLayer::adopt(",  # for connections that move between workers; the simulator has it proved until then
    "accel::preload::by_number::",  # one for each row of preload/symbols.def, and not every row has a system call of its own
)


def run(*words):
    return subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=True).stdout


class Object:
    """Functions of an object file, those that each leads to, and those that its data leads to."""

    def __init__(self, path):
        self.path = path
        self.strong, self.exported, self.local = set(), set(), set()
        self.at = collections.defaultdict(list)  # section: (begin, end, name)
        self.calls = collections.defaultdict(set)
        self.read_symbols()
        self.read_relocations()

    def read_symbols(self):
        for line in run("readelf", "-sW", self.path).splitlines():
            words = line.split()
            if len(words) < 8 or words[3] not in {"FUNC", "IFUNC"} or words[6] == "UND":
                continue
            name = words[7]
            begin, size = int(words[1], 16), int(words[2], 0)
            self.at[words[6]].append((begin, begin + size, name))
            if words[4] == "LOCAL":
                self.local.add(name)
            elif words[4] == "GLOBAL":
                self.strong.add(name)
                if words[5] == "DEFAULT":
                    self.exported.add(name)
        for functions in self.at.values():
            functions.sort()

    def read_relocations(self):
        numbers = {name: number for number, name in re.findall(r"^\s*\[\s*(\d+)\]\s+(\S+)", run("readelf", "-SW", self.path), re.M)}
        functions, skipped = [], False
        for line in run("readelf", "-rW", self.path).splitlines():
            section = re.match(r"Relocation section '\.rela(\S*)'", line)
            if section:
                functions = [] if section[1].startswith(".debug") else self.at.get(numbers.get(section[1], ""), [])
                skipped = section[1].startswith((".debug", ".eh_frame", ".note"))
                continue
            words = line.split()
            if skipped or not re.match(r"[0-9a-f]{12,}  ", line) or len(words) < 5:
                continue
            offset = int(words[0], 16)
            holders = [name for begin, end, name in functions if begin <= offset < end] if functions else [""]
            for holder in holders or [""]:
                self.calls[holder].add(words[4])

    def aliases(self):
        """Names of one place: a constructor's, and a clone's of the function that it was made of."""
        for functions in self.at.values():
            by_place = collections.defaultdict(set)
            for begin, end, name in functions:
                by_place[begin].add(name)
            for names in by_place.values():
                if len(names) > 1:
                    yield names
        for name in self.local:
            if "." in name:
                yield {name, name.split(".")[0]}

    def read_jumps(self):
        """A call at a function's end is a jump, and needs no relocation within its section."""
        holder = ""
        for line in run("objdump", "-d", "--no-show-raw-insn", self.path).splitlines():
            if begins := re.match(r"[0-9a-f]+ <(.+)>:$", line):
                holder = begins[1]
            elif jump := re.search(r"\sj\w+ +[0-9a-f]+ <([^+>]+)>$", line):
                self.calls[holder].add(jump[1])

    def inlined(self):
        """Linkage names of functions of which there are inlined copies. A copy leads to its function, and a member to its declaration."""
        names, leads, copies, place, is_copy = {}, {}, [], None, False
        for line in run("readelf", "--debug-dump=info", self.path).splitlines():
            if entry := re.match(r"\s*<\w+><(\w+)>: Abbrev Number: \d+ \((\w+)", line):
                place, is_copy = entry[1], entry[2] == "DW_TAG_inlined_subroutine"
            elif "DW_AT_linkage_name" in line:
                names[place] = line.split()[-1]
            elif "DW_AT_specification" in line or "DW_AT_abstract_origin" in line:
                leads[place] = line.split("<0x")[-1].rstrip(">")
                if is_copy:
                    copies.append(place)
        found = set()
        for place in copies:
            while place not in names and place in leads:
                place = leads[place]
            found.add(any_kind(names.get(place, "")))
        return found


def any_kind(name):
    """A constructor or destructor has a name for each kind of it."""
    return re.sub(r"([CD])[0-5](?=E)", r"\1*", name)


def unreached(objects):
    leads = collections.defaultdict(set)
    todo = []
    for o in objects:
        for holder, callees in o.calls.items():
            if holder:
                leads[holder] |= callees
            else:
                todo += callees
        for names in o.aliases():
            for name in names:
                leads[name] |= names
        todo += o.exported | o.local | {"main"}
    reached = set()
    while todo:
        name = todo.pop()
        if name not in reached:
            reached.add(name)
            todo += leads[name]
    return {o: o.strong - reached for o in objects if o.strong - reached}


def main():
    build = pathlib.Path(sys.argv[2])
    compiled = [entry["output"] for entry in json.loads(run("ninja", "-C", build, "-t", "compdb"))]
    objects = [Object(str(build / o)) for o in compiled if o.startswith("src/") and o.endswith(".o") and (build / o).exists()]
    if "DW_AT_producer" not in run("readelf", "--debug-dump=info", "--dwarf-depth=1", objects[0].path):
        print("no debug information")
        return SKIPPED
    dead = {}
    for o in unreached(objects):
        o.read_jumps()
    for o, names in unreached(objects).items():
        inlined = o.inlined()
        dead.update((name, o.path) for name in names if any_kind(name) not in inlined)
    plain = dict(zip(dead, run("c++filt", *dead).splitlines())) if dead else {}
    faults = sorted(f"{plain[name]}: {pathlib.Path(path).relative_to(build)}" for name, path in dead.items()
                    if plain[name].startswith("accel::") and not plain[name].startswith(KEPT))
    print("\n".join(faults) or f"{sum(len(o.strong) for o in objects)} functions of {len(objects)} objects, none dead")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
