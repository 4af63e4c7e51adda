#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""nanotron's step for other numbers of ranks: tensor- and data-parallel ones,
and stages of a pipeline.

nanotron 0.4 itself saves a step and loads what ckpt makes of it: weights,
moments, masters and schedule are those of the saved step, bit for bit, and so
is one step more. The golden's own files come back byte for byte.
"""

import json
import re
import shutil
import subprocess
import sys
import threading
import types
from pathlib import Path

from peer import find
from support import DATA, HANG, Skip, Suite, check, check_equal, held_port

CKPT = None  # set by prepare
PEER = Path(sys.prefix) / "nanotron"
GOLDEN = DATA / "runs/nanotron_tp2/ckpt/10"
SAVED = {}  # (words, ranks) -> the folder of a step that the peer saved
ONE = threading.Lock()


def content(path):
    found = CKPT.inspect(path, "--digest")
    check_equal([p for p in found["problems"] if p["severity"] == "damage"],
                [], "problems")
    return {t["name"]: (t["kind"], t["dtype"], t["shape"], t["digest"])
            for t in found["tensors"]}


def files_in(step):
    """File contents; for safetensors, the header (whose metadata have no order)
    and the data."""
    found = {}
    for path in step.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            if path.suffix == ".safetensors":
                end = 8 + int.from_bytes(data[:8], "little")
                data = json.loads(data[8:end]), data[end:]
            found[str(path.relative_to(step))] = data
    return found


def test_golden(folder, tp, dp, pp):
    """There and back: weights, their metadata and what records the number of
    ranks."""
    out, back = folder / "out", folder / "back"
    CKPT.ok("reshard", GOLDEN, out, "--tp", tp, "--dp", dp, "--pp", pp,
            "--verify")
    check_equal(content(out), content(GOLDEN), "tensors")
    topology = CKPT.inspect(out)["topology"]
    check_equal((topology["tp"], topology["dp"], topology["pp"]),
                (tp, dp, pp), "topology")
    meta = json.loads((out / "checkpoint_metadata.json").read_text())
    check_equal((meta["tp"], meta["dp"]), (tp, dp), "metadata")
    config = json.loads((out / "optimizer/optimizer_config.json").read_text())
    check_equal(config["parallelism"],
                {"tp_size": str(tp), "dp_size": str(dp), "pp_size": str(pp),
                 "expert_parallel_size": "1"}, "optimizer_config.json")
    check_equal(sorted(p.name for p in (out / "random").iterdir()),
                sorted(f"tp-{t}-of-{tp}_dp-{d}-of-{dp}_pp-{p}-of-{pp}.pt"
                       for t in range(tp) for d in range(dp)
                       for p in range(pp)), "random")
    CKPT.ok("verify", out)
    CKPT.ok("reshard", out, back, "--tp", 2, "--dp", 1, "--pp", 1,
            "--no-manifest")
    want, got = files_in(GOLDEN), files_in(back)
    check_equal(sorted(got), sorted(want), "files")
    for name, data in want.items():
        # torch.save weights are in a different archive; content() compares
        # them.
        if name.endswith(".safetensors") or "metadata" in name:
            check(got[name] == data, f"{name} is another file")
    check_equal(content(back), content(GOLDEN), "tensors, back")


def test_said(folder):
    """Ranks whose random numbers come from no earlier rank are reported."""
    said = CKPT.ok("reshard", GOLDEN, folder / "out", "--tp", 4).err
    check("random" in said and "tp=4" in said, said)
    for options, word in ((("--pp", 5), "stages"), (("--tp", 5), "divide"),
                          (("--ep", 2), "expert"),
                          (("--tp", 2, "--keys", "*norm*"), "whole"),
                          (("--tp", 1, "--model-only"), "whole")):
        said = CKPT.run("reshard", GOLDEN, folder / "no", *options).want(5).err
        check(word in said, f"{options}: {said}")
        check(not (folder / "no").exists(), options)


def test_main_branch(folder):
    """Files of nanotron's main branch: one scheduler per rank, and the job's
    configuration beside them."""
    step = folder / "10"
    shutil.copytree(GOLDEN, step)
    lone = step / "lr_scheduler/lr_scheduler.pt"
    for t in range(2):
        shutil.copy(lone, lone.with_name(
            f"lr_scheduler_pp-0-of-1_tp-{t}-of-2_exp-0-of-1.pt"))
    lone.unlink()
    (step / "config.yaml").write_text(
        "general:\n  tp: 2\nparallelism:\n  dp: 1\n  expert_parallel_size: 1\n"
        "  pp: 1\n  tp: 2\n  tp_mode: REDUCE_SCATTER\ntokens:\n  tp: 2\n")
    out = folder / "out"
    CKPT.ok("reshard", step, out, "--tp", 4, "--dp", 3, "--pp", 2)
    check_equal(sorted(p.name for p in (out / "lr_scheduler").iterdir()),
                [f"lr_scheduler_pp-{p}-of-2_tp-{t}-of-4_exp-0-of-1.pt"
                 for p in range(2) for t in range(4)], "schedulers")
    check_equal((out / "config.yaml").read_text(),
                "general:\n  tp: 2\nparallelism:\n  dp: 3\n"
                "  expert_parallel_size: 1\n  pp: 2\n  tp: 4\n"
                "  tp_mode: REDUCE_SCATTER\ntokens:\n  tp: 2\n", "config.yaml")
    (step / "config.yaml").write_text("parallelism: {dp: 1, tp: 2}\n")
    said = CKPT.ok("reshard", step, folder / "more", "--tp", 1).err
    check("config.yaml" in said, said)


def test_others(folder):
    """Values that belong to no parameter, and files that no parameter has."""
    import torch

    step = folder / "10"
    shutil.copytree(GOLDEN, step)
    for path in step.glob("optimizer/*.pt"):
        one = torch.load(path, weights_only=False)
        one["extra"] = {"buffer": torch.ones(3)}
        torch.save(one, path)
    check("optimizer.tp1.extra.buffer" in content(step), content(step).keys())
    said = CKPT.run("reshard", step, folder / "out", "--tp", 1).want(5).err
    check("extra.buffer" in said, said)
    shutil.rmtree(step)
    shutil.copytree(GOLDEN, step)
    one = next(step.rglob("model_weight_pp*tp-rank-1*"))
    shutil.copy(one, one.with_name(one.name.replace(
        ".safetensors", "_exp-rank-0-of-2.safetensors")))
    said = CKPT.run("inspect", step).want(4).err
    check("expert-parallel" in said, said)


def test_two_saves(folder):
    """Files for another number of ranks, left by an earlier save."""
    for pattern, code in (("random/*", 0), ("optimizer/*.pt", 4),
                          ("model/**/model_weight_pp*", 4)):
        step = folder / pattern[:6] / "10"
        shutil.copytree(GOLDEN, step)
        for path in list(step.glob(pattern)):
            if "-1-of-2" in path.name:
                shutil.copy(path, path.with_name(path.name.replace(
                    "-1-of-2", "-3-of-4")))
        said = CKPT.run("verify", step).want(1)
        check("of-4" in said.out + said.err, f"{said}")
        out = step.parent / "out"
        said = CKPT.run("reshard", step, out, "--tp", 1, "-v").want(code)
        check("of-4" in said.err and out.exists() == (code == 0), f"{said}")


def peer(mode, at, out, tp, dp, pp, words):
    import torch

    done = subprocess.run(
        [sys.executable, "-B", "-W", "ignore", find("runs_nanotron_peer.py"),
         mode, at, out, str(tp), str(dp), str(pp), str(held_port()), words or "-"],
        capture_output=True, text=True, timeout=HANG, check=False)
    check(done.returncode == 0, f"{mode}: {done.stderr[-3000:]}")
    return torch.load(out, weights_only=True)


def saved(folder, words, *ranks):
    if not (PEER / "nanotron").is_dir():
        raise Skip("nanotron is not installed (scripts/test.sh does it)")
    key = words, ranks
    with ONE:
        if key not in SAVED:
            root = folder.parent / f"peer-{words}-{ranks}"
            SAVED[key] = root, peer("save", root, f"{root}.pt", *ranks, words)
    return SAVED[key]


def same(got, want, near, what):
    import torch

    check_equal(sorted(got), sorted(want), what)
    for name, tensor in want.items():
        mine = got[name]
        check_equal((mine.dtype, mine.shape), (tensor.dtype, tensor.shape),
                    f"{what}: {name}")
        check(torch.allclose(mine, tensor, rtol=near, atol=near)
              if near else torch.equal(mine, tensor),
              f"{what}: {name} differs by {(mine - tensor).abs().max()}")


def test_resume(folder, words, before, after):
    root, want = saved(folder, words, *before)
    found = content(root)
    check_equal(sorted(n for n, t in found.items() if t[0] == "model"),
                sorted(want["before"]["model"]), "names")
    check_equal(sorted(n for n, t in found.items() if t[0] == "optim"),
                sorted(want["before"]["optim"]), "states")
    out = folder / "out"
    CKPT.ok("reshard", root, out, "--tp", after[0], "--dp", after[1],
            "--pp", after[2], "--verify")
    check_equal(content(out), found, "tensors")
    got = peer("load", out, folder / "got.pt", *after, words)
    check_equal(got["rate"], want["rate"], "learning rate")
    for part in ("model", "optim"):
        same(got["before"][part], want["before"][part], 0, "loaded " + part)
        same(got["after"][part], want["after"][part], 1e-6, "stepped " + part)


def test_masters(folder):
    """Another trainer resumes from the masters, not from their roundings."""
    root, want = saved(folder, "zero,masters,bias", 2, 1, 1)
    CKPT.ok("convert", root, folder / "out", "--to", "run", "--trainer",
            "lightning", "--dp", 2)
    found = content(folder / "out")
    source = content(root)
    for name in want["before"]["model"]:
        check_equal(found[name][1:], source[name + ".fp32"][1:], name)
        for state in ("step", "exp_avg", "exp_avg_sq"):
            check_equal(found[f"{name}.{state}"], source[f"{name}.{state}"],
                        f"{name}.{state}")


def test_moments(folder):
    """What nanotron itself saved, for another trainer: each state is arranged
    like its weight."""
    import torch

    root, want = saved(folder, "", 2, 1, 1)
    source = folder / "source"
    shutil.copytree(root, source)
    (next(source.glob("*/checkpoint_metadata.json")).parent /
     "model_config.json").write_text(json.dumps(
         {"is_llama_config": True, "hidden_size": 12, "num_attention_heads": 3,
          "num_hidden_layers": 2, "vocab_size": 72, "intermediate_size": 24}))
    out = folder / "out.pt"
    CKPT.ok("convert", source, out, "--to", "torch", "--dialect", "hf")
    stub = types.ModuleType("nanotron.random")
    for name in ("RandomStates", "RandomState"):
        setattr(stub, name, type(name, (dict,), {"__module__": stub.__name__}))
    sys.modules.update({"nanotron": types.ModuleType("nanotron"),
                        stub.__name__: stub})
    got = torch.load(out, weights_only=False)
    flat = {}

    def walk(value, name):
        if isinstance(value, dict):
            for key, one in value.items():
                walk(one, f"{name}.{key}" if name else str(key))
        elif isinstance(value, torch.Tensor):
            flat[name] = value
    walk(got, "")
    halves = torch.tensor([0, 2, 1, 3])  # of a head's four rows
    rows = torch.cat([halves + 4 * head for head in range(3)])
    for state in ("weight", "weight.exp_avg", "weight.exp_avg_sq"):
        where = want["before"]["model" if state == "weight" else "optim"]
        whole = where[f"model.decoder.1.pp_block.attn.qkv_proj.{state}"]
        for part, name in enumerate("qkv"):
            one = whole[12 * part:12 * part + 12]
            [mine] = [t for key, t in flat.items()
                      if key.endswith(f"layers.1.self_attn.{name}_proj.{state}")]
            check(torch.equal(mine, one if name == "v" else one[rows]),
                  f"{name} {state}")
    # Each target has those, by its own names; torchtitan's are fused anew.
    def states(path):
        """By parameter; where a file keeps them is its trainer's."""
        named = re.compile(r"(model\.(layers|embed_tokens|norm)|lm_head)\..*$")
        return {found[0]: one[1:] for name, one in content(path).items()
                if (found := named.search(name))}

    want = states(out)
    for trainer in ("hf_trainer", "accelerate", "lightning", "torchtitan"):
        there, back = folder / trainer, folder / f"{trainer}.pt"
        CKPT.ok("convert", source, there, "--to", "run", "--trainer", trainer)
        CKPT.ok("verify", there)
        CKPT.ok("verify", source, there)  # nanotron's names meet the target's
        CKPT.ok("convert", there, back, "--to", "torch", "--dialect", "hf")
        got = states(back)
        check_equal(sorted(set(got) ^ set(want)), [], f"{trainer}: names")
        check_equal([n for n in want if got[n] != want[n]], [], trainer)
    config = next(source.glob("*/model_config.json"))
    config.write_text(config.read_text().replace(
        '{', '{"rope_interleaved": false, ', 1))
    done = CKPT.run("verify", source, folder / "hf_trainer").want(1)
    check("self_attn.q_proj" in done.out, f"{done}")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for tp, dp, pp in ((1, 1, 1), (4, 1, 1), (2, 3, 1), (1, 2, 2)):
        suite.add(f"golden, tp {tp} dp {dp} pp {pp}", test_golden, tp, dp, pp)
    suite.add("what is said", test_said)
    suite.add("main branch", test_main_branch)
    suite.add("other values", test_others)
    suite.add("two saves", test_two_saves)
    suite.add("masters", test_masters)
    suite.add("moments", test_moments)
    zero = "zero,masters,bias"
    for words, before, after in (
            (zero, (2, 1, 1), (1, 2, 2)),
            *([("bias", (2, 1, 1), (1, 1, 2)), ("", (2, 1, 1), (4, 1, 1)),
               ("bias", (1, 1, 1), (2, 1, 1)), (zero, (2, 2, 1), (1, 3, 1)),
               (zero, (2, 2, 1), (4, 1, 1)), (zero, (1, 3, 1), (2, 2, 1)),
               ("zero", (2, 2, 1), (3, 1, 1)), (zero, (2, 2, 1), (1, 2, 2)),
               (zero, (2, 1, 2), (1, 3, 1)), ("bias", (1, 1, 3), (2, 1, 2))]
              if suite.full else [])):
        suite.add(f"resumes: {words or 'plain'}, {before} to {after}",
                  test_resume, words, before, after)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
