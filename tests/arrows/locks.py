#!/usr/bin/env python3
"""Has clang check every source of src that takes a lock (-Wthread-safety; src/base/mutex.h has the words): locks.py SOURCE_DIR BUILD_DIR

It checks first that it finds what it is to find. Locks that the analysis does not know (std::mutex, pthread_mutex_t) stand in base/mutex.h alone."""
import collections
import concurrent.futures
import os
import pathlib
import re
import subprocess
import sys

source, build = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])
LIBNL = "/usr/include/libnl3"
AT_ONCE = 8
TAKES = re.compile(r"\b(Mutex|MutexLock|WorkerLock|lock_in|unlock_out|ACCEL_GUARDED_BY|ACCEL_REQUIRES)\b|lock\(\)")
UNKNOWN = re.compile(r"std::(shared_|recursive_|timed_)?mutex|pthread_(mutex|rwlock|spinlock)_t")
WRONG = """
#include "base/mutex.h"
accel::Mutex lock;
int counted ACCEL_GUARDED_BY(lock) = 0;
int count() { return ++counted; }
"""


def analysis_of(text):
    words = ["clang++", "-fsyntax-only", "-std=c++20", "-x", "c++", f"-I{source}/src", f"-I{build}/generated", f"-I{LIBNL}", "-Wthread-safety",
             "-Werror=thread-safety-analysis", "-"]
    return subprocess.run(words, input=text, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def faults_of(files):
    """Of files of one folder, at once, since their headers are most of the work. Some define the same names: then of each."""
    done = analysis_of("".join(f'#include "{path}"\n' for path in files))
    if done.returncode == 0:
        return []
    if len(files) > 1:
        return [fault for path in files for fault in faults_of([path])]
    return [f"{files[0].relative_to(source)}:\n{done.stdout}"]


problems = []
wrong = analysis_of(WRONG)
if wrong.returncode == 0 or "requires holding mutex 'lock'" not in wrong.stdout:
    problems.append(f"an access without its lock was not found:\n{wrong.stdout}")
files = sorted(p for p in (source / "src").rglob("*.cc")
               if "bpf" not in p.suffixes and (TAKES.search(p.read_text()) or "engine/process.h" in p.read_text()))
if len(files) < 10:
    problems.append(f"only {len(files)} sources take a lock")
folders = collections.defaultdict(list)
for path in files:
    folders[path.parent].append(path)
batches = [paths[at:at + AT_ONCE] for paths in folders.values() for at in range(0, len(paths), AT_ONCE)]
with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
    for faults in pool.map(faults_of, batches):
        problems += faults
for path in sorted((source / "src").rglob("*.[ch]*")):
    if path.name != "mutex.h" and (found := UNKNOWN.search(path.read_text())):
        problems.append(f"{path.relative_to(source)}: {found[0]}: base/mutex.h has a lock that clang knows")
print("\n".join(problems) or f"{len(files)} sources")
sys.exit(bool(problems))
