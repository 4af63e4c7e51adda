#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Tensors that ranks hold under names that no rule knows.

Files that Megatron-LM, DeepSpeed and torch wrote get more tensors, cut in every
way that ranks have; safetensors files of ranks are as TensorRT-LLM names them. A
part of a tensor is never written for the whole: refused, or joined as
--shard-dims says. verify can't tell, and calls nothing damaged.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from megatron_legacy_test import load as load_lenient
from support import DATA, ROOT, Skip, Suite, check, check_equal

CKPT = None
ODD = "odd_head"  # a module that no family has


def torch():
    import torch as module

    return module


def whole_tensors():
    """{name: (whole, rule)}: each way to cut, and what is the same on all."""
    t = torch()
    g = t.Generator().manual_seed(7)

    def make(*shape):
        return t.randn(shape, generator=g).to(t.bfloat16)

    return {
        f"{ODD}.rows.weight": (make(8, 6), 0),
        f"{ODD}.columns.weight": (make(6, 8), 1),
        f"{ODD}.gated.weight": (make(8, 6), {"dim": 0, "groups": 2}),
        f"{ODD}.rows.bias": (make(8), 0),
        f"{ODD}.cube.weight": (make(4, 6, 2), 1),
        f"{ODD}.same.weight": (make(3, 5), None),
        f"{ODD}.fresh.bias": (t.zeros(8), 0),
    }


def part(whole, rule, rank, ranks):
    if rule is None:
        return whole.clone()
    dim, groups = (rule, 1) if isinstance(rule, int) else (
        rule["dim"], rule["groups"])
    chunks = [g.chunk(ranks, dim)[rank] for g in whole.chunk(groups, dim)]
    return torch().cat(chunks, dim).contiguous()


def parts(rank, ranks, names=None):
    return {name: part(whole, rule, rank, ranks)
            for name, (whole, rule) in whole_tensors().items()
            if names is None or name in names}


# ------------------------------------------------- each returns (path, ranks)
def legacy(case):
    def build(folder, names):
        shutil.copytree(DATA / "megatron_legacy" / case / "ckpt", folder / "run")
        files = sorted((folder / "run").rglob("model_optim_rng.pt"))
        for file in files:
            state = load_lenient(file)
            # What is Megatron's own class can't be written again.
            state = {key: state[key] for key in
                     ("args", "checkpoint_version", "iteration", "model")
                     if key in state}
            plain = (bool, int, float, str, type(None), torch().dtype)
            for key, value in list(vars(state["args"]).items()):
                if not isinstance(value, plain):
                    delattr(state["args"], key)
            digits = file.parent.name.split("_")
            if len(digits) == 3 or digits[3] == "000":
                model = state["model"]
                if "language_model" in model:
                    model = model["language_model"]["encoder"]
                model.update(parts(int(digits[2]), 2, names))
            torch().save(state, file)
        return folder / "run", 2
    return build


def deepspeed(folder, names):
    """Without universal_checkpoint_info: nothing says how anything is cut."""
    step = folder / "run" / "global_step5"
    step.mkdir(parents=True)
    (folder / "run" / "latest").write_text("global_step5")
    for rank in range(2):
        state = {"module": parts(rank, 2, names), "buffer_names": [],
                 "optimizer": None, "param_shapes": None,
                 "frozen_param_shapes": None, "frozen_param_fragments": None,
                 "lr_scheduler": None, "global_steps": 5, "skipped_steps": 0,
                 "dp_world_size": 1, "mp_world_size": 2, "shared_params": {},
                 "ds_version": "0.16.0", "ds_config": {}}
        torch().save(state, step / f"mp_rank_{rank:02}_model_states.pt")
    return folder / "run", 2


def torch_ranks(folder, names):
    (folder / "run").mkdir()
    golden = DATA / "torch_pt" / "dtensor_per_rank" / "ckpt"
    for rank in range(2):
        name = f"dtensor_rank{rank}.pt"
        state = torch().load(golden / name, weights_only=False)
        state.update(parts(rank, 2, names))
        torch().save(state, folder / "run" / name)
    return folder / "run", 2


def safetensors_ranks(folder, names):
    from safetensors.torch import save_file

    (folder / "run").mkdir()
    for rank in range(2):
        save_file(parts(rank, 2, names), folder / "run" /
                  f"rank{rank}.safetensors")
    return folder / "run", 2


FORMATS = {"legacy": legacy("lm_gpt_tp2_fp16"),
           "legacy, pipeline": legacy("llama_te_tp2_pp2"),
           "deepspeed": deepspeed, "torch": torch_ranks,
           "safetensors": safetensors_ranks}


# -------------------------------------------------------------------- checks
def rules_file(folder, names):
    rules = {f"*{name}": rule for name, (_, rule) in whole_tensors().items()
             if name in names}
    file = folder / "rules.json"
    file.write_text(json.dumps(rules))
    return file


def flat(value, path=""):
    if isinstance(value, dict):
        for key, item in value.items():
            yield from flat(item, f"{path}{key}.")
    elif hasattr(value, "shape"):
        yield path.rstrip("."), value


def check_written(out, name):
    """What was written is the whole, bit for bit."""
    got = dict(flat(torch().load(out, weights_only=False)))
    whole, _ = whole_tensors()[name]
    found = [key for key in got if key.endswith(name)]
    check_equal(len(found), 1, f"{name} in {list(got)}")
    check_equal(tuple(got[found[0]].shape), tuple(whole.shape), name)
    check(torch().equal(got[found[0]], whole), f"{name}: other values")


def test_one(folder, build, name):
    """One tensor of unknown cut."""
    _, rule = whole_tensors()[name]
    path, _ = build(folder, {name})
    refuses = build is deepspeed  # to open what has no rule at all
    done = CKPT.run("verify", path, "--json")
    kinds = {p["kind"] for p in done.json().get("problems", [])}
    if refuses and rule is None:
        # equal parts: copies, as far as their checksums tell
        check(done.code in (0, 1), f"{done}")
    elif refuses:
        check(done.code in (0, 1) and "damaged" not in kinds, f"{done}")
    elif rule is None:
        check(done.code == 0 and "unknown_cut" not in kinds, f"{done}")
    else:
        check(done.code == 0 and "unknown_cut" in kinds
              and done.json()["verdict"] == "cant_tell", f"{done}")
        check_equal(CKPT.run("verify", path, "--strict").code, 1, "strict")
        seen = CKPT.ok("inspect", path).out
        check("no rule" in seen, seen)
    for options in ((), ("--allow-replica-mismatch",)):
        out = folder / "out.pt"
        done = CKPT.run("unshard", path, out, *options)
        if done.code == 0:
            check_written(out, name)
            out.unlink()
            (folder / "out.pt.ckpt-manifest.json").unlink(missing_ok=True)
        else:
            check_equal(done.code, 5, f"{options}: {done}")
            check(not out.exists() and "--shard-dims" in done.err, f"{done}")
    file = rules_file(folder, {name})
    out = folder / "joined.pt"
    CKPT.ok("unshard", path, out, "--shard-dims", file)
    check_written(out, name)
    CKPT.ok("verify", path, "--shard-dims", file)


def test_all(folder, build):
    """All of them at once; with a rule for all but one."""
    names = set(whole_tensors())
    path, _ = build(folder, names)
    done = CKPT.run("unshard", path, folder / "out.pt")
    check_equal(done.code, 5, f"{done}")
    CKPT.ok("unshard", path, folder / "all.pt", "--shard-dims",
            rules_file(folder, names))
    for name in names:
        check_written(folder / "all.pt", name)
    for name in (f"{ODD}.rows.weight", f"{ODD}.columns.weight"):
        done = CKPT.run("unshard", path, folder / "out.pt", "--shard-dims",
                        rules_file(folder, names - {name}))
        check(done.code == 5 and name in done.err, f"{name}: {done}")
        check(not (folder / "out.pt").exists(), "written")


def test_left_out(folder, build):
    """What is not written need not be known."""
    path, _ = build(folder, set(whole_tensors()) - {f"{ODD}.same.weight"})
    CKPT.ok("unshard", path, folder / "out.pt", "--exclude", f"*{ODD}*")
    got = dict(flat(torch().load(folder / "out.pt", weights_only=False)))
    check(got and not any(ODD in name for name in got), f"{list(got)}")


def test_wrong_rule(folder, build):
    """A rule that can't be is wrong usage; one that is not so is found where
    anything shows it: parts that should be equal and are not."""
    name = f"{ODD}.rows.weight"
    path, _ = build(folder, {name})
    for rule in (2, {"dim": 0, "groups": 3}):
        (folder / "rules.json").write_text(json.dumps({f"*{name}": rule}))
        done = CKPT.run("unshard", path, folder / "out.pt", "--shard-dims",
                        folder / "rules.json")
        check(done.code in (2, 4) and name in done.err, f"{rule}: {done}")
    (folder / "rules.json").write_text(json.dumps({f"*{name}": None}))
    done = CKPT.run("unshard", path, folder / "out.pt", "--shard-dims",
                    folder / "rules.json")
    check(done.code == 4 and "differs" in done.err, f"null: {done}")
    check(not (folder / "out.pt").exists(), "written")


READ = """
import sys
import ckpt
try:
    print(ckpt.open(sys.argv[1])[sys.argv[2]][...].shape)
except ckpt.errors.UnfaithfulError as error:
    print("refused", error)
"""


def test_library(folder, build):
    """The library gives no slice for the tensor either."""
    path, _ = build(folder, {f"{ODD}.rows.weight", f"{ODD}.same.weight"})
    names = {t["name"] for t in CKPT.inspect(path)["tensors"]}
    library = Path(CKPT.path).resolve().parent / "libckpt.so"
    if not library.exists():
        raise Skip("no libckpt.so")
    env = {**os.environ, "CKPT_LIBRARY": str(library),
           "PYTHONPATH": str(ROOT / "python")}
    for end, want in (("rows.weight", "refused"), ("same.weight", "(3, 5)")):
        name = next(n for n in names if n.endswith(f"{ODD}.{end}"))
        done = subprocess.run([sys.executable, "-c", READ, path, name],
                              env=env, check=False, capture_output=True,
                              text=True)
        check(want in done.stdout, f"{name}: {done}")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for kind, build in FORMATS.items():
        for name in whole_tensors():
            suite.add(f"{kind}: {name}", test_one, build, name)
        suite.add(f"{kind}: all", test_all, build)
        suite.add(f"{kind}: a wrong rule", test_wrong_rule, build)
        if kind.startswith("legacy") or kind == "torch":
            suite.add(f"{kind}: left out", test_left_out, build)
    suite.add("legacy: the library", test_library, FORMATS["legacy"])


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
