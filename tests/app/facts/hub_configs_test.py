#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The config.json of models on the hub, key for key, on tiny transformers
models with every parameter random: to each dialect that has the family and
back, with config.json kept beside and removed.

The logits are those of transformers on the source, a kept file comes back as it
was, `verify` and `diff` agree, and no key is unknown; or the command refuses
with status 5.

    hub_configs_test.py --ckpt CKPT         the part that runs in CI
    hub_configs_test.py --ckpt CKPT --full  all of them
"""

import json
import sys
from pathlib import Path

from support import Skip, Suite, check, check_equal

CKPT = None
TRANSFORMERS = Path(sys.prefix) / "transformers_5.12.1"
MCORE = "megatron_torch_dist"
OTHERS = {
    "meta": ("llama", "mistral"),
    "fairseq2": ("llama", "mistral", "qwen2", "qwen3", "olmo2", "olmo3"),
    "olmo_core": ("llama", "qwen3", "olmo2", "olmo3"),
    "vllm": ("llama", "mistral", "qwen2", "qwen3", "qwen3_moe", "mixtral",
             "deepseek_v3", "gemma2", "gemma3_text", "phi3", "glm4_moe",
             "granite"),
}
KEEPS = (MCORE, "fairseq2", "vllm")  # have config.json beside them
# What CI tests: a spelling, a leftover or a size of each kind.
CHOSEN = (
    "Llama 3.1 70B", "Llama of both spellings", "Qwen 2.5 72B", "DeepSeek V3.1",
    "Mistral Nemo", "Gemma 7B, first release", "Gemma 3 1B", "Phi 4 mini",
    "Command R7B", "GLM 4.5", "Nemotron H", "MiniMax M2",
    "Llama 4 Scout's text")


def saved(folder, config):
    """The directory of a model with that config.json, and its logits."""
    from facts_models import logits_at, model_of
    from transformers import AutoConfig

    folder.mkdir()
    text = json.dumps(config, indent=2) + "\n"
    (folder / "config.json").write_text(text)
    model_of(AutoConfig.from_pretrained(
        folder, attn_implementation="eager")).save_pretrained(folder)
    (folder / "config.json").write_text(text)
    return logits_at(folder)


def same_logits(folder, want, what):
    from facts_models import logits_at

    got = logits_at(folder)
    off = float((got - want).abs().max() / want.abs().max())
    check(off < 1e-5, f"{what}: logits are off by {off:.2g}: "
          + (folder / "config.json").read_text())


def differing(a, b):
    return {key: (a.get(key), b.get(key)) for key in {**a, **b}
            if a.get(key, "-") != b.get(key, "-")}


def take_config(folder):
    for name in ("config.json", "generation_config.json"):
        for path in folder.rglob(name):
            path.unlink()


def hub(folder, name, target, change=None):
    from hub_configs import HUB, NOWHERE, UNSAID

    config, source = {**HUB[name], **(change or {})}, folder / "source"
    for key in ("dtype", "torch_dtype"):  # the tiny weights' dtype
        if key in config:
            config[key] = "float32"
    want = saved(source, config)
    there, back = folder / "there", folder / "back"
    asked = ["--allow-unsaid", UNSAID[name]] if name in UNSAID and \
        target == MCORE else []
    result = CKPT.run("convert", source, there, "--to", target, "--no-fsync",
                      *asked)
    if result.code == 5 and (
            change or target != MCORE or name in NOWHERE):
        check(change or NOWHERE.get(name, "") in result.err, result.err)
        return
    result.want(0)
    check(change or name not in NOWHERE or target == "vllm", "was not refused")
    check("not known" not in result.err, result.err)
    for command in ("verify", "diff"):
        CKPT.ok(command, source, there)
    home = ("--to", "safetensors", "-q", "--no-fsync")
    CKPT.ok("convert", there, back, *home)
    if target in KEEPS:
        check_equal(differing(json.loads((back / "config.json").read_text()),
                              config), {}, "config.json that was kept")
    same_logits(back, want, "config.json kept")
    if target in ("vllm", "olmo_core"):
        return  # it is the only configuration there
    take_config(there)
    family = {"olmo3": "olmo2", "qwen3_5_text": "qwen3_5"}.get(
        config["model_type"], config["model_type"])
    CKPT.ok("convert", there, folder / "alone", *home, "--family", family)
    same_logits(folder / "alone", want, "config.json away")


SAYS = {"scoring_func": "softmax", "topk_method": "greedy"}


def denied(folder, key):
    """A value that no model of the type has, under a key that transformers'
    class doesn't read."""
    from hub_configs import HUB

    source = folder / "source"
    saved(source, HUB["DeepSeek V3.1"])
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, key: SAYS[key]}))
    result = CKPT.run("convert", source, folder / "there", "--to", MCORE)
    check(result.code == 5 and f"{key} {SAYS[key]}" in result.err, str(result))


def key_of_rope(folder):
    """An unknown key in a scaling is named, too."""
    from hub_configs import HUB, LLAMA3

    source = folder / "source"
    saved(source, dict(HUB["Llama 3.1 70B"], rope_scaling=dict(
        LLAMA3, frobnicate=2)))
    command = ("convert", source, folder / "there", "--to", MCORE)
    result = CKPT.run(*command, "--strict-config")
    check(result.code == 5 and "rope_scaling.frobnicate" in result.err,
          str(result))
    check("rope_scaling.frobnicate" in CKPT.ok(*command).err, "no warning")


def sizes_of_the_class(folder):
    """transformers saves a text_config without its class's defaults: Gemma 3
    4B's has no heads."""
    from facts_vision_models import logits_at, model_of
    from hub_configs import GEMMA3_4B
    from transformers import AutoConfig

    source, text = folder / "source", json.dumps(GEMMA3_4B, indent=2) + "\n"
    source.mkdir()
    (source / "config.json").write_text(text)
    model_of(AutoConfig.from_pretrained(source)).save_pretrained(source)
    (source / "config.json").write_text(text)
    want, there = logits_at(source), folder / "there"
    CKPT.ok("convert", source, there, "--to", MCORE, "-q")
    CKPT.ok("verify", source, there)
    for kept in (True, False):
        back = folder / f"back{kept}"
        CKPT.ok("convert", there, back, "--to", "safetensors", "-q")
        off = float((logits_at(back) - want).abs().max() / want.abs().max())
        check(off < 1e-5, f"logits are off by {off:.2g}")
        take_config(there)


def falcon_is_said(folder):
    """Falcon goes to Megatron with a warning, and not under --strict-config."""
    from hub_configs import HUB

    source = folder / "source"
    saved(source, HUB["Falcon 7B"])
    command = ("convert", source, folder / "there", "--to", MCORE)
    result = CKPT.run(*command, "--strict-config")
    check(result.code == 5 and "parallel_residual" in result.err, str(result))
    check("parallel_residual" in CKPT.ok(*command).err, "no warning")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    if not TRANSFORMERS.is_dir():
        raise SystemExit("skipped: transformers is not installed")
    sys.path.insert(0, str(TRANSFORMERS))
    try:
        import torch
    except ImportError as error:
        raise Skip(str(error)) from error
    torch.set_num_threads(1)
    from hub_configs import CHANGES, HUB

    for name, changes in CHANGES.items():
        for change in changes if FULL else changes[-1:]:
            for target in (MCORE, *OTHERS) if FULL else (MCORE,):
                if target == MCORE or \
                        HUB[name]["model_type"] in OTHERS[target]:
                    suite.add(f"{name} with {change} to {target}", hub, name,
                              target, change)
    for name in HUB if FULL else CHOSEN:
        for target in (MCORE, *OTHERS):
            if target == MCORE or HUB[name]["model_type"] in OTHERS[target]:
                suite.add(f"{name} to {target}", hub, name, target)
    for key in SAYS:
        suite.add(f"DeepSeek V3 with another {key}", denied, key)
    suite.add("a key of rope_scaling that nobody knows", key_of_rope)
    suite.add("a text_config without sizes", sizes_of_the_class)
    suite.add("Falcon's parallel residual is said", falcon_is_said)


FULL = "--full" in sys.argv

if __name__ == "__main__":
    sys.argv = [a for a in sys.argv if a != "--full"]
    Suite(__doc__).main(prepare)
