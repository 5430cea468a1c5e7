#!/usr/bin/env python3
"""Holds the names in the documents: names.py SOURCE_DIR BUILD_DIR

What stands in backquotes is a path of the repository, a wire script (tests/scripts) without its ending, a test of ctest's or the beginning of such
names, or all its words are words of the sources, tests or scripts. A file that is named with a folder of src needs no `src/`."""
import fnmatch
import pathlib
import re
import subprocess
import sys

source, build = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
DOCUMENTS = ["ARCHITECTURE.md", "README.md", "docs/api.md", "docs/compatibility.md", "docs/security.md", "docs/mlx5.md", "docs/tcp.md", *(
    str(p.relative_to(source)) for p in sorted((source / "docs" / "design").glob("*.md")))]
CORPUS = ["src", "include", "model", "tests", "config", "benchmarks", "scripts", "CMakeLists.txt", "CMakePresets.json", "test", "demo", ".ci/run"]
TEST = re.compile(r"(apps|arrows|firewall|lab|long|mlx5|posix|preload|sim|tools|unit|wire|xdp)(\.[\w-]+)+(\.\*)?")
# Words of others that the documents name and no source does.
OTHERS = {"BPF_LINK_DETACH", "BPF_NETFILTER", "BPF_PROG_TEST_RUN", "hashlimit", "nf_conntrack_tcp_loose", "rcv_ssthresh", "skuid",
          "vport"}


def tracked():
    listed = subprocess.run(["git", "-C", source, "ls-files"], stdout=subprocess.PIPE, text=True)
    if listed.returncode == 0:
        return [source / line for line in listed.stdout.splitlines()]
    return [p for p in source.rglob("*") if p.is_file() and not p.parts[len(source.parts)].startswith("build-")]


FILES = [p for p in tracked() if p.is_file()]
PATHS = {str(p.relative_to(source)) for p in FILES}
FOLDERS = {str(parent) for path in PATHS for parent in pathlib.PurePath(path).parents}


def words():
    found = set()
    for path in FILES:
        name = str(path.relative_to(source))
        found.update(re.findall(r"(?:tests|model)/\w+/(\w+?)_(?:test|fuzz)\.cc$", name))  # a test's name
        if any(name == c or name.startswith(c + "/") for c in CORPUS):
            found.update(re.findall(r"[A-Za-z0-9_]+", name))
            found.update(re.findall(r"[A-Za-z0-9_]+", path.read_text(errors="replace")))
    return found


def tests():
    """As CMake has written them down: ctest -N would begin the log anew of the ctest that runs this."""
    return [name for path in build.rglob("CTestTestfile.cmake")
            for name in re.findall(r"(?m)^ *add_test\(\[=\[(.+?)\]=\]", path.read_text())]


def is_path(text):
    return any(prefix + text in PATHS or (prefix + text).rstrip("/") in FOLDERS for prefix in ("", "src/", "docs/", "tests/"))


def scripts(name):
    """The wire scripts of this name, in which * stands for anything; None: it cannot be one."""
    folder, _, page = name.partition("/")
    if not page or f"tests/scripts/{folder}" not in FOLDERS:
        return None
    return [p for p in PATHS if fnmatch.fnmatch(p, f"tests/scripts/{name}.pkt")]


def faults():
    known, all_tests = words() | OTHERS, tests()

    def is_ending(word):
        return word.startswith("_") and any(w.endswith(word) for w in known)

    for document in DOCUMENTS:
        inside = False
        for number, line in enumerate((source / document).read_text().splitlines(), 1):
            if line.startswith("```"):
                inside = not inside
            if inside:
                continue
            for name in re.findall(r"`([^`]+)`", line):
                if is_path(name):
                    continue
                if (pages := scripts(name)) is not None:
                    if not pages:
                        yield f"{document}:{number}: no script {name}"
                    continue
                if TEST.fullmatch(name) and not name.endswith((".cc", ".h", ".py")):
                    begins = name.removesuffix(".*")
                    if not any(t == begins or t.startswith(begins + ".") for t in all_tests):
                        yield f"{document}:{number}: no test {name}"
                    continue
                if re.fullmatch(r"[\w./-]+\.(cc|h|c|py|md|def|toml|sh|txt)", name) and not name.startswith(("/", ".")):
                    if not any(p.endswith("/" + name) for p in PATHS):
                        yield f"{document}:{number}: no file {name}"
                    continue
                unknown = [w for w in re.findall(r"[A-Za-z_][A-Za-z0-9_]*", name) if w not in known and not is_ending(w)]
                if unknown:
                    yield f"{document}:{number}: `{name}`: no source has {', '.join(unknown)}"


found = list(faults())
print("\n".join(found) or f"{len(DOCUMENTS)} documents")
sys.exit(bool(found))
