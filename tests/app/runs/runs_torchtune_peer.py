#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Folders that torchtune's own checkpointers write.

    runs_torchtune_peer.py DIRECTORY
    runs_torchtune_peer.py DIRECTORY FOLDER OUT

The second form has its distributed checkpointer resume the newest step of
FOLDER into a model and an optimizer of zeros, and writes what came in to OUT.

Each has the live objects beside it: live.safetensors, by torchtune's names.
torchtune's __init__ needs torchao and torchdata. Its checkpointers, the only
part imported here, don't.
"""

import importlib
import json
import sys
import types
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

PEER = Path(sys.prefix) / "torchtune"
HIDDEN, HEADS, KV_HEADS, LAYERS, ROWS, WIDTH = 16, 4, 2, 2, 32, 24
HALF = HIDDEN // HEADS * KV_HEADS


def bare(name):
    """A package without its __init__."""
    module = types.ModuleType(name)
    module.__path__ = [str(PEER / name.replace(".", "/"))]
    sys.modules[name] = module
    above, _, last = name.rpartition(".")
    if above:
        setattr(sys.modules[above], last, module)
    return module


def checkpointers():
    sys.path.insert(0, str(PEER))
    bare("torchtune")
    training = bare("torchtune.training")
    bare("torchtune.training.checkpointing")
    bare("torchtune.models")
    utils = bare("torchtune.utils")
    logging = importlib.import_module("torchtune.utils._logging")
    utils.get_logger = logging.get_logger
    utils.log_rank_zero = logging.log_rank_zero
    utils.get_world_size_and_rank = lambda: (1, 0)
    words = importlib.import_module("torchtune.training.checkpointing._utils")
    for word in dir(words):
        if word.isupper():
            setattr(training, word, getattr(words, word))
    return importlib.import_module(
        "torchtune.training.checkpointing._checkpointer")


def transformers_weights():
    weights = {"model.embed_tokens": (ROWS, HIDDEN), "model.norm": (HIDDEN,),
               "lm_head": (ROWS, HIDDEN)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        weights |= {
            at + "self_attn.q_proj": (HIDDEN, HIDDEN),
            at + "self_attn.k_proj": (HALF, HIDDEN),
            at + "self_attn.v_proj": (HALF, HIDDEN),
            at + "self_attn.o_proj": (HIDDEN, HIDDEN),
            at + "mlp.gate_proj": (WIDTH, HIDDEN),
            at + "mlp.up_proj": (WIDTH, HIDDEN),
            at + "mlp.down_proj": (HIDDEN, WIDTH),
            at + "input_layernorm": (HIDDEN,),
            at + "post_attention_layernorm": (HIDDEN,)}
    return {f"{name}.weight": torch.randn(shape)
            for name, shape in weights.items()}


def module_order(name):
    """The order in which torchtune's TransformerDecoder and its modules
    register theirs."""
    layer = int(name.split(".")[1]) if name.startswith("layers.") else 0
    words = ["tok_embeddings", "layers.", "norm.", "output"]
    inner = ["q_proj.w", "q_proj.lora_a", "q_proj.lora_b", "k_proj",
             "v_proj.w", "v_proj.lora_a", "v_proj.lora_b", "output_proj", "w1",
             "w2", "w3", "sa_norm", "mlp_norm"]
    return ([name.startswith(w) for w in words].index(True), layer,
            next((i for i, w in enumerate(inner) if w in name), 0))


def states(params):
    """AdamW's states after a step, by name and by number."""
    names = list(params)
    live = [torch.nn.Parameter(params[n].clone()) for n in names]
    optimizer = torch.optim.AdamW(live, lr=1e-3)
    for one in live:
        one.grad = torch.randn_like(one)
    optimizer.step()
    numbered = optimizer.state_dict()
    named = {"state": {n: numbered["state"][i] for i, n in enumerate(names)},
             "param_groups": [{**numbered["param_groups"][0],
                               "params": names}]}
    return named, numbered


def flat(named):
    return {f"{name}.{key}": value for name, one in named["state"].items()
            for key, value in one.items()}


class Saver:
    def __init__(self, root):
        self.root, self.own = root, checkpointers()
        torch.manual_seed(0)
        self.base = root / "base"
        self.base.mkdir(parents=True)
        (self.base / "config.json").write_text(json.dumps({
            "architectures": ["LlamaForCausalLM"], "model_type": "llama",
            "hidden_size": HIDDEN, "num_attention_heads": HEADS,
            "num_key_value_heads": KV_HEADS, "num_hidden_layers": LAYERS,
            "vocab_size": ROWS, "intermediate_size": WIDTH,
            "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
            "max_position_embeddings": 64, "hidden_act": "silu",
            "rope_theta": 10000.0, "torch_dtype": "float32"}))
        save_file(transformers_weights(), str(self.base / "model.safetensors"),
                  metadata={"format": "pt"})
        model = self.hf("live").load_checkpoint()["model"]
        self.model = {n: model[n] for n in sorted(model, key=module_order)}
        self.adapter = {}
        for layer in range(LAYERS):
            for name, rows in (("q_proj", HIDDEN), ("v_proj", HALF)):
                at = f"layers.{layer}.attn.{name}."
                self.adapter[at + "lora_a.weight"] = torch.randn(2, HIDDEN)
                self.adapter[at + "lora_b.weight"] = torch.randn(rows, 2)

    def hf(self, name, safe=True):
        one = self.own.FullModelHFCheckpointer(
            checkpoint_dir=str(self.base),
            checkpoint_files=["model.safetensors"], model_type="LLAMA3",
            output_dir=str(self.root / name), safe_serialization=safe)
        one.load_checkpoint()
        return one

    def save(self, checkpointer, optimizer=None, epoch=0, live=(), **more):
        """Saves as the recipes do at the end of an epoch that is not the
        last."""
        state = {"model": dict(self.model), **more}
        adapter_only = state.pop("adapter_only", False)
        if optimizer is not None:
            state |= {"optimizer": optimizer, "seed": 3,
                      "epochs_run": epoch + 1, "total_epochs": 9,
                      "max_steps_per_epoch": 2}
        checkpointer.save_checkpoint(
            state, epoch=epoch, intermediate_checkpoint=optimizer is not None,
            adapter_only=adapter_only)
        if live:
            save_file({n: t.clone().contiguous() for n, t in live.items()},
                      str(checkpointer._output_dir / "live.safetensors"))

    def all(self):
        named, numbered = states(self.model)
        live = self.model | flat(named)
        one = self.hf("named")
        self.save(one, named, live=live)
        self.save(self.hf("numbered"), numbered, live=live)
        self.save(self.hf("bin", safe=False), numbered, live=live)
        one = self.hf("last")
        self.save(one, named)
        self.save(one, epoch=1)
        torch.save(self.model, self.base / "tune.pt")
        for name, kind in (("tune", self.own.FullModelTorchTuneCheckpointer),
                           ("meta", self.own.FullModelMetaCheckpointer)):
            self.save(kind(checkpoint_dir=str(self.base),
                           checkpoint_files=["tune.pt"], model_type="LLAMA3",
                           output_dir=str(self.root / name)),
                      numbered, live=live)
        adapter, by_number = states(self.adapter)
        config = {"r": 2, "lora_alpha": 4, "peft_type": "LORA",
                  "target_modules": ["q_proj", "v_proj"]}
        for name, only in (("lora", False), ("adapter", True)):
            for kind, optimizer in (("", adapter), ("_numbered", by_number)):
                self.save(self.hf(name + kind), optimizer,
                          live=self.adapter | flat(adapter),
                          adapter=dict(self.adapter), adapter_only=only,
                          adapter_config=dict(config))
        for name, optimizer in (("dist", named), ("dist_numbered", numbered)):
            one = self.own.DistributedCheckpointer(
                checkpoint_dir=str(self.base),
                output_dir=str(self.root / name))
            # Its state has a file for each of so many threads.
            state = {"model": dict(self.model), "optimizer": optimizer,
                     "seed": 3, "epochs_run": 1, "total_epochs": 9,
                     "max_steps_per_epoch": 2}
            one.save_checkpoint(state, epoch=0)
            save_file({n: t.clone() for n, t in live.items()},
                      str(self.root / name / "live.safetensors"))


def resume(live, folder, out):
    """DistributedCheckpointer resumes from the newest `dist_epoch_N`."""
    model = {n: torch.zeros_like(t) for n, t in load_file(live).items()
             if not n.endswith((".exp_avg", ".exp_avg_sq", ".step"))}
    optimizer = states(model)[0]
    for one in optimizer["state"].values():
        for tensor in one.values():
            tensor.zero_()
    state = {"model": model, "optimizer": optimizer, "seed": 0,
             "epochs_run": 0, "total_epochs": 0, "max_steps_per_epoch": 0}
    checkpointer = checkpointers().DistributedCheckpointer(
        checkpoint_dir=str(folder), output_dir=str(folder))
    state = checkpointer.load_checkpoint(state)
    assert (state["seed"], state["epochs_run"]) == (3, 1), state
    save_file({n: t.clone() for n, t in
               (state["model"] | flat(state["optimizer"])).items()}, out)


if __name__ == "__main__":
    if len(sys.argv) == 2:
        Saver(Path(sys.argv[1])).all()
    else:
        resume(Path(sys.argv[1]) / "dist/live.safetensors", *sys.argv[2:])
