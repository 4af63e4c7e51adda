#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Times `ckpt reshard` against `cp -r` of the same bytes, in alternation.

Called by scripts/bench.sh. Medians by the clock and by processor time; the
page cache is warm. Both matter: the clock says what a user waits for, the
processor time varies less when the machine is shared.

Memory that a virtual machine gave back to its host is touched first: see
bench_memory.py.
"""

import argparse
import os
import re
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

class Prepared:
    """Memory for `size` bytes of page cache that the host needn't find first:
    see bench_memory.py."""

    def __init__(self, size):
        self.child = subprocess.Popen(
            [sys.executable, "-B", Path(__file__).with_name("bench_memory.py"),
             str(size)], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        if self.child.stdout.readline() != b"ready\n":
            sys.exit("bench_memory.py failed: no memory could be prepared")

    def close(self):
        self.child.communicate()


def peak_of(pid):
    """Peak bytes; 0 if the process has ended. What wait4 reports would include
    this interpreter's size at the fork."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return 0
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    return int(found.group(1)) * 1024 if found else 0


def run(argv):
    """(seconds, processor seconds, peak bytes) of a command."""
    start = time.monotonic()
    child = subprocess.Popen(argv, stdout=subprocess.DEVNULL)
    peak = 0
    while True:
        pid, status, usage = os.wait4(child.pid, os.WNOHANG)
        if pid:
            break
        peak = max(peak, peak_of(child.pid))
        time.sleep(0.004)  # the machine may have only two processors
    seconds = time.monotonic() - start
    child.returncode = os.waitstatus_to_exitcode(status)
    if child.returncode:
        sys.exit(f"exit status {child.returncode}: {' '.join(argv)}")
    return (seconds, usage.ru_utime + usage.ru_stime, peak)


def files_of(folder):
    if folder.is_file():
        return [folder]
    return [p for p in folder.rglob("*") if p.is_file()]


def warm(folder):
    for path in files_of(folder):
        with open(path, "rb", buffering=0) as f:
            while f.read(1 << 20):
                pass


def cool(folder):
    """The opposite of warm."""
    for path in files_of(folder):
        with open(path, "rb", buffering=0) as f:
            os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def sample(argv, target):
    shutil.rmtree(target, ignore_errors=True)
    os.sync()
    return run(argv)


def medians(samples):
    return [statistics.median(column) for column in zip(*samples)]


def alternate(commands, target, size, rounds):
    """Runs rounds of all commands in turn; the order changes every round."""
    samples = {name: [] for name in commands}
    memory = Prepared(size)
    for i in range(rounds):
        order = list(commands)
        for name in order if i % 2 == 0 else reversed(order):
            samples[name].append(sample(commands[name], target))
            print(".", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    memory.close()
    shutil.rmtree(target, ignore_errors=True)
    return {name: medians(rows) for name, rows in samples.items()}


def row(label, clock, processor, peak):
    print(f"{label:<22}{clock:>10}{processor:>12}{peak:>12}")


def report(results):
    row("", "clock", "processor", "peak RSS")
    base = results["cp -r"]
    for name, (clock, processor, rss) in results.items():
        row(name, f"{clock:.2f} s", f"{processor:.2f} s",
            f"{rss / 2**20:.0f} MiB")
    for name, (clock, processor, _) in results.items():
        if name != "cp -r":
            row(f"  {name} / cp", f"{clock / base[0]:.2f}",
                f"{processor / base[1]:.2f}", "")


def small(label, argv):
    times = [run(argv) for _ in range(21)]
    clock, processor, rss = medians(times)
    row(label, f"{clock * 1000:.1f} ms", f"{processor * 1000:.1f} ms",
        f"{rss / 2**20:.0f} MiB")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ckpt", required=True)
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--tp", default="4:8")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--option", action="append", default=[],
                        help="one more option for ckpt reshard")
    options = parser.parse_args()
    source, target = str(options.source), str(options.source) + ".out"
    size = sum(p.stat().st_size for p in files_of(options.source))
    warm(options.source)
    commands = {
        "cp -r": ["cp", "-r", source, target],
        "ckpt reshard": [options.ckpt, "reshard", source, target, "--tp",
                         options.tp, "--no-fsync", "-q", *options.option],
    }
    results = alternate(commands, Path(target), size, options.rounds)
    print(f"{size / 2**30:.2f} GiB, --tp {options.tp}, page cache warm, "
          f"medians of {options.rounds}")
    report(results)
    print()
    row("", "clock", "processor", "peak RSS")
    small("ckpt inspect", [options.ckpt, "inspect", source])
    small("ckpt inspect --json", [options.ckpt, "inspect", source, "--json"])
    small("ckpt --help", [options.ckpt, "--help"])


if __name__ == "__main__":
    main()
