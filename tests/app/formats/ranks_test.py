#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Many processes under mpirun write what one process writes.

    ranks_test.py --ckpt build/bin/ckpt [--kills 60] [--all send,gpus]

One process is the judge of many: the other tests compare its bytes with the
peers. --all takes every golden to every container with every number of ranks
and those exchanges; without it every third golden gets one of them.
"""

import argparse
import contextlib
import hashlib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from resume_test import make_source
from support import DATA, HANG, MPIRUN, Failure, check, state_of, until

SKIPPED = 77
COUNTS = (2, 3, 4, 8)
TARGETS = (("safetensors",), ("torch",), ("dcp", "--dp", "3"),
           ("torch", "--max-shard-size", "1MB"))
# Messages smaller than in any real run, so that there are many.
SEND = ("--exchange", "send", "--exchange-buffer", "1MiB")
# In rounds between GPUs, replaced by the double made of loops and sockets
# (reshard/cuda/abi.h).
GPUS = (*SEND, "--device", "cuda")
MODES = {"auto": (), "read": ("--exchange", "read"), "send": SEND,
         "gpus": GPUS}
# The run that is killed and resumed: several files, and items that many ranks
# share.
KILLED = ("--to", "torch", "--max-shard-size", "20MB", "--no-fsync")
# Open MPI looks for every possible network, a third of a small job's time.
# test_two_hosts sets another, as its command line takes precedence.
QUICK_START = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,vader",
               "OMPI_MCA_osc": "^ucx,rdma"}
# Fields of a job's document that one process's lacks.
ONLY_RANKS = ("ranks", "seconds")


def tree(path):
    """Relative path -> SHA-256, of a file or of all files below."""
    files = [path] if path.is_file() else sorted(
        p for p in path.rglob("*") if p.is_file())
    return {str(p.relative_to(path)): hashlib.sha256(p.read_bytes()).hexdigest()
            for p in files}


def alive(pid):
    """False for a process that is gone, or waits for its parent to notice."""
    return state_of(pid) not in ("", "Z")


def document(text):
    try:
        found = json.loads(text)
    except ValueError:
        return text
    return {k: v for k, v in found.items() if k not in ONLY_RANKS}


def job_environment():
    """The environment without what a launcher of this test may have set. Open
    MPI leaves memory behind, which is no fault of ckpt's."""
    bare = {k: v for k, v in os.environ.items()
            if not k.startswith(("OMPI_", "PMI", "SLURM_"))}
    sanitizer = os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
    return {**bare, **QUICK_START, "CKPT_CUDA_HOST": "1",
            "ASAN_OPTIONS": sanitizer}


class Tests:
    def __init__(self, ckpt, folder, options):
        self.ckpt = str(Path(ckpt).resolve())
        self.folder = folder
        self.options = options
        self.passed, self.failed, self.launches = 0, 0, 0
        self.rng = random.Random(20261122)

    def alone(self, *argv):
        return subprocess.run([self.ckpt, *map(str, argv)], text=True,
                              capture_output=True, env=job_environment())

    def ranks(self, count, *argv, timeout=HANG, environment=None):
        self.launches += 1
        return subprocess.run(
            [*MPIRUN, "-n", str(count), self.ckpt, *map(str, argv)], text=True,
            capture_output=True, timeout=timeout,
            env={**job_environment(), **(environment or {})})

    def target(self):
        path = self.folder / "target"
        shutil.rmtree(path, ignore_errors=True)
        shutil.rmtree(self.folder / ".target.ckpt-staging", ignore_errors=True)
        path.unlink(missing_ok=True) if path.is_file() else None
        return path

    # For a command that writes DST: the same status, JSON and files.
    def same_writing(self, counts, command, source, *more):
        sources = source if isinstance(source, tuple) else (source,)
        line = f"{command} {sources} {' '.join(map(str, more))}"
        dst = self.target()
        argv = [command, *sources, dst, "--no-fsync", "--json", *more]
        one = self.alone(*argv)
        want = tree(dst) if dst.exists() else None
        for count in counts:
            dst = self.target()
            many = self.ranks(count, *argv)
            check(many.returncode == one.returncode,
                  f"{line}: {count} ranks end with {many.returncode}, one "
                  f"with {one.returncode}\n{many.stderr}\n{one.stderr}")
            got = tree(dst) if dst.exists() else None
            check(got == want, f"{line}: {count} ranks write other bytes")
            if one.returncode == 0:
                check_documents(line, one, many, count)
        return one

    def same_answer(self, count, *argv):
        one, many = self.alone(*argv), self.ranks(count, *argv)
        check(many.returncode == one.returncode,
              f"{argv}: {many.returncode}, alone {one.returncode}\n"
              f"{many.stderr}")
        check(document(many.stdout) == document(one.stdout),
              f"{argv}: another answer\n{many.stdout}\n{one.stdout}")
        return one

    # ------------------------------------------------------------- goldens
    def test_goldens(self):
        cases = sorted(p for p in DATA.glob("*/*/ckpt") if p.is_dir())
        check(len(cases) > 60, f"only {len(cases)} goldens")
        if self.options.all:
            self.all_goldens(cases)
            return
        done = 0
        for i, source in enumerate(cases[::3]):
            to = TARGETS[i % len(TARGETS)]
            mode = MODES[("send", "auto", "gpus")[i // 2 % 3]]
            one = self.same_writing((COUNTS[i // 4 % 4],), "convert", source,
                                    "--to", *to, *mode)
            done += one.returncode == 0
        check(done > len(cases) / 5, f"only {done} of {len(cases)} converted")

    def all_goldens(self, cases):
        """Every golden, container and number of ranks; prints what it did."""
        counts = (1, *COUNTS)
        for mode in self.options.all.split(","):
            done = refused = 0
            for source in cases:
                for to in TARGETS:
                    one = self.same_writing(counts, "convert", source, "--to",
                                            *to, *MODES[mode])
                    done += one.returncode == 0
                    refused += one.returncode != 0
            print(f"  {mode}: {done} pairs, and {refused} refused alike, by "
                  f"{', '.join(map(str, counts))} ranks", flush=True)
            check(done > 2 * len(cases), f"only {done} converted")

    def test_topologies(self):
        llama = DATA / "fairseq2_native/llama_tp2dp2_fsdp2/ckpt"
        self.same_writing((3, 8), "reshard", llama, "--tp", "1", "--dp", "1")
        self.same_writing((2, 4), "reshard", llama, "--tp", "4", "--dp", "3")
        mcore = DATA / "megatron_torch_dist/gpt_tp2_pp2_v0161/ckpt"
        self.same_writing((3,), "convert", mcore, "--to", "megatron_zarr",
                          *SEND)
        self.same_writing((4,), "unshard", mcore)
        # Claims about the source are proven before anything is written.
        legacy = DATA / "megatron_legacy/llama_te_tp2_dp2_distopt/ckpt"
        self.same_writing((4,), "reshard", legacy, "--tp", "1", "--pp", "2",
                          *SEND)

    def test_exchange(self):
        """Each file is written by one rank, which reads what others have again,
        or gets it in messages."""
        llama = DATA / "fairseq2_native/llama_tp2dp2_fsdp2/ckpt"
        for source, command in (
                (llama, ("reshard", "--tp", "1", "--dp", "1")),
                (llama, ("reshard", "--tp", "4", "--dp", "3")),
                (llama, ("convert", "--to", "safetensors", "--dtype", "bf16")),
                (DATA / "torch_pt/views/ckpt/views.pt",
                 ("convert", "--to", "dcp", "--dp", "3")),
                (self.big(), ("convert", "--to", "dcp", "--dp", "5"))):
            self.same_writing((5,), command[0], source, *command[1:],
                              *MODES["read"])
            # More ranks than files.
            self.same_writing((3, 8), command[0], source, *command[1:], *SEND)

    def test_gpus(self):
        """Payload goes from GPU to GPU if each rank has its own, and is the
        same as over MPI."""
        for counts, source, command in (
                ((1, 3, 8), "hf/mixtral_f32/ckpt",
                 ("convert", "--to", "dcp", "--dp", "3", "--dtype", "bf16")),
                ((2, 4), "torch_pt/views/ckpt/views.pt",
                 ("convert", "--to", "dcp", "--dp", "3")),
                ((4, 8), "fairseq2_native/llama_tp2dp2_fsdp2/ckpt",
                 ("reshard", "--tp", "4", "--dp", "3")),
                ((2, 3), "megatron_torch_dist/gpt_tp2_pp2_v0161/ckpt",
                 ("unshard", "--dtype", "f32"))):
            self.same_writing(counts, command[0], DATA / source, *command[1:],
                              *GPUS)
        self.same_writing((3, 8), "convert", self.big(), "--to", "dcp", "--dp",
                          "5", *GPUS)
        for name, together in (("", True), ("0000:3B:00.0", False)):
            self.meet_or_not(name, together)

    def meet_or_not(self, gpu, together):
        """Ranks of one machine that share a GPU can't meet over NCCL."""
        given = {"CKPT_CUDA_HOST_NAME": gpu} if gpu else {}
        many = self.ranks(3, "convert", self.big(), self.target(), "--to",
                          "torch", "--max-shard-size", "30MB", "--no-fsync",
                          "--json", *GPUS, environment=given)
        check(many.returncode == 0, many.stderr)
        for rank in json.loads(many.stdout)["ranks"]:
            check((rank["rounds"] > 0) == together, f"{gpu}: {rank}")

    def test_more_ranks(self):
        """More ranks than tensors, and than files to write."""
        path = self.folder / "two.safetensors"
        head = (b'{"a":{"dtype":"U8","shape":[5],"data_offsets":[0,5]},'
                b'"b":{"dtype":"U8","shape":[1],"data_offsets":[5,6]}}')
        path.write_bytes(len(head).to_bytes(8, "little") + head + b"abcdef")
        for mode in MODES.values():
            self.same_writing((8,), "convert", path, "--to", "torch", *mode)

    def test_traffic(self):
        """With messages, each byte is read once, each file has one writer, and
        messages have the requested size."""
        dst = self.target()
        many = self.ranks(5, "convert", self.big(), dst, "--to", "torch",
                          "--max-shard-size", "30MB", "--no-fsync", "--json",
                          *SEND)
        check(many.returncode == 0, many.stderr)
        found = json.loads(many.stdout)["ranks"]
        total = {key: sum(rank[key] for rank in found) for key in (
            "bytes_read", "bytes_written", "bytes_sent", "bytes_received",
            "messages")}
        check(total["bytes_read"] == self.payload, f"{total}")
        check(total["bytes_written"] == self.payload, f"{total}")
        check(total["bytes_sent"] == total["bytes_received"] > 0, f"{total}")
        for rank in found:
            check(rank["bytes_sent"] <= rank["messages"] << 20, f"{rank}")
        refused = self.ranks(2, "convert", self.big(), self.target(), "--to",
                             "torch", "--exchange", "send", "--max-mem",
                             "16MiB", "--exchange-buffer", "1MiB")
        check(refused.returncode == 7 and "hint" in refused.stderr,
              f"{refused}")

    def test_verify(self):
        for i, path in enumerate((
                "fairseq2_native/llama_tp2dp2_fsdp2/ckpt",
                "torch_pt/container_variants/ckpt",
                "megatron_zarr/zarr_v2_variants_emulated/ckpt",
                "dcp/fsdp2_w4_uneven_bf16/ckpt")):
            self.same_answer(COUNTS[i], "verify", DATA / path, "--deep",
                             "--json")
        a = DATA / "dcp/fsdp2_w8/ckpt"
        b = DATA / "dcp/fsdp2_w4_uneven_bf16/ckpt"
        self.same_answer(3, "verify", a, a, "--json")
        self.same_answer(4, "verify", a, b, "--json")
        self.same_answer(2, "diff", a, b, "--json")
        self.same_answer(2, "inspect", a, "--digest", "--json")

    # ---------------------------------------------------- larger than items
    def test_shares(self):
        """Each byte is read by one rank, and ranks differ by less than 5 %."""
        source = self.big()
        for count in (2, 3, 4, 8):
            dst = self.target()
            many = self.ranks(count, "convert", source, dst, "--to", "torch",
                              "--no-fsync", "--json")
            check(many.returncode == 0, many.stderr)
            found = json.loads(many.stdout)
            read = [rank["bytes_read"] for rank in found["ranks"]]
            written = [rank["bytes_written"] for rank in found["ranks"]]
            payload = self.payload
            check(sum(read) == payload, f"{read} is not {payload} bytes")
            check(sum(written) == payload, f"{written}: not {payload}")
            mean = payload / count
            check(max(read) < 1.05 * mean and min(read) > 0.95 * mean,
                  f"{count} ranks read {read}")

    def test_big_layouts(self):
        source = self.big()
        self.same_writing((1, 3), "convert", source, "--to", "dcp", "--dp", "4")
        self.same_writing((4,), "convert", source, "--to", "torch",
                          "--max-shard-size", "20MB", "--max-mem", "16MiB")
        many = self.target()
        self.ranks(3, "convert", source, many, "--to", "torch", "--no-fsync")
        self.same_answer(4, "verify", many, "--json")
        self.same_answer(3, "verify", source, many, "--json")

    def test_casts(self):
        """Digests of both sides."""
        self.same_writing((3,), "convert", self.big(), "--to", "torch",
                          "--dtype", "bf16")

    def test_made(self):
        """Elements that no file has: each rank computes its own. The suites
        *_ranks hold more of them against the peers."""
        llama = DATA / "hf/llama/ckpt"
        other, tuned = self.folder / "other", self.folder / "tuned"
        self.alone("convert", llama, other, "--to", "safetensors", "--dtype",
                   "bf16")
        self.alone("merge", llama, other, tuned, "--weights", "1,1",
                   "--no-normalize")
        self.alone("diff", llama, tuned, "--write", self.folder / "lora",
                   "--as-lora", "4")
        self.same_writing((3,), "merge", (llama, other, tuned))
        self.same_writing((2,), "merge", (other, tuned), "--method", "ties",
                          "--density", "0.5", "--base", llama, *SEND)
        self.same_writing((3,), "convert", llama, "--adapter",
                          self.folder / "lora", *MODES["read"])
        # Sums of what ranks have, blocks, and what is made of made ones.
        q8 = DATA / "gguf/llama-q8_0.gguf"
        self.same_writing((4,), "convert", q8, "--to", "safetensors")
        self.same_writing((2,), "merge", (q8, q8), "--to", "safetensors")
        self.same_writing((3,), "convert", llama, "--to", "safetensors",
                          "--quantize", "fp8-block")

    def test_transposed(self):
        """Elements that don't lie in rows, cut between ranks."""
        try:
            import torch
        except ImportError:
            return
        path = self.folder / "transposed.pt"
        torch.manual_seed(1)
        whole = torch.randn(700, 900)
        torch.save({"t": whole.t(), "cube": torch.randn(30, 40, 50).permute(
            2, 0, 1), "w": torch.randn(4, 4)}, path)
        self.same_writing((2, 3, 8), "convert", path, "--to", "safetensors")

    def big(self):
        path = self.folder / "big.safetensors"
        if not path.exists():
            make_source(path, self.options.mib)
        with open(path, "rb") as file:
            head = int.from_bytes(file.read(8), "little")
        self.payload = path.stat().st_size - 8 - head
        return path

    # ------------------------------------------------------------ failures
    def test_damage(self):
        """A wrong checksum is found whichever rank reads it, and nothing is
        written."""
        path = self.folder / "whole"
        shutil.rmtree(path, ignore_errors=True)
        check(self.alone("convert", self.big(), path, "--to", "torch",
                         "--no-manifest").returncode == 0, "no source")
        victim = max(path.glob("*"), key=lambda p: p.stat().st_size)
        with open(victim, "r+b") as file:
            file.seek(victim.stat().st_size * 2 // 3)
            byte = file.read(1)
            file.seek(-1, 1)
            file.write(bytes([byte[0] ^ 1]))
        one = self.same_writing((4,), "convert", path, "--to", "safetensors")
        check(one.returncode == 4, f"exit {one.returncode}: {one.stderr}")
        self.same_answer(3, "verify", path, "--json")

    def script(self, count, before, *argv):
        """Starts a job in which each rank first runs `before`, in sh."""
        pids = self.folder / "pids"
        shutil.rmtree(pids, ignore_errors=True)
        pids.mkdir()
        line = ("rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}; "
                f'echo $$ >{pids}/$rank; {before}\nexec "$@"')
        self.launches += 1
        return subprocess.Popen(
            [*MPIRUN, "-n", str(count), "sh", "-c", line, "sh", self.ckpt,
             *map(str, argv)], text=True, stderr=subprocess.PIPE,
            stdout=subprocess.DEVNULL, env=job_environment(),
            start_new_session=True)

    def pids(self):
        found = {}
        for path in (self.folder / "pids").iterdir():
            text = path.read_text().strip()
            if text:
                found[int(path.name)] = int(text)
        return found

    def ended(self, job):
        """Returns what the job printed, once it has ended. If a rank was
        killed, a launcher whose ranks are all gone may wait forever for a lock
        of its own: Open MPI 4.1.4 does so in PMIx_server_finalize, one time in
        a hundred or more. It is killed here, and its exit status says
        nothing."""
        deadline = time.monotonic() + HANG
        alone_since = None
        while True:
            try:
                _, said = job.communicate(timeout=0.2)
                return said, alone_since is not None and job.returncode == -9
            except subprocess.TimeoutExpired:
                now = time.monotonic()
                if now > deadline:
                    raise
                if not self.all_dead():
                    alone_since = None
                elif alone_since is None:
                    alone_since = now
                elif now - alone_since > 60:
                    print("  mpirun hangs without its ranks; it was ended")
                    job.kill()

    def all_dead(self):
        return bool(self.pids()) and not any(
            alive(pid) for pid in self.pids().values())

    def all_gone(self):
        until(lambda: not any(map(state_of, self.pids().values())),
              "no process is left")

    def test_rank_fails(self):
        """A write that fails on rank 2: its error is the job's. With messages
        the write is for other ranks as well."""
        for mode in ((), SEND, GPUS):
            self.fail_rank(mode)

    def fail_rank(self, mode):
        # Room for what Open MPI shares between ranks, not for a file.
        dst = self.target()
        job = self.script(
            4, 'if [ $rank = 2 ]; then trap "" XFSZ; ulimit -f 30000; fi',
            "convert", self.big(), dst, *KILLED, *mode)
        self.fails(job, 6, "rank 2 of 4", "File too large")

    def fails(self, job, status, *words):
        """The job ends in time, with this status and these words, and its work
        can be resumed."""
        begin, dst = time.monotonic(), self.folder / "target"
        said, hung = self.ended(job)
        took = time.monotonic() - begin
        check(hung or job.returncode == status,
              f"exit {job.returncode}: {said}")
        for word in words:
            check(word in said, said)
        check(not dst.exists(), "there is a target")
        self.all_gone()
        self.resumed(dst)
        print(f"  ended after {took:.1f} s")

    def test_gpu_fails(self):
        """On rank 2 alone, when it first sends or receives."""
        dst = self.target()
        job = self.script(
            4, "if [ $rank = 2 ]; then export CKPT_CUDA_HOST_GROUPS=0; fi",
            "convert", self.big(), dst, *KILLED, *GPUS)
        self.fails(job, 7, "--device cuda", "--device cpu")

    def idle_rank_fails_and_another_hangs(self):
        """A rank that doesn't answer is ended with all others, in time, even in
        the middle of an exchange."""
        dst = self.target()
        staging = self.folder / ".target.ckpt-staging"
        job = self.script(
            4, 'if [ $rank = 2 ]; then trap "" XFSZ; ulimit -f 30000; fi',
            "convert", self.big(), dst, *KILLED, "-j", "1", "--max-mem",
            "16MiB", "--exchange", "send")
        until(lambda: (staging / "journal.3").exists() or
              job.poll() is not None, "rank 3 has work")
        try:
            os.kill(self.pids()[3], signal.SIGSTOP)
        except ProcessLookupError:
            pass  # it was too fast
        self.fails(job, 6, "rank 2 of 4")

    def idle_rank_is_stopped(self):
        self.stop_rank(1, "gpus")

    def idle_rank_0_is_stopped(self):
        self.stop_rank(0, "send")

    def stop_rank(self, victim, mode):
        """Nothing else fails, so the silent rank must be missed."""
        job = self.slow_job(4, mode, "--max-rate", "8MiB")
        self.wait_for_work(job, "journal.1")  # rank 1 has its task
        try:
            os.kill(self.pids()[victim], signal.SIGSTOP)
        except ProcessLookupError:
            return  # it was too fast
        self.fails(job, 7, f"rank {victim} has ", "stopped")

    def resumed(self, dst):
        """Resumes with any number of ranks and any exchange, to the same
        bytes."""
        count = self.rng.choice((1, 2, 3, 5))
        mode = self.rng.choice(list(MODES))
        argv = ("convert", self.big(), dst, *KILLED, "--resume", "-q",
                *MODES[mode])
        done = self.alone(*argv) if count == 1 else self.ranks(count, *argv)
        check(done.returncode == 0,
              f"--resume with {count}, {mode}: {done.returncode} "
              f"{done.stderr}")
        check(tree(dst) == self.wanted(),
              f"--resume with {count}, {mode}: other bytes")
        left = [p.name for p in self.folder.iterdir() if "staging" in p.name]
        check(not left, f"left behind: {left}")

    def wanted(self):
        if not hasattr(self, "want"):
            path = self.folder / "wanted" / "target"
            path.parent.mkdir()
            check(self.alone("convert", self.big(), path,
                             *KILLED).returncode == 0, "no judge")
            self.want = tree(path)
        return self.want

    def test_kills(self):
        """A rank is killed at random points of the run."""
        self.big()
        whole = self.look_at_a_run()
        hit = resumable = tried = 0
        # A quick machine is done before a signal arrives: that run is no try.
        while hit < self.options.kills and tried < 10 * self.options.kills:
            # Every second one in the middle of messages.
            mode = self.options.exchange or ("send", "auto", "gpus")[tried % 3]
            hit_now, had_work = self.kill_one(whole, mode)
            tried += 1
            hit += hit_now
            resumable += had_work
        check(hit == self.options.kills, f"only {hit} of {tried} kills hit a run")
        print(f"  {tried} kills: {hit} before the end, "
              f"{resumable} with finished items to resume from")

    def work_done(self):
        """Lines of all journals, which are there until the run is published."""
        lines = 0
        with contextlib.suppress(OSError):  # it went away
            for path in self.folder.glob(".target.ckpt-staging/journal*"):
                lines += path.read_bytes().count(b"\n")
        return lines

    def look_at_a_run(self):
        """Seconds from the start to the first sign of work, and the lines of the
        journals at the end."""
        job, start = self.slow_job(4, "auto"), time.monotonic()
        self.wait_for_work(job)
        seconds, lines = time.monotonic() - start, 0
        while job.poll() is None:
            lines = max(lines, self.work_done())
            time.sleep(0.001)  # noqa: TID251  looks at journals
        job.communicate(timeout=HANG)
        return seconds, lines

    def slow_job(self, count, mode, *more):
        dst = self.target()
        # With messages as small as 16 MiB of memory make them.
        small = [word for word in MODES[mode]
                 if word not in ("--exchange-buffer", "1MiB")]
        return self.script(count, "", "convert", self.big(), dst, *KILLED, "-j",
                           "1", "--max-mem", "16MiB", *small, *more)

    def wait_for_work(self, job, name="journal"):
        staging = self.folder / ".target.ckpt-staging" / name
        until(lambda: staging.exists() or job.poll() is not None, "work")

    def kill_one(self, whole, mode):
        count = self.rng.choice((2, 3, 4, 8))
        how = self.rng.choice((signal.SIGKILL, signal.SIGKILL, signal.SIGTERM))
        dst = self.folder / "target"
        self.wanted()
        job = self.slow_job(count, mode)
        if self.rng.random() < 0.1:  # while it begins
            with contextlib.suppress(subprocess.TimeoutExpired):
                job.wait(timeout=self.rng.uniform(0.3, 1) * whole[0])
        else:
            self.wait_for_work(job)
            lines = self.rng.uniform(0, 1) * whole[1]
            until(lambda: self.work_done() >= lines or
                  job.poll() is not None, "so much work is done")
        victim = self.rng.randrange(count)
        killed = self.pids().get(victim) if job.poll() is None else None
        if killed:
            try:
                os.kill(killed, how)
            except ProcessLookupError:
                killed = None
        said, _ = self.ended(job)
        self.all_gone()
        if job.returncode == 0:
            check(tree(dst) == self.wanted(), "other bytes")
            return False, False
        check(killed, f"exit {job.returncode} without a kill: {said}")
        journals = list((self.folder / ".target.ckpt-staging").glob("journal*"))
        had_work = any(p.read_bytes().count(b"\n") > 1 for p in journals)
        if dst.exists():  # killed after the rename
            check(tree(dst) == self.wanted(), "a target of other bytes")
            shutil.rmtree(self.folder / ".target.ckpt-staging",
                          ignore_errors=True)
            return True, False
        self.resumed(dst)
        return True, had_work

    # ---------------------------------------------------------- two machines
    def test_two_hosts(self):
        """Two network namespaces, joined by a cable, stand in for two hosts."""
        a, b = (f"ckpt{os.getpid()}{side}" for side in "ab")
        try:
            if not join_namespaces(a, b):
                print("  skipped: no network namespaces for this user")
                return
            agent = self.folder / "agent.sh"  # what ssh would be
            # Its own host name marks it as another machine.
            agent.write_text(f'#!/bin/sh\nshift\nexec ip netns exec {b} '
                             'unshare --uts sh -c "hostname other; $*"\n')
            agent.chmod(0o755)
            network = "10.77.0.0/24"
            line = ["ip", "netns", "exec", a, *MPIRUN, "-n", "4",
                    "--host", "10.77.0.1:2,10.77.0.2:2",
                    "--mca", "plm_rsh_agent", agent, "--mca", "btl", "tcp,self",
                    "--mca", "btl_tcp_if_include", network,
                    "--mca", "oob_tcp_if_include", network]
            # What is sent to another machine is flushed before it counts.
            sync = tuple(word for word in KILLED if word != "--no-fsync")
            for mode in (KILLED, (*KILLED, *SEND), (*sync, *SEND)):
                dst = self.target()
                many = subprocess.run(
                    [*map(str, line), self.ckpt, "convert", str(self.big()),
                     str(dst), "--json", *mode], text=True, timeout=HANG,
                    capture_output=True, env=job_environment())
                check(many.returncode == 0, many.stderr)
                hosts = [rank["host"] for rank in
                         json.loads(many.stdout)["ranks"]]
                check(hosts.count("other") == 2, f"{hosts}")
                check(tree(dst) == self.wanted(), "two hosts: other bytes")
        finally:
            for name in (a, b):
                subprocess.run(["ip", "netns", "del", name], check=False,
                               stderr=subprocess.DEVNULL)

    # ------------------------------------------------------------- launcher
    def test_launcher(self):
        version = self.alone("--version").stdout
        check("libckpt_mpi.so" in version, version)
        alone = self.folder / "alone"
        alone.mkdir()
        copy = shutil.copy(self.ckpt, alone / "ckpt")
        env = {**job_environment(), "OMPI_COMM_WORLD_SIZE": "2",
               "OMPI_COMM_WORLD_RANK": "0"}
        bare = subprocess.run([copy, "--version"], text=True,
                              capture_output=True, env=env)
        check(bare.returncode == 7 and "libckpt_mpi.so" in bare.stderr,
              f"without the module: {bare.returncode} {bare.stderr}")
        # The other ranks fail likewise, but one message is enough.
        env["OMPI_COMM_WORLD_RANK"] = "1"
        bare = subprocess.run([copy, "--version"], text=True,
                              capture_output=True, env=env)
        check(bare.returncode == 7 and not bare.stderr, f"rank 1: {bare}")
        env["CKPT_LAUNCHER"] = "none"
        bare = subprocess.run([copy, "--version"], env=env, text=True,
                              capture_output=True)
        check(bare.returncode == 0, f"CKPT_LAUNCHER=none: {bare.stderr}")

    def test_messages(self):
        """Wrong usage is reported once, with its exit status."""
        for argv, status in ((("inspect", "nowhere"), 3),
                             (("reshard",), 2), (("--version",), 0)):
            many = self.ranks(3, *argv)
            check(many.returncode == status, f"{argv}: {many}")
            check(many.stderr.count("error:") == (status != 0), many.stderr)
        for argv in (("--exchange", "fly"), ("--exchange-buffer", "much")):
            wrong = self.alone("verify", DATA, *argv)
            check(wrong.returncode == 2 and argv[0] in wrong.stderr,
                  wrong.stderr)

    def names(self, prefix):
        return [name for name in sorted(dir(self)) if name.startswith(prefix)
                and self.options.only in name]

    def run_one(self, name):
        begin = time.monotonic()
        try:
            getattr(self, name)()
            self.passed += 1
        except (Failure, subprocess.TimeoutExpired) as failure:
            self.failed += 1
            print(f"FAIL {name}: {failure}")
        print(f"{name}: {time.monotonic() - begin:.1f} s", flush=True)

    def run_beside(self, name):
        """In a folder of its own."""
        folder = self.folder / name
        folder.mkdir()
        beside = Tests(self.ckpt, folder, self.options)
        os.symlink(self.big(), folder / self.big().name)
        thread = threading.Thread(target=beside.run_one, args=(name,))
        thread.start()
        return beside, thread

    def run(self):
        """Tests that mostly wait for a silent rank run beside the others."""
        idle = [self.run_beside(name) for name in self.names("idle_")]
        for name in self.names("test_"):
            self.run_one(name)
        for beside, thread in idle:
            thread.join()
            self.passed += beside.passed
            self.failed += beside.failed
            self.launches += beside.launches


def join_namespaces(a, b):
    """False if this user may not, or if there is no `ip`."""
    lines = (f"netns add {a}", f"netns add {b}",
             f"link add ckpt0 netns {a} type veth peer name ckpt1 netns {b}",
             f"-n {a} addr add 10.77.0.1/24 dev ckpt0",
             f"-n {b} addr add 10.77.0.2/24 dev ckpt1",
             f"-n {a} link set ckpt0 up", f"-n {b} link set ckpt1 up",
             f"-n {a} link set lo up", f"-n {b} link set lo up")
    return shutil.which("ip") is not None and all(
        subprocess.run(["ip", *line.split()], check=False,
                       stderr=subprocess.DEVNULL).returncode == 0
        for line in lines)


def check_documents(line, one, many, count):
    """A gather may read more than is used, and cuts change how much."""
    a, b = document(one.stdout), document(many.stdout)
    for each in (a, b):
        each.pop("bytes_read")
        each.pop("header_bytes_read")
        each.pop("peak_memory", None)
    check(a == b, f"{line}: another document\n{a}\n{b}")
    ranks = json.loads(many.stdout).get("ranks", [])
    check(len(ranks) == (count if count > 1 else 0), f"{line}: {ranks}")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--ckpt", required=True)
    parser.add_argument("--kills", type=int, default=6)
    parser.add_argument("--mib", type=int, default=96)
    parser.add_argument("--all", default="", metavar="auto,read,send,gpus")
    parser.add_argument("--exchange", default="", help="of the runs killed")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    version = subprocess.run([options.ckpt, "--version"], text=True,
                             capture_output=True, env=job_environment())
    if not shutil.which("mpirun") or "libckpt_mpi.so" not in version.stdout:
        print("skipped: mpirun or the module libckpt_mpi.so is missing")
        return SKIPPED
    with tempfile.TemporaryDirectory(prefix="ckpt-ranks-") as folder:
        tests = Tests(options.ckpt, Path(folder), options)
        tests.run()
    print(f"{tests.passed} passed, {tests.failed} failed, "
          f"{tests.launches} jobs")
    return 1 if tests.failed else 0


if __name__ == "__main__":
    sys.exit(main())
