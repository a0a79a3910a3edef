#!/usr/bin/env python3
"""Repeats each test that kills, cancels or waits, to find tests that fail sometimes. `.ci/soak repeat` runs it.

    .ci/repeat.py [--count 100] [--lanes 4] [--minutes 120] [--test-minutes 5] [PACKAGE...]

It runs several tests at once, so that the processors are busy. The last lines name the tests that failed, and how often
each of the others ran: a test that is stopped by --minutes or --test-minutes has run less often than --count.
"""

from __future__ import annotations

import argparse
import collections
import concurrent.futures
import os
import re
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WAITS = re.compile(
    r"\bKill|SIGKILL|[cC]ancel\(|WithTimeout|WithCancel|\.Wait\(|Eventually|time\.Sleep|<-time\.After|Signal\(|Drain|Shutdown"
)
TEST = re.compile(r"^func (Test\w+)\(\w+ \*testing\.T\)", re.M)
# TestOnCUDA repeats the tests of its package, and these tests start all tests of a program again.
LEFT_OUT = {"TestOnCUDA", "TestMain"}


def tests() -> dict[str, list[str]]:
    """Returns the tests that wait, by the folder of their package."""
    found: dict[str, list[str]] = collections.defaultdict(list)
    listed = subprocess.run(["git", "ls-files", "*_test.go"], cwd=ROOT, capture_output=True, text=True, check=True)
    for file in listed.stdout.split():
        for part in re.split(r"^(?=func )", (ROOT / file).read_text(), flags=re.M):
            name = TEST.match(part)
            if name and name[1] not in LEFT_OUT and WAITS.search(part):
                found[os.path.dirname(file)].append(name[1])
    return found


def build(folder: str, target: Path) -> bool:
    done = subprocess.run(["go", "test", "-c", "-o", str(target), "."], cwd=ROOT / folder, capture_output=True, text=True)
    if done.returncode:
        print(f"{folder}: {done.stderr}", flush=True)
    return done.returncode == 0 and target.exists()


class Runs:
    """The results of all tests."""

    def __init__(self, count: int, until: float, each: float, logs: Path) -> None:
        self.count, self.until, self.each, self.logs = count, until, each, logs
        self.passed: collections.Counter[str] = collections.Counter()
        self.failed: collections.Counter[str] = collections.Counter()
        self.skipped: set[str] = set()
        self._lock = threading.Lock()

    def run(self, folder: str, binary: Path, name: str) -> None:
        """Repeats a test in processes of up to ten runs each."""
        key = f"{folder}.{name}"
        until = min(self.until, time.monotonic() + self.each)
        several = 1
        while time.monotonic() < until:
            left = self.count - self.passed[key] - self.failed[key]
            if left <= 0 or self.failed[key] >= 3:
                return
            command = [str(binary), "-test.v", "-test.run", f"^{name}$", "-test.count", str(min(left, several)), "-test.timeout", "10m"]
            begin = time.monotonic()
            done = subprocess.run(command, cwd=ROOT / folder, capture_output=True, text=True, errors="replace")
            several = 10 if time.monotonic() - begin < several else 1
            passed = len(re.findall(rf"^--- PASS: {name} ", done.stdout, re.M))
            skipped = len(re.findall(rf"^--- SKIP: {name} ", done.stdout, re.M))
            with self._lock:
                self.passed[key] += passed
                if skipped or not (passed or done.returncode):
                    self.skipped.add(key)
                    return
                if done.returncode:
                    self.failed[key] += 1
                    log = self.logs / f"{key.replace('/', '-')}-{self.failed[key]}.log"
                    log.write_text(done.stdout + done.stderr)
                    print(f"FAILED {key}: {log}", flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("packages", nargs="*", help="folders of packages; by default all")
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--lanes", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--test-minutes", type=float, default=float("inf"), help="limit for each test")
    options = parser.parse_args()
    found = {folder: names for folder, names in tests().items() if not options.packages or folder in options.packages}
    folder = Path(tempfile.mkdtemp(prefix="repeat-"))
    runs = Runs(options.count, time.monotonic() + options.minutes * 60, options.test_minutes * 60, folder)
    jobs = []
    for package, names in sorted(found.items()):
        binary = folder / package.replace("/", "-")
        if not build(package, binary):
            runs.failed[package] += 1
            continue
        jobs += [(package, binary, name) for name in names]
    print(f"{len(jobs)} tests of {len(found)} packages, {options.count} times each, {options.lanes} at once", flush=True)
    with concurrent.futures.ThreadPoolExecutor(options.lanes) as pool:
        list(pool.map(lambda job: runs.run(*job), jobs))
    whole = sum(1 for value in runs.passed.values() if value >= options.count)
    less = [(value, key) for key, value in runs.passed.items() if value < options.count and key not in runs.failed]
    print(f"{whole} tests passed {options.count} times, {len(less)} less often, {len(runs.skipped)} were skipped")
    for value, key in sorted(less):
        print(f"  {value:4} {key}")
    for key, value in runs.failed.items():
        print(f"  FAILED {value} times: {key}")
    print(f"logs: {folder}")
    return 1 if runs.failed else 0


if __name__ == "__main__":
    sys.exit(main())
