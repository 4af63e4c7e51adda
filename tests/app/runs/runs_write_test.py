#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A trainer's step, written again for another number of ranks.

The tensors are those of the live objects (tests/data/runs), and the real
loaders resume: loss and parameters after one more step are those of the
unchanged step's.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from peer import find
from support import (
    DATA, HANG, Failure, Skip, Suite, check, check_equal, digest, held_port,
    read_safetensors)

CKPT = None  # set by prepare
GOLDENS = DATA / "runs"
PEER = Path(sys.prefix) / "transformers_5.12.1"
# Lightning's file has no ranks; nanotron's are in runs_nanotron_test.py.
CASES = ["accelerate_fsdp2_w2", "hf_trainer_fsdp2_w2", "hf_trainer_lora",
         "hf_trainer_moe_qwen3", "hf_trainer_qwen2", "hf_trainer_zero3_w2",
         "lightning_mp_w2", "torchtitan_w2", "verl_fsdp1_flat_w2",
         "verl_fsdp2_w2"]
RANKS = (1, 3)


def facts(case):
    return json.loads((GOLDENS / case / "case.json").read_text())


def step_of(case):
    return GOLDENS / case / "ckpt" / facts(case)["newest"] / facts(case).get(
        "newest_file", "")


def check_contents(case, path):
    found = CKPT.inspect(path, "--digest")
    check_equal(found["trainer"]["name"],
                CKPT.inspect(step_of(case))["trainer"]["name"], "trainer")
    got = {t["name"]: t for t in found["tensors"]}
    for what in ("expected", "expected_optim"):
        want = read_safetensors(GOLDENS / case / f"{what}.safetensors")
        for name, tensor in want.items():
            mine = got.get(name) or check(False, f"{name} is not there")
            check_equal((mine["dtype"], tuple(mine["shape"]), mine["digest"]),
                        (tensor.dtype, tensor.shape, digest(tensor.data)),
                        name)
    bad = [p for p in found["problems"] if p["severity"] == "damage"]
    check_equal(bad, [], "problems")


def test_contents(folder, case, ranks):
    out = folder / "out"
    CKPT.ok("reshard", GOLDENS / case / "ckpt", out, "--dp", ranks, "--verify")
    check_contents(case, out)
    if ranks == 3:  # and back: parts are joined again
        CKPT.ok("reshard", out, folder / "back", "--dp", 2, "-q")
        check_contents(case, folder / "back")


def test_spelling(folder, case, path, inside):
    """A step by a name that a shell completes, or from its own folder."""
    step = folder / Path(facts(case)["newest"]).name
    shutil.copytree(step_of(case), step)

    def written(path, name, cwd=None):
        out = folder / name
        said = CKPT.ok("reshard", path, out, "--dp", 2, "--json", cwd=cwd)
        return ({str(p.relative_to(out)): p.read_bytes()
                 for p in out.rglob("*")
                 if p.is_file() and p.name != ".ckpt-manifest.json"},
                sorted((f["path"], f["fate"])
                       for f in said.json()["files"]))

    want = written(step, "want")
    got = written(path.format(step=step), "got", step if inside else None)
    check_equal(got[1], want[1], "fates")
    check_equal(sorted(got[0]), sorted(want[0]), "files")
    check(got[0] == want[0], "bytes")
    found = json.loads(CKPT.ok("inspect", path.format(step=step), "--json",
                               cwd=step if inside else None).out)
    check_equal(found["trainer"]["step"], facts(case)["step"], "step")


def test_swapped(folder, case, pattern):
    """Files of two ranks under each other's names: their shapes are alike."""
    root = folder / "ckpt"
    shutil.copytree(GOLDENS / case / "ckpt", root)
    first, second = sorted(root.rglob(pattern))
    aside = folder / "aside"
    first.rename(aside)
    second.rename(first)
    aside.rename(second)
    said = CKPT.run("verify", root).want(1).out
    check("another rank's file" in said, said)
    said = CKPT.run("convert", root, folder / "out", "--to", "dcp").want(4)
    check(first.name in said.err and second.stem in said.err, said.err)


def test_swapped_parts(folder):
    """nanotron's load_weights takes a rank's file by its name; the file says
    which part it has."""
    step = folder / "10"
    shutil.copytree(GOLDENS / "nanotron_tp2/ckpt/10", step)
    parts = sorted((step / "model").rglob("*tp-rank-0-of-2.safetensors"))
    check(len(parts) > 5, f"{parts}")
    for part in parts:
        pair = part, part.with_name(part.name.replace("k-0-of-2", "k-1-of-2"))
        kept = [path.read_bytes() for path in pair]
        for path, content in zip(pair, reversed(kept)):
            path.write_bytes(content)
        said = CKPT.run("verify", step).want(1).out
        name = str(part.parent.relative_to(step / "model")).replace("/", ".")
        check("each other's names" in said and name in said, said)
        for path, content in zip(pair, kept):
            path.write_bytes(content)
    CKPT.ok("verify", step)


def test_files(folder, case):
    """Every file is there again, except ranks' files, which are named."""
    out = folder / "out"
    step = step_of(case)
    before = {str(p.relative_to(step)) for p in step.rglob("*") if p.is_file()}
    ranks = facts(case)["topology"].get("ranks", 1)
    CKPT.ok("reshard", step, out, "--dp", ranks, "--no-manifest")
    after = {str(p.relative_to(out)) for p in out.rglob("*") if p.is_file()}
    check_equal(sorted(after), sorted(before), "files of as many ranks")
    for name in before:
        if name.endswith((".pt", ".pth", ".pkl", ".bin", ".json", ".py")) \
                and "world_size" not in name and "_states" not in name:
            check((step / name).read_bytes() == (out / name).read_bytes(),
                  f"{name} is another file")
    said = CKPT.ok("reshard", step, folder / "more", "--dp", ranks + 1,
                   "--no-manifest").err
    after = {str(p.relative_to(folder / "more"))
             for p in (folder / "more").rglob("*") if p.is_file()}
    for name in before - after:
        check(name in said or "world_size" in name or "_states" in name,
              f"{name} went unsaid")


def test_whole(folder):
    """Part of a step is refused, as it would be mistaken for a whole one."""
    step = step_of("hf_trainer_fsdp2_w2")
    for options, hint in (
            (("--keys", "*q_proj*"), "leave --keys"),
            (("--model-only",), "--to safetensors --model-only"),
            (("--optim-only",), "--to dcp --optim-only"),
            (("--dtype", "bf16"), "leave --keys"), (("--tp", 2), "--dp N")):
        result = CKPT.run("reshard", step, folder / "out", "--dp", 3,
                          *options).want(5)
        check(hint in result.err, f"{options}: {result}")


def resume(kind, directory, out, ranks):
    """Returns what runs_peer.py saved: loss and parameters."""
    import torch

    if not PEER.is_dir():
        raise Skip("transformers is not installed (scripts/test.sh does it)")
    port = str(held_port())
    running = [subprocess.Popen(
        [sys.executable, "-B", find("runs_peer.py"), kind, str(directory),
         str(out), str(ranks), str(rank), port],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for rank in range(ranks)]
    said = []
    for one in running:
        try:
            said.append(one.communicate(timeout=HANG)[0])
        except subprocess.TimeoutExpired:
            for other in running:
                other.kill()
            raise Failure(f"{kind}: {ranks} ranks hang") from None
    for one, text in zip(running, said):
        check(one.returncode == 0, f"{kind} of {ranks}: {text[-3000:]}")
    return torch.load(out, weights_only=True)


def same(got, want, what):
    import torch

    check_equal(sorted(got["model"]), sorted(want["model"]), what)
    check(abs(got["loss"] - want["loss"]) <= 1e-5 * abs(want["loss"]),
          f"{what}: loss {got['loss']}, {want['loss']}")
    for name, tensor in want["model"].items():
        mine = got["model"][name]
        near = 1e-2 if tensor.dtype == torch.bfloat16 else 1e-5
        check(mine.dtype == tensor.dtype and torch.allclose(
            mine, tensor, rtol=near, atol=near / 100),
            f"{what}: {name} differs by {(mine - tensor).abs().max()}")


def test_resume(folder, case, kind, ranks, role, then=None, rows=None):
    """`then`: the kind that resumes, if another, with `rows` as fsdp_size."""
    step = step_of(case) / role
    before = facts(case)["topology"].get("ranks", 1)
    want = resume(kind, step, folder / "want.pt", before)
    CKPT.ok("reshard", step_of(case), folder / "out", "--dp", ranks,
            *(("--fsdp-size", rows) if rows else ()))
    got = resume(then or kind, folder / "out" / role, folder / "got.pt", ranks)
    same(got, want, f"{before} ranks and {ranks}")


def test_loaded(folder, case, kind, ranks):
    """What torch's functions read from it is what the trainer had."""
    CKPT.ok("reshard", step_of(case), folder / "out", "--dp", ranks)
    found = resume(kind, folder / "out", folder / "got.pt", ranks)["model"]
    for what in ("expected", "expected_optim"):
        want = read_safetensors(GOLDENS / case / f"{what}.safetensors")
        for name, tensor in want.items():
            mine = found.get(name)
            check(mine is not None, f"{name} did not come in")
            check_equal(mine.numpy().tobytes(), bytes(tensor.data), name)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for case in CASES:
        for ranks in RANKS:
            suite.add(f"{case}: for {ranks} ranks", test_contents, case, ranks)
        suite.add(f"{case}: its files", test_files, case)
    for case in CASES:
        suite.add(f"{case}: from its folder", test_spelling, case, "./", True)
    for path, inside in (("{step}/", False), (".", True),
                         ("actor/..", True)):
        suite.add(f"verl_fsdp2_w2 as {path}", test_spelling, "verl_fsdp2_w2",
                  path, inside)
    for case, pattern in (
            ("hf_trainer_zero3_w2", "*_model_states.pt"),
            ("hf_trainer_zero3_w2", "*_optim_states.pt"),
            ("nanotron_tp2", "optimizer_pp-*.pt"),
            ("verl_fsdp1_flat_w2", "model_world_size_*.pt"),
            ("verl_fsdp1_flat_w2", "optim_world_size_*.pt")):
        suite.add(f"{case}: {pattern} swapped", test_swapped, case, pattern)
    suite.add("nanotron_tp2: parts swapped", test_swapped_parts)
    suite.add("a part of a step", test_whole)
    for case, kind, ranks, role in (
            ("accelerate_fsdp2_w2", "accelerate_fsdp2", 3, ""),
            ("accelerate_fsdp2_w2", "accelerate_fsdp2", 1, ""),
            ("hf_trainer_fsdp2_w2", "trainer_fsdp2", 3, ""),
            ("hf_trainer_qwen2", "trainer_plain", 1, ""),
            ("verl_fsdp1_flat_w2", "verl_fsdp1", 3, "actor"),
            ("verl_fsdp2_w2", "verl_fsdp2", 3, "actor"),
            ("verl_fsdp2_w2", "verl_fsdp2", 1, "critic"),
            *([("verl_fsdp1_flat_w2", "verl_fsdp1", 1, "actor"),
               ("../verl/fsdp1/orig_w4", "verl_fsdp1_orig", 3, "actor")]
              if suite.full else [])):
        suite.add(f"{kind} resumes with {ranks} ranks {role}".strip(),
                  test_resume, case, kind, ranks, role)
    if suite.full:
        orig, hybrid = "../verl/fsdp1/orig_w4", "../verl/fsdp1/hybrid_w4"
        lora = "../verl/fsdp1/lora"
        for case, kind, ranks, then, rows in (
                (hybrid, "verl_fsdp1_rows", 6, None, None),
                (hybrid, "verl_fsdp1_rows", 2, None, None),
                (orig, "verl_fsdp1_orig", 6, "verl_fsdp1_orig_rows", 2),
                (orig, "verl_fsdp1_orig", 4, "verl_fsdp1_orig_rows", 2),
                (f"{lora}_w2", "verl_fsdp1_lora", 3, None, None),
                (f"{lora}_orig_w4", "verl_fsdp1_lora_orig", 3, None, None),
                (f"{lora}_only_w2", "verl_fsdp1_lora", 3, None, None)):
            suite.add(f"{then or kind} resumes {case[14:]} with {ranks} ranks",
                      test_resume, case, kind, ranks, "actor", then, rows)
    for case, kind in (("torchtitan_w2", "torchtitan_fsdp2"),
                       ("lightning_mp_w2", "lightning_fsdp2")):
        suite.add(f"{case}: torch loads it with 3 ranks", test_loaded, case,
                  kind, 3)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
