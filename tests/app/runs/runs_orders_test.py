#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The numbers of an optimizer of Hugging Face's Trainer, by the order in which
transformers' own models register their parameters and the Trainer's own rule
for its groups.

Each model is made by transformers and saved by it; the states are full of their
numbers, so that one that comes out under another's name shows. With `--full`
all classes of each type, else the first.
"""

import json
import sys
import threading
from pathlib import Path

from runs_orders_models import HEADS, MODELS
from support import Skip, Suite, check, check_equal, digest

CKPT = None  # set by prepare
PEER = Path(sys.prefix) / "transformers_5.12.1"
MAKING = threading.Lock()  # transformers imports its modules lazily
# Saved under other names than the trained ones, so they stay numbered.
OTHERWISE = {"mixtral": dict(num_local_experts=4)}


def transformers():
    if not PEER.is_dir():
        raise Skip("transformers is not installed (scripts/test.sh does it)")
    if str(PEER) not in sys.path:
        sys.path.insert(0, str(PEER))
    with MAKING:
        import transformers as peer

    peer.logging.set_verbosity_error()
    return peer


def classes(kind):
    from transformers.models.auto import modeling_auto as auto

    found = []
    for head in HEADS:
        name = getattr(auto, f"MODEL_FOR_{head}_MAPPING_NAMES").get(kind)
        # Decoders' heads have a prefix of their own, and few are trained.
        decoder = not any("MaskedLM" in one for one in found)
        if name and name not in found and not (
                decoder and name.endswith("QuestionAnswering")):
            found.append(name)
    return found


def saved_names(folder, model):
    """Live name -> name in the file. A tied parameter is saved once, not always
    under its first name; an adapter's without the adapter's name."""
    from safetensors import safe_open

    adapter = folder / "adapter_model.safetensors"
    if adapter.exists():
        with safe_open(adapter, "pt") as file:
            saved = set(file.keys())
        return {n: next((s for s in (
            n.replace(".modules_to_save.default", "").replace(".default", ""),
            n.replace(".default.weight", ""), "prompt_embeddings")
            if s in saved), n) for n, _ in model.named_parameters()}
    with safe_open(folder / "model.safetensors", "pt") as file:
        saved = set(file.keys())
    known = {}
    for name, one in model.named_parameters(remove_duplicate=False):
        if name in saved:
            known.setdefault(id(one), name)
    return {n: known.get(id(p), n) for n, p in model.named_parameters()}


def save_step(folder, model):
    """Saves what the Trainer leaves of a model after one step."""
    import torch
    from transformers import Trainer

    model.save_pretrained(folder)
    trained = Trainer.get_decay_parameter_names(None, model)
    names = {n: p for n, p in model.named_parameters() if p.requires_grad}
    order = [[n for n in names if n in trained],
             [n for n in names if n not in trained]]
    states, groups = {}, []
    for group in order:
        numbers = range(len(states), len(states) + len(group))
        groups.append({"params": list(numbers)})
        states.update({i: {"exp_avg": torch.full(names[n].shape, float(i))}
                       for i, n in zip(numbers, group)})
    torch.save({"state": states, "param_groups": groups},
               folder / "optimizer.pt")
    torch.save({"last_epoch": 1}, folder / "scheduler.pt")
    (folder / "trainer_state.json").write_text('{"global_step": 1}')
    saved = saved_names(folder, model)
    flat = [saved[n] for group in order for n in group]
    return {f"{n}.exp_avg": states[i]["exp_avg"] for i, n in enumerate(flat)}


def look(folder, model):
    want = save_step(folder, model)
    found = CKPT.inspect(folder, "--digest")
    got = {t["name"]: t["digest"] for t in found["tensors"]
           if t["kind"] == "optim"}
    return found, got, {n: digest(t.numpy().tobytes())
                        for n, t in want.items()}


def test_order(folder, kind, every):
    peer = transformers()
    import torch

    names = classes(kind)
    check(names, f"{kind}: transformers has no class of it")
    for i, config in enumerate(MODELS[kind]):
        for name in names if every else names[:1]:
            with MAKING:
                torch.manual_seed(0)
                model = getattr(peer, name)(
                    peer.CONFIG_MAPPING[kind](**config))
            where = folder / f"{name}{i}" / "checkpoint-1"
            where.mkdir(parents=True)
            found, got, want = look(where, model)
            check_equal(sorted(got), sorted(want),
                        f"{name}: {found['problems']}")
            check_equal(got, want, f"{name} {config}")


def test_frozen(folder):
    """Frozen parameters that shapes identify. If others could be frozen as
    well, the state stays numbered."""
    peer = transformers()
    config = dict(MODELS["llama"][0], num_labels=3)
    for freeze, named in (("score.", True), ("model.layers.0.", False)):
        model = peer.LlamaForSequenceClassification(
            peer.LlamaConfig(**config))
        for name, one in model.named_parameters():
            one.requires_grad_(not name.startswith(freeze))
        where = folder / freeze
        where.mkdir()
        found, got, want = look(where, model)
        if named:
            check_equal(got, want, freeze)
            continue
        check(all(n.startswith("optimizer.state.") for n in got), f"{got}")
        said = [p for p in found["problems"] if p["kind"] == "numbered_state"]
        check("more than one way" in said[0]["message"], f"{said}")


# What PEFT trains: its configuration, and the model's.
ADAPTERS = {
    "LoRA with biases": lambda p: p.LoraConfig(
        target_modules=["q_proj", "v_proj"], lora_bias=True),
    "LoRA, all biases": lambda p: p.LoraConfig(
        target_modules=["q_proj", "v_proj"], bias="all"),
    "LoRA, an embedding": lambda p: p.LoraConfig(
        target_modules=["q_proj", "embed_tokens"]),
    "LoRA, a few tokens": lambda p: p.LoraConfig(
        target_modules=["q_proj"], trainable_token_indices=[3, 4]),
    "LoRA, modules to save": lambda p: p.LoraConfig(
        target_modules="all-linear", modules_to_save=["input_layernorm"]),
    "DoRA": lambda p: p.LoraConfig(
        target_modules=["q_proj", "down_proj"], use_dora=True),
    "IA3": lambda p: p.IA3Config(task_type="CAUSAL_LM"),
    "a prompt": lambda p: p.PromptTuningConfig(
        task_type="CAUSAL_LM", num_virtual_tokens=4),
}


def test_adapter(folder, kind):
    peer = transformers()
    try:
        with MAKING:
            import peft
    except ImportError:
        raise Skip("peft is not installed (scripts/test.sh does it)") from None
    with MAKING:
        model = peft.get_peft_model(
            peer.LlamaForCausalLM(peer.LlamaConfig(**MODELS["llama"][1])),
            ADAPTERS[kind](peft))
    found, got, want = look(folder, model)
    check_equal(got, want, f"{found['problems']}")


def test_otherwise(folder, kind):
    peer = transformers()
    config = dict(MODELS["llama"][0], **OTHERWISE[kind])
    model = peer.AutoModelForCausalLM.from_config(
        peer.CONFIG_MAPPING[kind](**config))
    found, got, _ = look(folder, model)
    check(all(n.startswith("optimizer.state.") for n in got), sorted(got)[:3])
    check_equal([p["kind"] for p in found["problems"]][:1],
                ["numbered_state"], "said")


def test_table(folder):
    """Each type of orders.json has a model here."""
    root = Path(__file__).resolve().parents[3]
    text = (root / "formats/runs/orders.json").read_text()
    types = [t for one in json.loads(text)["orders"] for t in one["types"]]
    check_equal(sorted(types), sorted(MODELS), "types")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    suite.add("the table", test_table)
    for kind in MODELS:
        suite.add(f"{kind}: its order", test_order, kind, suite.full)
    suite.add("frozen parameters", test_frozen)
    for kind in ADAPTERS:
        suite.add(f"PEFT: {kind}", test_adapter, kind)
    for kind in OTHERWISE:
        suite.add(f"{kind}: other names", test_otherwise, kind)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
