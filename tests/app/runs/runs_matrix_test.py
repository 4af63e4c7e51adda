#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each cell of the table "From one trainer to another" of docs/formats/runs.md:
what the page says is what happens, and torch's own loader finds in DCP what the
trainer's live objects had.
"""

import json
import re
import shutil
from pathlib import Path

from deepspeed_test import load_states
from support import (
    DATA, Suite, check, check_equal, digest, read_safetensors)

CKPT = None  # set by prepare
GOLDENS = DATA / "runs"
PAGE = Path(__file__).resolve().parents[3] / "docs" / "formats" / "runs.md"
TARGETS = ["dcp", "torch", "safetensors", "megatron_torch_dist", "run"]


def table():
    text = PAGE.read_text().split("## From one trainer to another")[1]
    text = text.split("\n## ")[0]
    rows = {}
    for line in text.splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")]
        # A golden's row; the page also has tables of trainers and their steps.
        if re.match(r"\| `\w+` \|", line) and (
                GOLDENS / cells[0].strip("`")).is_dir() and len(
                    cells) == len(TARGETS) + 1:
            rows[cells[0].strip("`")] = cells[1:]
    return rows


def by_torch(path):
    """All tensors of a directory of DCP, by name."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.metadata import TensorStorageMetadata

    stored = dcp.FileSystemReader(str(path)).read_metadata()
    wanted = {name: torch.empty(one.size, dtype=one.properties.dtype)
              for name, one in stored.state_dict_metadata.items()
              if isinstance(one, TensorStorageMetadata)}
    dcp.load(wanted, checkpoint_id=str(path), no_dist=True)
    return {name: digest(t.view(-1).view(torch.uint8).numpy().tobytes())
            for name, t in wanted.items()}


def test_cell(folder, case, to, says):
    source, target = GOLDENS / case / "ckpt", folder / "out"
    if case == "lightning_ckpt" and to == "run":
        target = folder / "out.ckpt"  # a file, and named like one
    result = CKPT.run("convert", source, target, "--to", to)
    if says == "no":
        result.want(5)
        check("error" in result.err and not target.exists(), f"{result}")
        return
    result.want(0)
    found = {t["name"]: t["digest"]
             for t in CKPT.inspect(target, "--digest")["tensors"]}
    model, optim = (read_safetensors(GOLDENS / case / f"{what}.safetensors")
                    for what in ("expected", "expected_optim"))
    if to == "dcp":
        loaded = by_torch(target)
        for prefix, tensors in (("", model), ("optimizer.state.", optim)):
            for name, tensor in tensors.items():
                check_equal(loaded.get(prefix + name), digest(tensor.data),
                            f"torch reads {name}")
    if says == "model":
        check_equal(sorted(found), sorted(model), "model alone")
        check("optimizer" in result.err, f"it goes unsaid: {result}")
        return
    want = sorted(digest(t.data) for t in [*model.values(), *optim.values()])
    got = sorted(found.values())
    if to in ("dcp", "torch", "run"):
        for one in set(want):
            check(one in got, "a tensor of the live objects is not there")
    same = CKPT.run("verify", source, target)
    check(to != "dcp" or same.code == 0, f"{same}")


# Where DeepSpeed's files are in a step of each, and what else shows whose it is.
ZERO = {
    "hf_trainer": ("global_step3", {"latest": "global_step3",
                                    "trainer_state.json": "{}"}),
    "accelerate": ("pytorch_model", {"latest": "pytorch_model"}),
    "lightning_deepspeed": ("checkpoint", {"latest": "checkpoint"}),
}


def zero_step(folder, trainer):
    import torch

    golden = GOLDENS / "hf_trainer_zero3_w2/ckpt/checkpoint-3"
    name = "epoch=0-step=3.ckpt" if "lightning" in trainer else "checkpoint-3"
    step, (at, texts) = folder / trainer / name, ZERO[trainer]
    shutil.copytree(golden / "global_step3", step / at)
    shutil.copy(golden / "config.json", step)
    for file, text in texts.items():
        (step / file).write_text(text)
    if trainer == "accelerate":
        torch.save({"step": 3}, step / "random_states_0.pkl")
    model, optim = (load_states(step / at / one) for one in (
        "zero_pp_rank_0_mp_rank_00_model_states.pt",
        "bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt"))
    groups = optim["optimizer_state_dict"]["optimizer_state_dict"][
        "param_groups"]
    return step, groups, [list(shapes) for shapes in model["param_shapes"]]


def options(groups):
    return [{k: v for k, v in group.items() if k != "params"}
            for group in groups]


def check_hop(out, live, groups, names):
    """A numbered file has the live moments, in the groups that were live."""
    import torch

    if out.is_dir():
        file = "optimizer.bin" if (out / "optimizer.bin").is_file() else (
            "optimizer.pt")
        saved = torch.load(out / file, weights_only=True)
    else:
        saved = torch.load(out, weights_only=False)["optimizer_states"][0]
    known = {bytes(live[f"{n}.exp_avg"].data): n for n in sum(names, [])}
    check_equal(len(known), len(sum(names, [])), "moments that differ")
    found = []
    for group in saved["param_groups"]:
        found.append([])
        for number in group["params"]:
            state = saved["state"][number]
            name = known[state["exp_avg"].numpy().tobytes()]
            found[-1].append(name)
            for key in ("exp_avg", "exp_avg_sq", "step"):
                check_equal(state[key].numpy().tobytes(),
                            bytes(live[f"{name}.{key}"].data), f"{name}.{key}")
    check_equal([sorted(one) for one in found], [sorted(n) for n in names],
                f"{out.name}: groups")
    for got, want in zip(options(saved["param_groups"]), options(groups)):
        check_equal({k: got.get(k) for k in want}, want, f"{out.name}: options")


def check_groups(path, word, groups, names):
    """torch reads these groups from DCP, by the names of parameters."""
    import torch.distributed.checkpoint as dcp

    for g, group in enumerate(groups):
        read = {f"{word}.param_groups.{g}.{k}": None for k in group}
        dcp.load(read, checkpoint_id=str(path), no_dist=True)
        got = {k.rpartition(".")[2]: v for k, v in read.items()}
        check_equal(sorted(got.pop("params")), sorted(names[g]), "names")
        check_equal(got, options([group])[0], f"group {g}")


def test_through_dcp(folder, trainer):
    """Numbers of DeepSpeed's vectors are names in DCP, as
    get_optimizer_state_dict has them: so the next hop knows them."""
    step, groups, names = zero_step(folder, trainer)
    live = read_safetensors(
        GOLDENS / "hf_trainer_zero3_w2/expected_optim.safetensors")
    between = folder / "between"
    CKPT.ok("convert", step, between, "--to", "dcp")
    check_groups(between, "optimizer", groups, names)
    for target, name in (("lightning", "out.ckpt"), ("accelerate", "a"),
                         ("hf_trainer", "h")):
        CKPT.ok("convert", between, folder / name, "--to", "run", "--trainer",
                target, "--dp", 1, "--config-from", step)
        check_hop(folder / name, live, groups, names)


def test_nanotron_through_dcp(folder):
    """So are the numbers of nanotron, whose names a list in the file has."""
    step = folder / "10"
    shutil.copytree(GOLDENS / "nanotron_tp2/ckpt/10", step)
    [file, _] = sorted((step / "optimizer").glob("optimizer_*.pt"))
    saved = load_states(file)
    groups = saved["param_groups"]
    names = [[saved["names"][n] for n in group["params"]] for group in groups]
    between, out = folder / "between", folder / "out"
    CKPT.ok("convert", step, between, "--to", "dcp")
    check_groups(between, "optimizer", groups, names)
    CKPT.ok("convert", between, out, "--to", "run", "--trainer", "lightning",
            "--dp", 2)
    check_groups(out, "optimizer_0", groups, names)
    loaded = by_torch(out)
    for name, tensor in read_safetensors(
            GOLDENS / "nanotron_tp2/expected_optim.safetensors").items():
        check_equal(loaded[f"optimizer_0.state.{name}"], digest(tensor.data),
                    name)
    # Under transformers' names, three projections for one, they are numbered as
    # without the detour.
    config = step / "model_config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {
        "num_attention_heads": 3, "num_key_value_heads": 3,
        "rms_norm_eps": 1e-5, "hidden_act": "silu", "rope_theta": 10000.0,
        "rope_interleaved": False, "max_position_embeddings": 64}))
    CKPT.ok("convert", step, folder / "hf", "--to", "dcp", "--dialect", "hf")
    files = []
    for source, name in ((step, "a"), (folder / "hf", "b")):
        CKPT.ok("convert", source, folder / name, "--to", "run", "--trainer",
                "accelerate", "--dp", 1)
        files.append(load_states(folder / name / "optimizer.bin"))
    check_equal(str(files[1]), str(files[0]), "optimizer.bin")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    rows = table()
    check_equal(sorted(rows), sorted(p.name for p in GOLDENS.iterdir()),
                "rows of the table")
    for case, cells in rows.items():
        for to, says in zip(TARGETS, cells):
            suite.add(f"{case} to {to}: {says}", test_cell, case, to, says)
    suite.add("nanotron: groups through DCP", test_nanotron_through_dcp)
    for trainer in ZERO:
        suite.add(f"{trainer}: groups through DCP", test_through_dcp, trainer)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
