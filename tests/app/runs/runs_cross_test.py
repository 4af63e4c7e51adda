#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A trainer's step written as another trainer's: --to run --trainer NAME.

The other trainer's own loader resumes it, and loss and parameters after one
more step are those that the first trainer's loader comes to from its own files.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

from runs_write_test import same
from peer import find
from support import (
    DATA, HANG, Failure, Skip, Suite, check, check_equal, digest, held_port,
    read_safetensors)

CKPT = None  # set by prepare
GOLDENS = DATA / "runs"
PEER = Path(sys.prefix) / "transformers_5.12.1"
# Source: its step below the golden, how its own trainer loads it, the model,
# ranks.
SOURCES = {
    "accelerate_fsdp2_w2": (
        "checkpoints/checkpoint_10", "accelerate_fsdp2", "qwen2_tied", 2),
    "hf_trainer_fsdp2_w2": ("checkpoint-3", "trainer_fsdp2", "qwen2_1", 2),
    "hf_trainer_qwen2": ("checkpoint-10", "trainer_plain", "qwen2_2", 1),
    "verl_fsdp2_w2": ("global_step_10/actor", "verl_fsdp2", "llama", 2),
}
# Target: the trainer and its ranks, and the loader.
TARGETS = {
    ("hf_trainer", 1): "trainer_plain",
    ("hf_trainer", 3): "trainer_fsdp2",
    ("accelerate", 1): "accelerate_plain",
    ("accelerate", 3): "accelerate_fsdp2",
    ("lightning", 1): "lightning_fsdp2",
    ("lightning", 3): "lightning_fsdp2",
    ("lightning", "file"): "lightning_plain",
    ("verl", 1): "verl_plain",
    ("verl", 2): "verl_made",
    ("verl", 3): "verl_made",
}
RESUMED = [
    ("accelerate_fsdp2_w2", "hf_trainer", 1),
    ("accelerate_fsdp2_w2", "hf_trainer", 3),
    ("accelerate_fsdp2_w2", "lightning", 3),
    ("hf_trainer_fsdp2_w2", "accelerate", 3),
    ("hf_trainer_fsdp2_w2", "lightning", 1),
    ("accelerate_fsdp2_w2", "verl", 3),
    ("accelerate_fsdp2_w2", "verl", 1),
    ("hf_trainer_qwen2", "accelerate", 1),
    ("hf_trainer_qwen2", "accelerate", 3),
    ("hf_trainer_qwen2", "lightning", 3),
    ("verl_fsdp2_w2", "hf_trainer", 1),
    ("verl_fsdp2_w2", "hf_trainer", 3),
    ("verl_fsdp2_w2", "accelerate", 1),
    ("verl_fsdp2_w2", "accelerate", 3),
    ("verl_fsdp2_w2", "lightning", 3),
]

# With --full.
RESUMED_FILES = [(case, "lightning", "file") for case in SOURCES]


def step_of(case):
    if case in SOURCES:
        return GOLDENS / case / "ckpt" / SOURCES[case][0]
    facts = json.loads((GOLDENS / case / "case.json").read_text())
    return GOLDENS / case / "ckpt" / facts["newest"] / facts.get(
        "newest_file", "")


def convert(case, out, trainer, ranks, *more):
    return CKPT.run("convert", step_of(case), out, "--to", "run", "--trainer",
                    trainer, "--dp", 1 if ranks == "file" else ranks, *more)


def resume(loader, model, directory, out, ranks):
    import torch

    if not PEER.is_dir():
        raise Skip("transformers is not installed (scripts/test.sh does it)")
    port = str(held_port())
    running = [subprocess.Popen(
        [sys.executable, "-B", find("runs_cross_peer.py"), loader, model,
         str(directory), str(out), str(ranks), str(rank), port],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for rank in range(ranks)]
    said = []
    for one in running:
        try:
            said.append(one.communicate(timeout=HANG)[0])
        except subprocess.TimeoutExpired:
            for other in running:
                other.kill()
            raise Failure(f"{loader}: {ranks} ranks hang") from None
    for one, text in zip(running, said):
        check(one.returncode == 0, f"{loader} of {ranks}: {text[-3000:]}")
    return torch.load(out, weights_only=True)


def test_resume(folder, case, trainer, ranks):
    _, loader, model, before = SOURCES[case]
    want = resume(loader, model, step_of(case), folder / "want.pt", before)
    out = folder / ("out.ckpt" if ranks == "file" else "out")
    convert(case, out, trainer, ranks, "--verify").want(0)
    CKPT.ok("verify", step_of(case), out)
    got = resume(TARGETS[trainer, ranks], model, out, folder / "got.pt",
                 1 if ranks == "file" else ranks)
    same(got, want, f"{case} as {trainer} of {ranks}")
    for what in ("step", "position"):
        if what in got and what in want:
            check_equal(got[what], want[what], what)


def test_contents(folder, case, trainer, ranks):
    """All tensors of the live objects, by name, and each file's fate."""
    out = folder / "out"
    said = json.loads(convert(case, out, trainer, ranks, "--json").want(0).out)
    fates = {one["path"]: one for one in said["files"]}
    inside = {str(p.relative_to(step_of(case)))
              for p in step_of(case).rglob("*") if p.is_file()}
    named = {path for path in fates}
    for path in inside:
        check(any(one == path or one.endswith("/" + path) for one in named),
              f"{path} has no fate")
    for one in fates.values():
        check(one["fate"] != "left_out" or one["reason"], f"{one}: no reason")
    found = CKPT.inspect(out, "--digest")
    check_equal(found["trainer"]["name"], trainer, "trainer")
    got = {t["name"]: t for t in found["tensors"]}
    if "verl" in case:  # one role of two
        before = {t["name"]: t for t in CKPT.inspect(step_of(case), "--digest")["tensors"]}
        want = {name: (t["dtype"], t["digest"]) for name, t in before.items()}
    else:
        want = {}
        for what in ("expected", "expected_optim"):
            path = GOLDENS / case / f"{what}.safetensors"
            for name, t in read_safetensors(path).items():
                want[name] = (t.dtype, digest(t.data))
    for name, one in want.items():
        check(name in got, f"{name} is not there")
        check_equal((got[name]["dtype"], got[name]["digest"]), one, name)
    bad = [p for p in found["problems"] if p["severity"] == "damage"]
    check_equal(bad, [], "problems")


def test_refused(folder, case, trainer, ranks, words):
    result = convert(case, folder / "out", trainer, ranks)
    result.want(5)
    for word in words:
        check(word in result.err, f"{word!r}: {result.err}")
    check(not (folder / "out").exists(), "something was written")


def test_model_only(folder):
    """What Adam can't resume is converted without its state, if that is asked
    for."""
    out = folder / "out"
    said = convert("hf_trainer_zero3_w2", out, "accelerate", 2, "--model-only")
    said.want(0)
    check("afresh" in said.err, said.err)
    kinds = {t["kind"] for t in CKPT.inspect(out)["tensors"]}
    check_equal(kinds, {"model"}, "kinds")


def test_options(folder):
    """A misspelt trainer, and numbers of ranks that no step has."""
    convert("hf_trainer_qwen2", folder / "out", "accelrate", 1).want(2)
    convert("hf_trainer_qwen2", folder / "out", "accelerate", 1, "--tp",
            2).want(5)


def of_torch(kind):
    """A golden's step with another optimizer's state, made by torch."""
    import torch

    path = GOLDENS / "hf_trainer_qwen2/ckpt/checkpoint-10/optimizer.pt"
    saved = torch.load(path, weights_only=True)
    if kind == "lacking":
        del saved["state"][3]["exp_avg_sq"]
        return saved
    shapes = {i: one["exp_avg"].shape for i, one in saved["state"].items()}
    known = {i: torch.nn.Parameter(torch.ones(s)) for i, s in shapes.items()}
    optimizer = getattr(torch.optim, kind)(
        [{"params": [known[i] for i in group["params"]]}
         for group in saved["param_groups"]], lr=0.1)
    for one in known.values():
        one.grad = torch.ones_like(one)
    optimizer.step()
    return optimizer.state_dict()


def test_optimizer(folder, kind, words):
    """No Adam, or half of one: refused; the model alone is converted."""
    import torch

    step = folder / "checkpoint-10"
    shutil.copytree(step_of("hf_trainer_qwen2"), step)
    torch.save(of_torch(kind), step / "optimizer.pt")
    for trainer in ("accelerate", "lightning"):
        command = ("convert", step, folder / trainer, "--to", "run",
                   "--trainer", trainer)
        refused = CKPT.run(*command).want(5)
        for word in words:
            check(word in refused.err, f"{word!r}: {refused.err}")
        check("--model-only" in refused.err, refused.err)
        check(not (folder / trainer).exists(), "something was written")
        CKPT.ok(*command, "--model-only")


def test_tied(folder, kind):
    """A head that is stored twice: verl's files share it if it is one tensor,
    which its bytes prove. Stored once, FSDP gets both names."""
    import torch
    import torch.distributed.checkpoint as dcp

    head, embedding = "lm_head.weight", "model.embed_tokens.weight"
    if kind == "once":
        step = folder / "checkpoint-3"
        convert("accelerate_fsdp2_w2", step, "hf_trainer", 1).want(0)
        from safetensors.torch import load_file, save_file
        weights = load_file(step / "model.safetensors")
        weights.pop(head, None)
        save_file(weights, step / "model.safetensors", {"format": "pt"})
        (step / "config.json").write_text(json.dumps(
            {"model_type": "qwen2", "tie_word_embeddings": True}))
        CKPT.ok("convert", step, folder / "out", "--to", "run", "--trainer",
                "accelerate", "--dp", 2)
        found = dcp.FileSystemReader(str(
            folder / "out/pytorch_model_fsdp_0")).read_metadata()
        check("model." + head in found.state_dict_metadata, "one name alone")
        return
    step = folder / "step"
    shutil.copytree(step_of("accelerate_fsdp2_w2"), step)
    at = step / "pytorch_model_fsdp_0"
    known = dcp.FileSystemReader(str(at)).read_metadata().state_dict_metadata
    weights = {name: torch.empty(one.size, dtype=one.properties.dtype)
               for name, one in known.items()}
    dcp.load(weights, checkpoint_id=str(at), no_dist=True)
    weights["model." + head][3, 3] += 1
    shutil.rmtree(at)
    dcp.save(weights, checkpoint_id=str(at), no_dist=True)
    out = folder / "out"
    said = CKPT.run("convert", step, out, "--to", "run", "--trainer", "verl",
                    "--dp", 2).want(5)
    check(head in said.err and not out.exists(), said.err)
    check_equal(embedding in said.err or "tied" in said.err, True, said.err)


def test_experts(folder, trainer):
    """Saved one by one, trained as one stack: FSDP's folders have what is
    trained."""
    import torch
    from safetensors.torch import load_file

    case = "hf_trainer_moe_qwen3"
    weights = load_file(GOLDENS / case / "expected.safetensors")
    want, layers = {}, {}
    for name, tensor in weights.items():
        if ".experts." not in name:
            want[name] = tensor
            continue
        stem, rest = name.split(".experts.")
        number, which = rest.split(".")[:2]
        layers.setdefault(stem + ".experts.", {})[which, int(number)] = tensor
    for stem, one in layers.items():
        count = len(one) // 3
        want[stem + "gate_up_proj"] = torch.stack([torch.cat(
            [one["gate_proj", e], one["up_proj", e]]) for e in range(count)])
        want[stem + "down_proj"] = torch.stack(
            [one["down_proj", e] for e in range(count)])
    check(layers, "no experts")
    out = folder / "out"
    convert(case, out, trainer, 2).want(0)
    found = {t["name"]: t for t in CKPT.inspect(out, "--digest")["tensors"]
             if t["kind"] == "model"}
    check_equal(sorted(found), sorted(want), "names")
    for name, tensor in want.items():
        check_equal(found[name]["digest"], digest(tensor.contiguous().view(
            -1).view(torch.uint8).numpy().tobytes()), name)


def test_named_folder(folder):
    """Lightning's folders are named like files, and its roots are recognized by
    that."""
    out = folder / "last.ckpt"
    convert("verl_fsdp2_w2", out, "lightning", 2).want(0)
    check(out.is_dir(), "no folder")
    found = CKPT.inspect(folder)["trainer"]
    check_equal(found, {"name": "lightning", "step": 10}, "of the root")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for case, trainer, ranks in RESUMED_FILES if suite.full else []:
        suite.add(f"{case} as {trainer}'s file: resumes", test_resume, case,
                  trainer, ranks)
    for case, trainer, ranks in RESUMED:
        suite.add(f"{case} as {trainer} of {ranks}: resumes", test_resume,
                  case, trainer, ranks)
        suite.add(f"{case} as {trainer} of {ranks}: contents", test_contents,
                  case, trainer, ranks)
    for case, trainer in (("lightning_mp_w2", "accelerate"),
                          ("lightning_mp_w2", "torchtitan"),
                          ("torchtitan_w2", "accelerate"),
                          ("torchtitan_w2", "lightning"),
                          ("lightning_ckpt", "accelerate"),
                          ("hf_trainer_zero3_w2", "accelerate"),
                          ("verl_fsdp1_flat_w2", "hf_trainer")):
        suite.add(f"{case} as {trainer} of 2: contents", test_contents, case,
                  trainer, 2)
    for case, trainer, ranks, words in (
            ("lightning_mp_w2", "hf_trainer", 1, ["order", "modules"]),
            ("torchtitan_w2", "accelerate", 1, ["--dp 2"]),
            ("hf_trainer_qwen2", "torchtitan", 1, ["gpt_oss are known"]),
            ("hf_trainer_qwen2", "verl", 1, ["one group", "weight_decay"]),
            ("hf_trainer_qwen2", "nanotron", 1, ["not written", "verl"]),
            ("lightning_mp_w2", "verl", 2, ["order", "modules"])):
        suite.add(f"{case} as {trainer} of {ranks}: refused", test_refused,
                  case, trainer, ranks, words)
    for kind, words in (("Adagrad", ["not Adam"]),
                        ("RMSprop", ["not Adam"]),
                        ("Adamax", ["not Adam"]),
                        ("lacking", ["has no exp_avg_sq"])):
        suite.add(f"an optimizer: {kind}", test_optimizer, kind, words)
    for kind in ("once", "twice, and not the same"):
        suite.add(f"a tied head: {kind}", test_tied, kind)
    for trainer in ("accelerate", "lightning"):
        suite.add(f"experts as {trainer}", test_experts, trainer)
    suite.add("the model alone", test_model_only)
    suite.add("options", test_options)
    suite.add("a folder of Lightning's", test_named_folder)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
