# SPDX-License-Identifier: Apache-2.0
"""Only what is asked for is read; cases of python_test.py. Bytes are those that
the kernel counts for this process, or that a server has sent."""

import json
import pickle
import shutil
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from itertools import count
from pathlib import Path

import ckpt
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

from python_values import refused
from remote_servers import Server
from support import DATA, check, check_equal

LLAMA = DATA / "hf/llama/ckpt"
ROWS, ROW = 1024, 1 << 14  # 16 MiB of bytes
SLACK = 256 << 10  # headers, blocks that are read whole


def bytes_read():
    """Bytes read by system calls. Mapped bytes are not included, and none are
    mapped (`whole` below)."""
    said = Path("/proc/self/io").read_text()
    return int(said.split("rchar:")[1].split()[0])


@contextmanager
def counted(most, what, least=0):
    before = bytes_read()
    yield
    took = bytes_read() - before
    check(least <= took <= most + SLACK,
          f"{what}: {took} bytes were read, {most} are asked for")


def large(folder):
    """One tensor whose rows each repeat one number, in a file with holes."""
    rows = json.dumps({"w": {"dtype": "U8", "shape": [ROWS, ROW],
                             "data_offsets": [0, ROWS * ROW]}}).encode()
    path = folder / "model.safetensors"
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(rows)) + rows)
        file.truncate(8 + len(rows) + ROWS * ROW)
        for row in (0, 7, ROWS - 1):
            file.seek(8 + len(rows) + row * ROW)
            file.write(bytes([row % 251 + 1]) * ROW)
    return folder


def slices_read_that(folder):
    """Opening reads headers, a slice its rows, a rank its part."""
    with counted(0, "open"):
        source = ckpt.open(large(folder))
    tensor = source["w"]
    with counted(ROWS * ROW, "whole", ROWS * ROW):
        tensor.read()
    with counted(ROW, "a row"):
        check_equal(set(bytes(tensor[7].bytes)), {8}, "values")
    with counted(8 * ROW, "rows"):
        check_equal(tensor[:8].numpy()[:, 5].tolist(), [1, *[0] * 6, 8],
                    "values")
    with counted(ROWS * ROW // 4, "a quarter"):
        tensor[ROWS // 4:ROWS // 2].torch()
    for call in (lambda: ckpt.open(folder).config, lambda: list(source),
                 lambda: repr(tensor), lambda: pickle.dumps(source)):
        with counted(0, "no tensor"):
            call()


def rank_reads_its_part(folder):
    """Each of four ranks reads a quarter into its DTensor, and no more."""
    from ckpt.dcp import Reader
    from torch.distributed.tensor import Shard, distribute_tensor
    from torch.testing._internal.distributed.fake_pg import FakeStore
    large(folder)
    for rank in (0, 3):
        dist.init_process_group("fake", store=FakeStore(), rank=rank,
                                world_size=4)
        try:
            mesh = dist.init_device_mesh("cpu", (4,))
            state = {"w": distribute_tensor(
                torch.zeros(ROWS, ROW, dtype=torch.uint8), mesh, [Shard(0)])}
            with counted(ROWS * ROW // 4, f"rank {rank}", ROWS * ROW // 4):
                dcp.load(state, storage_reader=Reader(folder), no_dist=True)
            mine = state["w"].to_local()
            check_equal(tuple(mine.shape), (ROWS // 4, ROW), "its part")
            at, want = (7, 8) if rank == 0 else (-1, (ROWS - 1) % 251 + 1)
            check_equal(set(mine[at].tolist()), {want}, f"rank {rank}")
        finally:
            dist.destroy_process_group()


def of_urls(folder):
    """The same from a server, and its config.json."""
    place = folder / "model"
    place.mkdir()
    large(place)
    (place / "config.json").write_text('{"model_type": "own"}')
    with Server(folder) as server:
        source = ckpt.open(f"{server.url}/model/")
        sent = server.bytes
        check(sent < SLACK, f"{sent} bytes to open")
        check_equal(set(bytes(source["w"][7].bytes)), {8}, "values")
        check(server.bytes - sent < ROW + SLACK,
              f"{server.bytes - sent} bytes for a row of {ROW}")
        check_equal(source.config, {"model_type": "own"}, "config.json")


def configs(folder):
    """config.json of the chosen step, wherever it is."""
    shutil.copytree(LLAMA, folder / "run/checkpoint-20")
    (folder / "run/checkpoint-20/trainer_state.json").write_text(
        '{"global_step": 20}')
    ckpt.convert(LLAMA, folder / "mc", to="megatron_torch_dist")
    want = json.loads((LLAMA / "config.json").read_text())
    for path in (LLAMA, LLAMA / "model.safetensors", folder / "run",
                 folder / "run/checkpoint-20", folder / "mc"):
        with ckpt.open(path) as source:
            check_equal(source.config, want, str(path))
            other = source.in_dialect("mcore").select(keys=["*norm*"])
        check_equal(source.config, want, "of a checkpoint that was closed")
        check_equal(other.config, want, "in another dialect")
    with ckpt.open(DATA / "dcp/plain_w1/ckpt") as source:
        check_equal(source.config, None, "of none")


def no_such_name(_):
    """A KeyError with our fields, and the name that was meant."""
    with ckpt.open(LLAMA) as source:
        error = refused("model.norm.weigth", ckpt.errors.NoTensorError,
                        source.__getitem__, "model.norm.weigth")
        check(isinstance(error, KeyError) and
              error.hint == "did you mean model.norm.weight?" and
              error.path == str(LLAMA) and str(error).endswith(
                  "(hint: did you mean model.norm.weight?)"), str(error))
        check_equal(str(pickle.loads(pickle.dumps(error))), str(error),
                    "pickled")
        check(source.get("x") is None and "x" not in source and
              "model.norm.weight" in source, "as of a dict")


def gil_is_free(folder):
    """Another thread keeps running while a tensor is read and a command
    runs."""
    source = ckpt.open(large(folder))
    inside, stop, ticks = threading.Event(), threading.Event(), [0]

    def tick():
        while not stop.is_set():
            if inside.is_set():
                ticks[0] += 1
            time.sleep(0)  # noqa: TID251  another thread's turn

    thread = threading.Thread(target=tick)
    thread.start()
    try:
        for call in (source["w"].read, lambda: ckpt.verify(folder),
                     lambda: ckpt.save({"w": source["w"][:]}, folder / "a.pt",
                                       overwrite=True)):
            ticks[0] = 0
            for _ in range(100):  # both may want the only processor
                inside.set()
                call()
                inside.clear()
                if ticks[0] > 2:
                    break
            check(ticks[0] > 2, "no other thread ran")
    finally:
        stop.set()
        thread.join()


def threads_and_their_files(folder):
    """Saves of some threads don't fail because of files that others opened and
    replaced; nor do those."""
    tensor, end = torch.arange(1 << 20, dtype=torch.uint8), time.monotonic() + 2

    def save(number):
        for turn in count():
            if time.monotonic() > end:
                return turn
            ckpt.save({"w": tensor}, folder / f"{number}.safetensors",
                      overwrite=turn > 0)

    def replace(number):
        for turn in count():
            if time.monotonic() > end:
                return turn
            path = folder / f"source{number}.safetensors"
            path.with_suffix(".new").write_bytes(file_of(turn % 251))
            path.with_suffix(".new").rename(path)
            with ckpt.open(path) as source:
                check_equal(source["w"].read().torch()[5].item(), turn % 251,
                            path.name)

    def file_of(value):
        text = json.dumps({"w": {"dtype": "U8", "shape": [64],
                                 "data_offsets": [0, 64]}}).encode()
        return struct.pack("<Q", len(text)) + text + bytes([value]) * 64

    with ThreadPoolExecutor() as pool:
        ways = [pool.submit(way, number) for number in range(3)
                for way in (save, replace)]
        check(all(way.result() > 3 for way in ways), "some thread stood still")


CASES = (threads_and_their_files, slices_read_that, rank_reads_its_part,
         of_urls, configs, no_such_name, gil_is_free)
