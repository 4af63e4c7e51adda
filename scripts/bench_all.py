#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""All promises about speed and memory, measured on one machine in one run.

Called by scripts/bench.sh. Prints as it goes and writes a page of Markdown:
docs/benchmarks.md. Medians of rounds in which a command and what it is held
against take turns; the page cache is warm.
"""

import argparse
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import bench_make as make
import bench_plot
import bench_profile
from bench import Prepared, cool, files_of, medians, run, warm
from bench_cases import bases, cases, peers

# The last section, which bench_remote.py writes.
REMOTE = "## Checkpoints on other machines"

class Page:
    """Lines for both the terminal and the file."""

    def __init__(self):
        self.lines = []

    def add(self, *lines):
        for line in lines:
            print(line, flush=True)
            self.lines.append(line)

    def table(self, *head):
        self.add("", "| " + " | ".join(head) + " |",
                 "|" + "---|" * len(head))

    def row(self, *cells):
        self.add("| " + " | ".join(str(cell) for cell in cells) + " |")


def sources_of(case):
    """Names of the sources that a case reads."""
    return (case.source, "f2_tp8") if case.base == "cat A B" else (case.source,)


def size_of(folder):
    return sum(p.stat().st_size for p in files_of(Path(folder)))


class Bench:
    def __init__(self, options):
        self.ckpt = options.ckpt
        self.rounds = options.rounds
        self.folder = options.folder
        self.size = int(options.gib * 2**30)
        self.at = {"bytes": self.size}
        self.page = Page()
        self.out = self.folder / "out"
        self.sources = ()  # those in the page cache
        self.prepared = None
        self.late = []
        self.bars = []  # for the plot: label, ratio by the clock, promise

    def make(self, name, build):
        path = self.folder / name
        self.at[name] = str(path)
        if not path.exists():
            print(f"making {name}", file=sys.stderr, flush=True)
            build(path)

    def make_all(self):
        gib, ckpt, at = self.size / 2**30, self.ckpt, self.at
        half = self.size // 2
        self.make("f2", lambda p: make.fairseq2(p, gib))
        self.make("f2_tp8", lambda p: make.quietly(
            [ckpt, "reshard", at["f2"], str(p), "--tp", "8", "--no-fsync",
             "-q"]))
        hf = ["--to", "safetensors", "--dialect", "hf", "--max-shard-size",
              str(self.size // 3)]
        self.make("hf", lambda p: make.converted(ckpt, at["f2"], p, *hf))
        self.make("f32", lambda p: make.converted(
            ckpt, at["hf"], p, *hf[:2], "--dtype", "f32", "--layers", "0",
            "--max-shard-size", str(self.size // 3)))
        self.make("dcp", lambda p: make.converted(
            ckpt, at["hf"], p, "--to", "dcp", "--dp", "4"))
        self.make("st4", lambda p: make.sharded_safetensors(
            Path(at["hf"]), p))
        for piece in (2, 8, 64):
            self.make(f"col{piece}",
                      lambda p, k=piece: make.columns(p, half, k << 10))
        self.make("n1000.safetensors", lambda p: make.many(p, 1000))
        self.make("n10000.safetensors", lambda p: make.many(p, 10000))
        self.make("n100000.safetensors", lambda p: make.many(p, 100000))
        self.make("one.safetensors", lambda p: make.safetensors(
            p, [("whole", "BF16", (1024, self.size // 2048))]))
        for name, count in (("sparse", 32), ("sparse4", 2)):
            self.make(f"{name}.safetensors", lambda p, n=count: make.safetensors(
                p, [(f"t{i}", "BF16", (1 << 10, 1 << 20)) for i in range(n)],
                sparse=True))

    def make_xfs(self):
        mount, image = self.folder / "mnt", self.folder / "xfs.img"
        if not make.loop_xfs(image, mount, 3 * self.size + (1 << 30)):
            self.page.add("", "Row 8 was not measured: no XFS could be made "
                          "and mounted here.")
            return
        self.late.append(lambda: make.unmount(image, mount))
        shutil.copytree(self.at["hf"], mount / "hf")
        self.at["xfs"] = str(mount / "hf")
        self.xfs_out = mount / "out"

    # -- one sample

    def remove(self):
        for path in self.folder.glob("out*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        if "xfs" in self.at:
            shutil.rmtree(self.xfs_out, ignore_errors=True)

    def resolved(self, argv):
        change = {"OUT": str(self.out), "OUT.pt": f"{self.out}.pt",
                  "OUT.safetensors": f"{self.out}.safetensors"}
        if "xfs" in self.at:
            change["XFS"] = str(self.xfs_out)
        return [change.get(word, word) for word in argv]

    def ready(self, sources, size):
        """Makes the page cache hold these sources and no others, and prepares
        memory for `size` more bytes."""
        if self.prepared:
            self.prepared.close()
        self.remove()
        os.sync()
        paths = {name: Path(path) for name, path in self.at.items()
                 if name != "bytes"}
        for name, path in paths.items():
            (warm if name in sources else cool)(path)
        cool(self.folder / "xfs.img")
        self.sources = sources
        self.prepared = Prepared(size)

    def sample(self, argv):
        self.remove()
        os.sync()
        return run(self.resolved(argv))

    def turns(self, commands):
        """Medians of commands by name, run in turn. The first round doesn't
        count: it finds the memory that the host has taken back meanwhile."""
        samples = {name: [] for name in commands}
        for i in range(self.rounds + 1):
            order = list(commands)
            for name in order if i % 2 == 0 else reversed(order):
                sample = self.sample(commands[name])
                if i:
                    samples[name].append(sample)
        self.remove()
        self.best = {name: [min(column) for column in zip(*rows)]
                     for name, rows in samples.items()}
        return {name: medians(rows) for name, rows in samples.items()}

    # -- the tables

    def ratios(self):
        self.page.table("#", "work", "against", "GiB", "clock", "ratio",
                        "of the best", "promised", "processor ratio", "promised",
                        "peak RSS")
        held = {}  # measured bases, by source and command
        groups = {}
        for case in cases(self.ckpt, self.at):
            groups.setdefault((case.source, case.base), []).append(case)
        for (source, base), group in groups.items():
            size = size_of(self.at[source])
            self.ready(sources_of(group[0]), size)
            commands = {"base": bases(self.ckpt, self.at, group[0])}
            commands.update((c.label, c.argv) for c in group)
            held = self.turns(commands)
            for case in group:
                clock, processor, peak = held[case.label]
                by_clock = clock / held["base"][0] / case.scale
                best = (self.best[case.label][0] / self.best["base"][0] /
                        case.scale)
                by_processor = processor / held["base"][1] / case.scale
                if case.clock:
                    self.bars.append((f"{case.row}  {case.label}", by_clock,
                                      case.clock))
                self.page.row(
                    case.row, case.label, base, f"{size / 2**30:.2f}",
                    f"{clock:.2f} s", f"{by_clock:.2f}",
                    f"{best:.2f}", judged(by_clock, case.clock), f"{by_processor:.2f}",
                    judged(by_processor, case.processor),
                    f"{peak / 2**20:.0f} MiB")

    def profiles(self):
        """Where the time of each row goes."""
        if not bench_profile.available():
            self.page.add("", "No profile: there is no perf here.")
            return
        self.page.table("# (% of samples)", "work", *bench_profile.NAMES)
        seen = set()
        for case in cases(self.ckpt, self.at):
            base = bases(self.ckpt, self.at, case)
            for label, argv in ((f"{case.base} ({case.source})", base),
                                (case.label, case.argv)):
                if tuple(argv) in seen or argv[0] == "sh":
                    continue
                seen.add(tuple(argv))
                if sources_of(case) != self.sources:
                    self.ready(sources_of(case),
                               size_of(self.at[case.source]))
                self.remove()
                os.sync()
                shares = bench_profile.profile(self.resolved(argv),
                                               self.folder / "out.perf")
                if shares:
                    self.page.row(case.row, label,
                                  *(f"{share:.0f}" for share in
                                    shares.values()))
        self.remove()

    def against_peers(self):
        rounds = self.rounds
        self.page.table("9: peer", "peer", "ckpt", "times faster",
                        "promised", "processor", "peer's RSS", "ckpt's RSS")
        for label, task, source, argv, wanted in peers(self.ckpt, self.at):
            theirs, ours, why = [], [], None
            self.ready((source,), 2 * self.size)
            for _ in range(rounds):
                # Twice in a row, of which the second counts: the state in which
                # one leaves memory is not a fair start for the other.
                for _ in range(2):
                    warm(Path(self.at[source]))
                    mine = self.sample(argv)
                ours.append(mine)
                for _ in range(2):
                    self.remove()
                    os.sync()
                    warm(Path(self.at[source]))
                    answer = self.peer(task, self.at[source])
                    why = answer.get("skip")
                    if why:
                        break
                if why:
                    break
                theirs.append((answer["clock"], answer["processor"],
                               answer["peak"]))
            if why:
                self.page.row(label, f"not measured: {why}", *[""] * 6)
                continue
            them, us = medians(theirs), medians(ours)
            faster = them[0] / us[0]
            self.page.row(
                label, f"{them[0]:.2f} s", f"{us[0]:.2f} s", f"{faster:.1f}",
                f"{wanted}" + ("" if faster >= wanted else " (missed)"),
                f"{them[1] / us[1]:.1f}", f"{them[2] / 2**20:.0f} MiB",
                f"{us[2] / 2**20:.0f} MiB")

    def peer(self, task, source):
        script = Path(__file__).with_name("bench_peers.py")
        done = subprocess.run(
            [sys.executable, "-B", "-W", "ignore", str(script), task, source,
             str(self.out) + (".pt" if task == "dcp_to_torch_save" else "")],
            capture_output=True, text=True, check=False)
        if done.returncode:
            return {"skip": done.stderr.strip().splitlines()[-1]}
        return json.loads(done.stdout.splitlines()[-1])

    def memory(self):
        bounds = ["32MiB", "64MiB", "256MiB", "1GiB"]
        work = [
            ("TP 4 to 8", ["reshard", self.at["f2"], "OUT", "--tp", "8",
                           "--no-fsync", "-q"]),
            ("one tensor larger than the bound",
             ["convert", self.at["one.safetensors"], "OUT.pt", "--to",
              "torch", "--no-fsync", "-q"]),
            ("digests of 64 GiB (holes)",
             ["inspect", self.at["sparse.safetensors"], "--digest"]),
            ("4 GiB (holes) to torch",
             ["convert", self.at["sparse4.safetensors"], "OUT.pt", "--to",
              "torch", "--no-fsync", "-q"]),
        ]
        self.page.table("10: peak RSS at --max-mem", *bounds, "spread",
                        "promised")
        for label, argv in work:
            peaks = []
            for bound in bounds:
                self.remove()
                peaks.append(run(self.resolved(
                    [self.ckpt, *argv, "--max-mem", bound]))[2])
            spread = (max(peaks) - min(peaks)) / 2**20
            over = max(p / 2**20 - b for p, b in zip(peaks, (32, 64, 256, 1024)))
            self.page.row(label, *(f"{p / 2**20:.0f} MiB" for p in peaks),
                          f"{spread:.0f} MiB", "bound + 64 MiB" +
                          ("" if over <= 64 else " (missed)"))

    def small(self):
        self.page.table("11: small runs", "clock", "processor", "promised",
                        "peak RSS")
        rows = [("ckpt --help", ["--help"], 0.010),
                ("inspect, 1,000 tensors",
                 ["inspect", self.at["n1000.safetensors"]], 0.020),
                ("inspect, 100,000 tensors",
                 ["inspect", self.at["n100000.safetensors"]], 0.080)]
        for label, argv, limit in rows:
            clock, processor, peak = medians(
                [run([self.ckpt, *argv]) for _ in range(21)])
            self.page.row(label, f"{clock * 1000:.1f} ms",
                          f"{processor * 1000:.1f} ms",
                          f"{limit * 1000:.0f} ms" +
                          ("" if clock <= limit else " (missed)"),
                          f"{peak / 2**20:.0f} MiB")

    def partial(self):
        self.page.table("16: partial load", "wanted", "read", "more")
        rows = [("--keys '*q_proj*'", ["convert", self.at["f2"], "OUT",
                                       "--to", "safetensors", "--keys",
                                       "*q_proj*"]),
                ("--layers 0", ["convert", self.at["f2"], "OUT", "--to",
                                "safetensors", "--layers", "0"])]
        for label, argv in rows:
            self.remove()
            done = subprocess.run(
                self.resolved([self.ckpt, *argv, "--json", "--no-fsync"]),
                capture_output=True, text=True, check=True)
            answer = json.loads(done.stdout)
            wanted = answer["bytes_read"]
            header = answer["header_bytes_read"]
            self.page.row(label, f"{wanted / 2**20:.1f} MiB",
                          f"{(wanted + header) / 2**20:.1f} MiB",
                          f"{header / 2**20:.1f} MiB")

    def by_size(self, sizes, *argv):
        """Processor time for one tensor of each size, made of holes."""
        points = []
        path = self.folder / "out_source.safetensors"
        self.ready((), max(sizes))
        for size in sizes:
            samples = []
            for _ in range(3):
                self.remove()
                make.safetensors(path, [("a", "BF16", (1024, size // 2048))],
                                 sparse=True)
                os.sync()
                samples.append(run([self.ckpt, argv[0], str(path),
                                    *self.resolved(argv[1:])]))
            points.append((size, medians(samples)[1]))
        return points

    def by_pieces(self):
        """Time of the planner for matrices of 1,024 pieces."""
        bench = Path(self.ckpt).with_name("plan_bench")
        points = []
        for matrices in (1, 10, 100, 1000):
            pieces = 1024 * matrices
            each = []  # ns a piece
            for _ in range(5):
                lines = subprocess.run(
                    [bench, str(matrices), "1024", "64"], check=True,
                    capture_output=True, text=True).stdout.splitlines()
                each.append(sum(float(line.split()[-6]) for line in lines
                                if line.startswith(("make_plan", "cut_items",
                                                    "work queue"))))
            points.append((pieces, statistics.median(each) * pieces / 1e9))
        return points

    def growth(self):
        self.page.table("17: growth", "times", "exponent", "promised")
        gib = 1 << 30
        read = self.by_size([gib // 2, gib, 2 * gib, 4 * gib, 8 * gib],
                            "inspect", "--digest")
        written = self.by_size(
            [self.size // 8, self.size // 4, self.size // 2, self.size],
            "convert", "OUT.pt", "--to", "torch", "--no-fsync", "-q")
        by_count = []
        for count in (1000, 10000, 100000):
            argv = [self.ckpt, "convert", self.at[f"n{count}.safetensors"],
                    str(self.out), "--to", "safetensors", "--dry-run"]
            by_count.append((count, medians(
                [run(argv) for _ in range(5)])[1]))
        for label, points in (
                ("bytes read, 0.5 to 8 GiB, processor", read),
                ("bytes written, 1/8 to 1, processor", written),
                ("tensors, 1,000 to 100,000, dry run", by_count),
                ("pieces, 1,000 to 1,000,000, planned", self.by_pieces())):
            power = exponent(points)
            self.page.row(label, ", ".join(f"{t:.3f}" for _, t in points),
                          f"{power:.2f}", judged(power, 1.02))

    def threads(self):
        self.ready(("f2",), self.size)
        held = self.turns(
            {f"-j {n}": [self.ckpt, "reshard", self.at["f2"], "OUT", "--tp",
                         "8", "--no-fsync", "-q", "-j", str(n)]
             for n in (1, 2)})
        self.page.table("threads", "clock", "processor")
        for name, (clock, processor, _) in held.items():
            self.page.row(name, f"{clock:.2f} s", f"{processor:.2f} s")

    def all(self):
        self.make_all()
        self.make_xfs()
        self.page.add(*preface(self))
        for part in (self.small, self.ratios, self.profiles,
                     self.against_peers, self.partial, self.growth, self.threads, self.memory):
            part()
        return "\n".join(self.page.lines) + "\n"


def judged(value, limit):
    if limit is None:
        return ""
    return f"{limit:g}" + ("" if value <= limit else " (missed)")


def exponent(points):
    """The slope of log(time) over log(size), by a line through all points."""
    xs = [math.log(x) for x, _ in points]
    ys = [math.log(max(y, 1e-6)) for _, y in points]
    mx, my = statistics.mean(xs), statistics.mean(ys)
    return (sum((x - mx) * (y - my) for x, y in zip(xs, ys)) /
            sum((x - mx) ** 2 for x in xs))


def machine():
    text = Path("/proc/cpuinfo").read_text()
    model = next((line.split(":")[1].strip() for line in text.splitlines()
                  if line.startswith("model name")), platform.machine())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return (f"{os.cpu_count()} processors ({model}), {memory / 2**30:.0f} GiB "
            f"of memory, Linux {platform.release()}")


def preface(bench):
    import torch
    version = subprocess.run([bench.ckpt, "--version"], capture_output=True,
                             text=True, check=True).stdout.splitlines()[0]
    load = os.getloadavg()[0]
    return ["# Benchmarks", "",
            "Written by `scripts/bench.sh`; [performance.md](performance.md) "
            "says what bounds each row.", "",
            "![Clock time over that of cp, for each row](benchmarks.svg)", "",
            f"- machine: {machine()}",
            f"- load when it began: {load:.1f}",
            f"- {version}; torch {torch.__version__}, "
            f"Python {platform.python_version()}",
            f"- {bench.size / 2**30:g} GiB aimed at, medians of "
            f"{bench.rounds}, each in turn "
            "with what it is held against; page cache warm, `--no-fsync` "
            "unless said"]


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ckpt", required=True)
    parser.add_argument("--gib", type=float, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--write", type=Path, help="the page")
    parser.add_argument("--only", help="one table: ratios, memory ...")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    bench = Bench(options)
    try:
        if options.only:
            bench.make_all()
            if options.only == "ratios":
                bench.make_xfs()
            getattr(bench, options.only)()
            return
        text = bench.all()
        if options.write:
            elsewhere = options.write.read_text().partition(f"\n{REMOTE}\n")
            options.write.write_text(text + "".join(elsewhere[1:]))
            plot = options.write.with_suffix(".svg")
            plot.write_text(bench_plot.bars(bench.bars))
    finally:
        bench.remove()
        if bench.prepared:
            bench.prepared.close()
        for undo in bench.late:
            undo()


if __name__ == "__main__":
    main()
