"""The accel command's words: the manual's pages, completions, the schema, mistakes on the command line, broken configurations."""
import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile

sys.dont_write_bytecode = True
sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from tools_test import PROFILES, call, expect  # noqa: E402

SCRATCH_FILE = "libaccel.toml"


def commented_in(sample):
    return re.sub(r"^#(?=\[|\w+ = )", "", sample, flags=re.M)


def read(o, name):
    with open(os.path.join(o.source, name)) as file:
        return file.read()


def test_manual(o):
    """The manual's pages are without faults and name every subcommand, option, setting and reason; completions complete."""
    help_text = call(o.tool, "--help").stdout
    names = re.findall(r"^  ([a-z]+) {2,}", help_text.split("Subcommands:")[1], re.M)
    expect({"run", "check", "stat"} <= set(names), help_text)
    pages = {}
    for page in ("accel.1", "libaccel.toml.5", "libaccel.7"):
        text = call(o.tool, "docs", page).stdout
        pages[page] = text.replace("\\-", "-")
        if shutil.which("man"):
            with tempfile.NamedTemporaryFile("w", suffix="." + page) as file:
                file.write(text)
                file.flush()
                shown = call("man", "--warnings", "-l", "-Tutf8", file.name)
                expect(shown.returncode == 0 and not shown.stderr, shown.stderr)
    bash, zsh = (call(o.tool, "docs", shell).stdout for shell in ("bash", "zsh"))
    for name in names:
        expect(f".SS accel {name}\n" in pages["accel.1"] and f"    {name})" in bash and f"'{name}:" in zsh, name)
        for option in re.findall(r"^  (?:-\w,)?(--[a-z-]+)", call(o.tool, name, "--help").stdout, re.M):
            expect(option == "--help" or option in pages["accel.1"] and option in bash and option in zsh, name, option)
    for row in re.findall(r"^\| (\w+) \| ACCEL_", read(o, "docs/settings.md"), re.M):
        expect(f"\\fB{row}\\fR" in pages["libaccel.toml.5"], row)
    for row in re.findall(r"^\| (\w+) \|", read(o, "docs/reasons.md"), re.M)[1:]:
        expect(f"\\fB{row}\\fR" in pages["libaccel.7"], row)

    def complete(*words):
        script = bash + f"COMP_WORDS=({' '.join(map(repr, words))}); COMP_CWORD={len(words) - 1}; _accel; printf '%s\\n' \"${{COMPREPLY[@]}}\"\n"
        done = call("bash", "-c", script)
        expect(done.returncode == 0 and not done.stderr, done)
        return done.stdout.split()

    expect(complete("accel", "che") == ["check"], complete("accel", "che"))
    expect(complete("accel", "run", "--profile", "market") == ["market-data"], complete("accel", "run", "--profile", "market"))
    expect(complete("accel", "check", "--js") == ["--json"], complete("accel", "check", "--js"))
    expect("true" in complete("accel", "run", "--", "tru"))
    if shutil.which("zsh"):
        expect(call("zsh", "-n", "-c", zsh).returncode == 0, zsh)


GOOD = ("", "[default]\nspin = 3\nsend_buffer = '4M'\nrequire = true\n", "include = '/dev/null'\n", "[[application]]\nname = 'x'\npath = 'kernel'\n",
        "[[application]]\nuser_id = 'x'\n[[application.rule]]\nports = '1-2'\nrole = 'tcp_client'\npath = 'stack'\n")
BAD = ("spin = 3\n", "[default]\nspinn = 3\n", "[default]\nspin = -1\n", "[default]\npath = 'x'\n", "[default]\nhuge_pages = 2\n",
       "[[application]]\nspin = 3\n", "[[application]]\nname = 'x'\n[[application.rule]]\nrole = 'tcp_client'\n", "include = 3\n",
       "[[application]]\nname = 'x'\n[[application.rule]]\nrole = 'server'\npath = 'stack'\n", "[default]\nsend_buffer = '4T'\n")


def test_schema(o):
    """Agrees with the program about each document: what it takes is valid, what it complains of is not."""
    try:
        import jsonschema
        import tomllib
    except ImportError as lack:
        print("skipped:", lack)
        sys.exit(77)
    schema = json.loads(call(o.tool, "docs", "schema").stdout)
    jsonschema.Draft7Validator.check_schema(schema)
    validator = jsonschema.Draft7Validator(schema)
    sample = read(o, "config/libaccel.toml")
    good = [*GOOD, sample, commented_in(sample), *(read(o, f"config/profiles/{p}.toml") for p in PROFILES)]
    with tempfile.TemporaryDirectory() as d:
        file = os.path.join(d, SCRATCH_FILE)
        for texts, right in ((good, True), (BAD, False)):
            for text in texts:
                with open(file, "w") as out:
                    out.write(text)
                said = json.loads(call(o.tool, "check", "--json", env={"ACCEL_CONFIG": file}).stdout)["configuration"]
                expect((said == [{"level": "ok", "what": file, "cure": ""}]) == right, text, said)
                expect(validator.is_valid(tomllib.loads(text)) == right, text, list(validator.iter_errors(tomllib.loads(text))))


def test_mistakes(o):
    """What is not understood is named, with what is perhaps meant; an output that cannot be written is an error."""
    for words, said in ((["staat"], "accel: unknown subcommand staat; meant is perhaps stat"),
                        (["stat", "--jsn"], "accel stat: unknown option --jsn; meant is perhaps --json"),
                        (["run", "--profile", "latncy", "--", "true"], "; meant is perhaps latency"),
                        (["check", "extra"], "accel check: unexpected argument extra"),
                        (["zzzzzzz"], "accel: unknown subcommand zzzzzzz\n"),
                        ([], "accel: A subcommand is required")):
        done = call(o.tool, *words)
        expect(done.returncode == 2 and said in done.stderr and not done.stdout, words, done)
        expect("--help lists what there is" in done.stderr, done)
    with open("/dev/full", "w") as full:
        done = subprocess.run([o.tool, "docs", "settings"], stdout=full, stderr=subprocess.PIPE, text=True)
        expect(done.returncode == 1 and "No space left on device" in done.stderr, done)
    expect(call(o.tool, "--version").stdout.strip() and call(o.tool, "--help").returncode == 0)


def test_requirements(o):
    """Configure names all that a bare machine lacks in one message, with packages that scripts/install_packages has; here, nothing."""
    script = ["cmake", "-DCMAKE_GENERATOR=Ninja", "-DACCEL_TESTS=ON", "-P", os.path.join(o.source, "cmake/requirements.cmake")]
    expect(call(*script).returncode == 0, call(*script).stderr)
    if os.geteuid() != 0:
        print("skipped: needs root to hide headers")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as d:
        os.symlink(shutil.which("cmake"), os.path.join(d, "cmake"))
        bare = call(shutil.which("unshare"), "--mount", shutil.which("sh"), "-c", f"{shutil.which('mount')} -t tmpfs none /usr/include && PATH={d} exec \"$@\"",
                    "sh", *script)
    named = re.search(r"apt-get install (.+)", bare.stderr.replace("\n", " ").split("or, for all")[0])
    expect(bare.returncode != 0 and named and bare.stderr.count("CMake Error") == 1, bare.stderr)
    text = read(o, "scripts/packages")
    known = set(text.split("[build]\n")[1].split("[")[0].split())
    packages = set(named.group(1).split())
    expect({"libbpf-dev", "libxdp-dev", "libnl-3-dev", "libev-dev", "libisal-dev", "libfmt-dev", "libcli11-dev", "clang", "g++", "ninja-build",
            "python3", "libgtest-dev"} <= packages, packages)
    expect(packages - {"binutils", "gzip"} <= known, packages - known)


PIECES = (b"[", b"]", b"=", b'"', b"'" * 3, b"\n", b"\\u00e4", b"\xff", b"\0", b"include = 'libaccel.toml'\n", b"[[application]]\n", b"-1",
          b"99999999999999999999", b".", b"{", b"}", b"#", b"1e400", b"nan", b"1979-05-27", b"%")
PROGRAM = """
import socket
s = socket.create_server(("127.0.0.1", 0))
c = socket.create_connection(s.getsockname())
a, _ = s.accept()
c.sendall(b"hello")
print(a.recv(5).decode())
"""


def broken(chance, seeds):
    text = bytearray(chance.choice(seeds))
    for _ in range(chance.randrange(1, 12)):
        at = chance.randrange(len(text) + 1)
        kind = chance.randrange(3)
        if kind == 0:
            text[at:at] = chance.choice(PIECES)
        elif kind == 1:
            del text[at:at + chance.randrange(40)]
        elif at < len(text):
            text[at] = chance.randrange(256)
    return text


def test_fuzzed(o):
    """Broken configurations: none stops a program that reads it by libaccel.so, or changes what it writes."""
    sample = read(o, "config/libaccel.toml")
    seeds = [t.encode() for t in (sample, commented_in(sample), *GOOD, *BAD, *(read(o, f"config/profiles/{p}.toml") for p in PROFILES))]
    problems = 0
    with tempfile.TemporaryDirectory() as d:
        file = os.path.join(d, SCRATCH_FILE)
        for number in range(o.times):
            with open(file, "wb") as out:
                out.write(broken(random.Random(number), seeds))
            done = subprocess.run([sys.executable, "-S", "-E", "-c", PROGRAM], capture_output=True, timeout=60,
                                  env=dict(os.environ, ACCEL_CONFIG=file, LD_PRELOAD=o.preload))
            expect(done.returncode == 0 and done.stdout == b"hello\n", number, done)
            said = done.stderr.decode(errors="replace").splitlines()
            problems += bool(said)
            for line in said:
                expect(line.startswith("libaccel: "), number, line)
    expect(problems > o.times / 2, "most were to be broken, not", problems)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("part", choices=["manual", "schema", "mistakes", "requirements", "fuzzed"])
    for path in ("tool", "source"):
        parser.add_argument("--" + path, required=True)
    parser.add_argument("--preload", help="libaccel.so, of fuzzed")
    parser.add_argument("--times", type=int, default=200, help="of fuzzed")
    options = parser.parse_args()
    globals()["test_" + options.part](options)
