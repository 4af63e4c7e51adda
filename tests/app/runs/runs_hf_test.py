#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A trainer's step as a model of transformers: it loads, and says the same.

The logits are held against those of a model that has the expected tensors (of
the trainer's live objects) put into it by name. And NeMo Automodel's folder,
which torch's own functions write here as its saver calls them.
"""

import json
import sys
from pathlib import Path

from support import (
    DATA, Skip, Suite, check, check_equal, digest)

CKPT = None  # set by prepare
GOLDENS = DATA / "runs"
PEER = Path(sys.prefix) / "transformers_5.12.1"
# Case, what is opened, the prefix of its expectation, and where its config.json
# is if the step has none.
MODELS = [
    ("hf_trainer_qwen2", "", "", None),
    ("hf_trainer_moe_qwen3", "", "", None),
    ("hf_trainer_zero3_w2", "", "", None),
    ("hf_trainer_fsdp2_w2", "", "", {"layers": 1}),
    ("accelerate_fsdp2_w2", "", "", {"layers": 1, "tied": True}),
    ("verl_fsdp1_flat_w2", "", "", None),
    ("verl_fsdp2_w2", "global_step_10/actor", "actor.", None),
    ("verl_fsdp2_w2", "global_step_10/critic", "critic.", None),
]


def transformers():
    if not PEER.is_dir():
        raise Skip("transformers is not installed (scripts/test.sh does it)")
    if str(PEER) not in sys.path:
        sys.path.insert(0, str(PEER))
    import transformers as peer

    peer.logging.set_verbosity_error()
    return peer


def qwen2_config(layers, tied=False):
    """The configuration of the generator's model, which FSDP's folders lack."""
    return transformers().Qwen2Config(
        vocab_size=53, hidden_size=16, intermediate_size=24,
        num_hidden_layers=layers, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=32, pad_token_id=0,
        bos_token_id=1, eos_token_id=2, tie_word_embeddings=tied,
        architectures=["Qwen2ForCausalLM"])


def logits(model):
    import torch

    with torch.no_grad():
        return model.eval()(torch.arange(4, 20)[None], use_cache=False).logits


def as_tensors(path, prefix):
    import torch
    from safetensors.torch import load_file

    return {name[len(prefix):]: tensor
            for name, tensor in load_file(path).items()
            if name.startswith(prefix) and isinstance(tensor, torch.Tensor)}


def test_model(folder, case, inside, prefix, facts):
    import torch

    peer = transformers()
    source, out = GOLDENS / case / "ckpt" / inside, folder / "out"
    CKPT.ok("convert", source, out, "--to", "safetensors", "-q")
    if facts:  # as a user must: the run has none
        qwen2_config(**facts).save_pretrained(out)
    kind = json.loads((out / "config.json").read_text())["architectures"][0]
    cls = getattr(peer, kind)
    model, info = cls.from_pretrained(
        str(out), output_loading_info=True, local_files_only=True)
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        check(not info[what], f"{what}: {sorted(info[what])[:5]}")
    # The same model with the live tensors, loaded by transformers itself from a
    # folder that safetensors wrote.
    from safetensors.torch import save_file

    want_dir = folder / "want"
    want_dir.mkdir()
    save_file(as_tensors(GOLDENS / case / "expected.safetensors", prefix),
              want_dir / "model.safetensors", metadata={"format": "pt"})
    (want_dir / "config.json").write_text((out / "config.json").read_text())
    want = cls.from_pretrained(str(want_dir), local_files_only=True)
    check(torch.equal(logits(model), logits(want)), "logits differ")
    for name, tensor in want.state_dict().items():
        check(torch.equal(model.state_dict()[name], tensor), name)
    stale = [p.name for p in out.rglob("*") if p.name in (
        "latest_checkpointed_iteration.txt", "fsdp_config.json", "optim.pt",
        "trainer_state.json", "training_args.bin", "scheduler.pt")]
    check_equal(stale, [], "files of the trainer in a model's folder")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        had = [p for p in (source.rglob(name))]
        if had:
            check((out / name).read_bytes() == had[0].read_bytes(), name)


def save_automodel(folder):
    """epoch_0_step_7 as Automodel's Checkpointer leaves it (read at 36044ad):
    ModelState and OptimizerState through dcp.save, `optim` with the names
    flattened, beside them the scheduler's and the loaders' files."""
    import torch
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions, get_model_state_dict, get_optimizer_state_dict)

    torch.manual_seed(3)
    model = torch.nn.Sequential(
        torch.nn.Linear(6, 5), torch.nn.LayerNorm(5), torch.nn.Linear(5, 4))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(2):
        model(torch.randn(3, 6)).square().mean().backward()
        optimizer.step()
    step = folder / "run" / "epoch_0_step_7"
    options = StateDictOptions(flatten_optimizer_state_dict=True)
    dcp.save(get_model_state_dict(model), checkpoint_id=str(step / "model"),
             no_dist=True)
    dcp.save({"optim": get_optimizer_state_dict(model, optimizer,
                                                options=options)},
             checkpoint_id=str(step / "optim"), no_dist=True)
    for name, value in (("rng/rng_global_rank_0", {"seed": 1}),
                        ("dataloader/dataloader_dp_rank_0", {"i": 14}),
                        ("step_scheduler", {"step": 7, "epoch": 0})):
        path = step / f"{name}.pt"
        path.parent.mkdir(exist_ok=True)
        torch.save(value, path)
    (step / "losses.json").write_text('{"train_loss": 0.5}')
    (step / "config.yaml").write_text("model: tiny\n")
    names = {id(p): n for n, p in model.named_parameters()}
    optim = {f"{names[id(p)]}.{k}": v for p, s in optimizer.state.items()
             for k, v in s.items()}
    return step, dict(model.state_dict()), optim


def test_automodel(folder):
    step, model, optim = save_automodel(folder)
    older = step.with_name("epoch_0_step_3")
    older.mkdir()
    for path in (step, step.parent):
        found = CKPT.inspect(path, "--digest")
        check_equal(found["trainer"], {"name": "automodel", "step": 7}, "run")
        got = {t["name"]: t for t in found["tensors"]}
        check_equal(sorted(got), sorted({**model, **optim}), "names")
        for name, tensor in {**model, **optim}.items():
            check_equal(got[name]["digest"],
                        digest(tensor.detach().numpy().tobytes()), name)
            check_equal(got[name]["kind"],
                        "model" if name in model else "optim", name)
        parts = {Path(f["path"]).name: f["part"]
                 for f in found["file_list"]}
        check_equal((parts["rng_global_rank_0.pt"], parts["config.yaml"],
                     parts["dataloader_dp_rank_0.pt"]),
                    ("rng", "config", "dataloader"), "parts")
    CKPT.ok("verify", step.parent)
    out = folder / "out"
    CKPT.ok("reshard", step, out, "--dp", 2, "--verify")
    again = {t["name"]: t["digest"]
             for t in CKPT.inspect(out, "--digest")["tensors"]}
    check_equal(again, {n: t["digest"] for n, t in got.items()}, "again")


def test_automodel_adapters(folder):
    """PEFT's words are in the file of the adapter (ModelState.state_dict), and
    not in the optimizer. With experts of several ranks or quantized weights
    OptimizerState keeps torch's numbers, with pipeline stages one state dict
    for each (read at 36044ad)."""
    import torch
    import torch.distributed.checkpoint as dcp
    from safetensors.torch import save_file
    from torch.distributed.checkpoint.state_dict import (
        StateDictOptions, get_optimizer_state_dict)

    torch.manual_seed(3)
    model = torch.nn.ModuleDict({
        "lora_A": torch.nn.Linear(6, 2, bias=False),
        "lora_B": torch.nn.Linear(2, 5, bias=False)})
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    model["lora_B"](model["lora_A"](torch.randn(3, 6))).square().mean() \
        .backward()
    optimizer.step()
    named = get_optimizer_state_dict(
        model, optimizer,
        options=StateDictOptions(flatten_optimizer_state_dict=True))
    numbered = optimizer.state_dict()
    prefix = "base_model.model."
    names = [prefix + n for n, _ in model.named_parameters()]
    for kind, optim, said in (
            ("named", named, []),
            ("numbered", numbered, ["numbered_state"]),
            ("stages", {"optimizer_parts": {"stage_0": numbered}},
             ["numbered_state"])):
        step = folder / kind / "epoch_0_step_7"
        (step / "model").mkdir(parents=True)
        save_file({prefix + n: p.detach() for n, p in model.named_parameters()},
                  str(step / "model" / "adapter_model.safetensors"))
        (step / "model" / "adapter_config.json").write_text(
            '{"peft_type": "LORA", "r": 2, "lora_alpha": 4}')
        dcp.save({"optim": optim}, checkpoint_id=str(step / "optim"),
                 no_dist=True)
        found = CKPT.inspect(step, "--digest")
        check_equal(found["trainer"], {"name": "automodel", "step": 7}, kind)
        check_equal([p["kind"] for p in found["problems"]
                     if p["severity"] != "note"], said, kind)
        got = {t["name"]: t["digest"] for t in found["tensors"]}
        check_equal(len(got), 8, kind)
        if said:
            continue
        for name, param in zip(names, model.parameters()):
            for key, value in optimizer.state[param].items():
                check_equal(got[f"{name}.{key}"],
                            digest(value.numpy().tobytes()), f"{name}.{key}")


def test_automodel_marks(folder):
    """`.incomplete` is there while Automodel saves, and its loader goes by
    LATEST, a link or a text, unless what that leads to is incomplete."""
    import shutil

    step, _, _ = save_automodel(folder)
    root = step.parent
    newer = step.with_name("epoch_0_step_9")
    shutil.copytree(step, newer)
    mark = newer / ".incomplete"

    def check_read(number, *words):
        found = CKPT.inspect(root)
        check_equal(found["trainer"]["step"], number, "step")
        said = [p["message"] for p in found["problems"]
                if p["kind"] == "unfinished_save"]
        check_equal(bool(said), bool(words), str(said))
        check(all(word in said[0] for word in words), f"{said}")

    check_read(9)
    mark.touch()
    check_read(7, "epoch_0_step_9", ".incomplete")
    rows = {r["step"]: r for r in CKPT.ok("ls", root, "--json").json()["entries"]}
    check_equal([rows[n]["complete"] for n in (7, 9)], [True, False], "whole")
    check(".incomplete" in rows[9]["why"], rows[9])
    result = CKPT.run("verify", newer).want(1)
    check(str(mark) in result.out, f"{result}")
    link, text = root / "LATEST", root / "LATEST.txt"
    link.symlink_to(newer.name)
    check_read(7, "epoch_0_step_9", ".incomplete")
    mark.unlink()
    check_read(9)
    for target in (step.name, str(step)):
        link.unlink()
        link.symlink_to(target)
        check_read(7, "epoch_0_step_9", "LATEST leads to epoch_0_step_7")
    link.unlink()
    text.write_text(step.name + "\n")
    check_read(7, "LATEST leads to")
    text.write_text("epoch_0_step_8")
    check_read(9)
    link.symlink_to("epoch_0_step_8")
    check_read(9)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for case, inside, prefix, facts in MODELS:
        suite.add(f"{case} {Path(inside).name}".strip() + ": as a model",
                  test_model, case, inside, prefix, facts)
    suite.add("automodel's folder", test_automodel)
    suite.add("automodel's adapters", test_automodel_adapters)
    suite.add("automodel's marks", test_automodel_marks)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
