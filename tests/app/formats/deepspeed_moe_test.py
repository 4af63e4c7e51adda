#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DeepSpeed's own MoE layers, saved by DeepSpeed in several processes: ckpt has
each rank's parameters, and with ZeRO their masters and moments, bit for bit.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from peer import find
from support import (
    HANG, Failure, Skip, Suite, check, check_equal, held_port,
    read_safetensors)

CKPT = None  # set by prepare
PEER = Path(sys.prefix) / "deepspeed"


def saved(folder, stage, world, ep):
    """Returns the run's directory and what all ranks hold."""
    if not (PEER / "deepspeed").is_dir():
        raise Skip("DeepSpeed is not installed (scripts/test.sh does it)")
    import torch

    root, out, port = folder / "run", folder / "held", str(held_port())
    ranks = [subprocess.Popen(
        [sys.executable, "-B", "-W", "ignore", find("deepspeed_moe_peer.py"),
         "save", str(stage), str(root), str(out), str(world), str(rank), port,
         str(ep)], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for rank in range(world)]
    for one in ranks:
        try:
            said = one.communicate(timeout=HANG)[0]
        except subprocess.TimeoutExpired:
            for other in ranks:
                other.kill()
            raise Failure(f"{world} ranks hang") from None
        check(one.returncode == 0, said[-3000:])
    held = {}
    for rank in range(world):
        held |= torch.load(f"{out}.{rank}", weights_only=True)
    return root, held


def test_saved(folder, stage, world, ep):
    root, held = saved(folder, stage, world, ep)
    CKPT.ok("verify", "--deep", root)
    out = folder / "whole.safetensors"
    CKPT.ok("unshard", root, out)
    got = read_safetensors(out)
    seen = set()
    for key, tensor in held.items():
        name, _, first = key.partition("@")
        seen.add(name)
        check(name in got, f"{name} is missing")
        begin = int(first or 0) * tensor.element_size()
        part = tensor.numpy().tobytes()
        check_equal(bytes(got[name].data)[begin:begin + len(part)], part, key)
    # Without ZeRO each file's optimizer is by the numbers of parameters.
    rest = {name for name in set(got) - seen if not name.endswith(".step")
            and not name.startswith(("expp_rank_", "optimizer.state."))}
    check_equal(rest, set(), "what no rank has")
    CKPT.ok("verify", root, out)


def test_lost(folder):
    """Each expert in its turn; two that were exchanged; one of another
    shape."""
    import torch

    root, _ = saved(folder, 0, 2, 2)
    files = sorted(root.glob("*/layer_*_expert_*.pt"))
    check_equal(len(files), 6, "files of experts")

    def refused(word, verdict=None):
        result = CKPT.run("verify", root, "--json")
        check(result.code != 0, str(result))
        said = json.loads(result.out)
        check(word in json.dumps(said), f"{word}: {result}")
        check(verdict in (None, said["verdict"]), str(result))
        for command in (("unshard", root, folder / "o.pt", "--model-only"),
                        ("convert", root, folder / "o", "--to", "dcp")):
            check(CKPT.run(*command).code != 0, f"{word}: {command}")
            check(not Path(command[2]).exists(), word)

    for file in files:
        held = file.read_bytes()
        file.unlink()
        refused(file.name, "incomplete")
        file.write_bytes(held)
    for layer in (0, 1):
        some = [file for file in files if file.name.startswith(f"layer_{layer}")]
        for file in some:
            file.rename(file.with_suffix(".away"))
        refused("expert_0_mp_rank_00_model_states.pt", "incomplete")
        for file in some:
            file.with_suffix(".away").rename(file)
    one, other = files[1], files[2]
    held = one.read_bytes(), other.read_bytes()
    one.write_bytes(held[1])
    other.write_bytes(held[0])
    refused("deepspeed_experts.2")
    other.write_bytes(held[1])
    tensors = torch.load(other, weights_only=True)
    name = next(iter(tensors))
    torch.save(tensors | {name: tensors[name][:-1]}, one)
    refused("deepspeed_experts.2")
    one.write_bytes(held[0])
    torch.save(tensors | {name: tensors[name][:-1].clone()}, other)
    refused("other parameters")
    other.write_bytes(held[1])
    CKPT.ok("verify", root)


def test_targets(folder):
    """Universal checkpoints and other numbers of ranks are refused: DeepSpeed
    loads neither."""
    root, _ = saved(folder, 1, 2, 2)
    for command in (("convert", root, folder / "o", "--to", "deepspeed"),
                    ("reshard", root, folder / "o", "--dp", "1")):
        result = CKPT.run(*command).want(5)
        check("experts" in result.err, result.err)
        check("ds_to_universal" not in result.err, result.err)
    shutil.rmtree(root)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for stage, world, ep in ((0, 2, 2), (1, 2, 2), (2, 2, 1), (2, 4, 2),
                             (1, 4, 4)):
        suite.add(f"ZeRO {stage}, {world} ranks, {ep} expert-parallel",
                  test_saved, stage, world, ep)
    suite.add("lost and exchanged files", test_lost)
    suite.add("targets that DeepSpeed does not load", test_targets)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
