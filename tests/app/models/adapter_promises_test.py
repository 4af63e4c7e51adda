#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Adapters that are not what their configuration says: warned of where peft
goes on with new factors or the base's modules, refused where the sum would be
no model."""

import json
import shutil

import torch
from safetensors.torch import load_file, save_file

from support import DATA, Suite, check, check_equal

CKPT = None
BASE = DATA / "hf/llama/ckpt"
TARGETS = ("q_proj", "v_proj", "down_proj")


def base_tensors():
    state = {}
    for path in sorted(BASE.glob("*.safetensors")):
        state |= load_file(path)
    return state


def make(folder, change=lambda factors: factors, **config):
    """All target modules with random factors, as training leaves them."""
    torch.manual_seed(3)
    factors = {}
    for name, weight in base_tensors().items():
        module = name.removesuffix(".weight")
        if not module.endswith(TARGETS):
            continue
        rows, columns = weight.shape
        prefix = "base_model.model." + module
        factors[prefix + ".lora_A.weight"] = torch.randn(2, columns) / 10
        factors[prefix + ".lora_B.weight"] = torch.randn(rows, 2) / 10
    folder.mkdir(exist_ok=True)
    save_file(change(factors), folder / "adapter_model.safetensors",
              {"format": "pt"})
    (folder / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 2,
         "lora_alpha": 4, "target_modules": list(TARGETS)} | config))
    return folder


def merge(folder, adapter, *options):
    shutil.rmtree(folder / "out", ignore_errors=True)
    return CKPT.run("convert", BASE, folder / "out", "--to", "safetensors",
                    "--adapter", adapter, *options)


def result(folder):
    state = {}
    for path in sorted((folder / "out").glob("*.safetensors")):
        state |= load_file(path)
    return state


def of_layer(number):
    return lambda factors: {name: value for name, value in factors.items()
                            if f".layers.{number}." in name}


def test_whole(folder):
    """A sound one is added without a word; so is one of some layers, where the
    configuration says so."""
    for options in ({}, {"target_modules": r".*\.(q|v|down)_proj"},
                    {"modules_to_save": None}):
        done = merge(folder, make(folder / "a", **options)).want(0)
        check("factors" not in done.err, str(done))
    done = merge(folder, make(folder / "a", of_layer(0),
                              layers_to_transform=[0])).want(0)
    check("factors" not in done.err, str(done))
    done = merge(folder, make(
        folder / "a", lambda factors: {name: value for name, value in
                                       factors.items() if "v_proj" not in name},
        exclude_modules=["v_proj"])).want(0)
    check("factors" not in done.err, str(done))


def test_half(folder):
    """Target modules without factors: named and counted, and the base's."""
    done = merge(folder, make(folder / "a", of_layer(0))).want(0)
    layers = len({name.split(".")[2] for name in base_tensors()
                  if ".layers." in name})
    gone = (layers - 1) * len(TARGETS)
    check(f"{gone} of {layers * len(TARGETS)} modules" in done.err, str(done))
    got, base = result(folder), base_tensors()
    for name, value in got.items():
        here = ".layers.0." in name and name.removesuffix(
            ".weight").endswith(TARGETS)
        check(torch.equal(value, base[name]) != here, name)


def test_values(folder):
    """NaN and infinities in each kind of factor, and sums that overflow."""
    for part in ("lora_A", "lora_B"):
        for bad in (float("nan"), float("inf"), -float("inf")):
            def change(factors, part=part, bad=bad):
                name = next(name for name in factors if part in name)
                factors[name][0, 0] = bad
                return factors
            adapter = make(folder / "a", change)
            done = merge(folder, adapter).want(5)
            check(part in done.err and "--allow-nonfinite" in done.err,
                  str(done))
            check(not (folder / "out").exists(), "something was written")
            merge(folder, adapter, "--allow-nonfinite").want(0)
            check(any(not value.isfinite().all()
                      for value in result(folder).values()), "the sums")
    huge = make(folder / "a", lambda factors: {
        name: torch.full_like(value, 1e30) for name, value in factors.items()})
    done = merge(folder, huge).want(5)
    check("--allow-nonfinite" in done.err and not (folder / "out").exists(),
          str(done))


def test_zero(folder):
    """lora_B as it was before any training: adds nothing, which is said."""
    done = merge(folder, make(folder / "a", lambda factors: {
        name: value * 0 if "lora_B" in name else value
        for name, value in factors.items()})).want(0)
    check("add nothing" in done.err, str(done))


def test_saved(folder):
    for name in ("lm_head", "embed_tokens"):
        done = merge(folder, make(folder / "a",
                                  modules_to_save=[name])).want(0)
        check(f"modules_to_save has {name}" in done.err, str(done))
    weight = base_tensors()["lm_head.weight"]
    done = merge(folder, make(folder / "a", lambda factors: factors | {
        "base_model.model.lm_head.weight": weight + 1},
        modules_to_save=["lm_head"])).want(0)
    check("modules_to_save has" not in done.err, str(done))


def test_empty(folder):
    """What ZeRO 3 leaves: all factors, one, and a file of no bytes."""
    for shape in ((0,), (0, 2), (2, 0)):
        for some in (1, 1000):
            done = merge(folder, make(folder / "a", lambda factors: {
                name: torch.zeros(shape) if at < some else value
                for at, (name, value) in enumerate(factors.items())})).want(4)
            check("has no elements" in done.err and "ZeRO 3" in done.err,
                  str(done))
    (folder / "a/adapter_model.safetensors").write_bytes(b"")
    done = merge(folder, folder / "a")
    check(done.code in (3, 4, 5), str(done))
    check(not (folder / "out").exists(), "something was written")


def with_tokens(folder, **more):
    """As peft saves an adapter once tokens were added: tables whole."""
    state = base_tensors()
    torch.manual_seed(5)

    def change(factors):
        for name, extra in more.items():
            table = state[{"embedding": "model.embed_tokens.weight",
                           "head": "lm_head.weight"}[name]]
            key = {"embedding": "model.embed_tokens", "head": "lm_head"}[name]
            factors[f"base_model.model.{key}.weight"] = torch.cat(
                [table, torch.randn(extra, table.shape[1]).to(table.dtype)])
        return factors

    return make(folder / "a", change)


def test_tokens(folder):
    """Tables of more rows: both of them, or neither."""
    rows = len(base_tensors()["lm_head.weight"])
    adapter = with_tokens(folder, embedding=5, head=5)
    done = merge(folder, adapter).want(0)
    check(f"{rows + 5} rows" in done.err, str(done))
    state, want = result(folder), load_file(adapter / "adapter_model.safetensors")
    for name in ("model.embed_tokens.weight", "lm_head.weight"):
        check(torch.equal(state[name], want["base_model.model." + name]), name)
    config = json.loads((folder / "out/config.json").read_text())
    check(config["vocab_size"] == rows + 5, str(config))
    CKPT.ok("verify", folder / "out")
    for more in ({"embedding": 5}, {"head": 5}, {"embedding": 5, "head": 6}):
        done = merge(folder, with_tokens(folder, **more)).want(5)
        check("hint: save the adapter" in done.err, str(done))
        check(not (folder / "out").exists(), str(done))


def verdict(adapter, *options):
    done = CKPT.run("verify", adapter, "--json", *options)
    return done.code, json.loads(done.out)


def lonely(part):
    def change(factors):
        name = next(name for name in factors if part in name)
        return {k: v for k, v in factors.items() if k != name}
    return change


def narrow(factors):
    return {name: value[:1] if "lora_A" in name else value[:, :1].contiguous()
            for name, value in factors.items()}


def renamed(old, new):
    return lambda factors: {name.replace(old, new): value
                            for name, value in factors.items()}


# What is wrong, and what verify says of the adapter alone: a kind of problem
# and a verdict. peft fails to load the first five.
ALONE = {
    "no lora_A": (lonely("lora_A"), {}, "missing_tensor", "incomplete"),
    "no lora_B": (lonely("lora_B"), {}, "missing_tensor", "incomplete"),
    "another rank": (narrow, {}, "shape", "mismatch"),
    "another rank by pattern": (
        lambda factors: factors, {"rank_pattern": {"v_proj": 1}}, "shape",
        "mismatch"),
    "integers": (lambda factors: {
        name: value.to(torch.int8) for name, value in factors.items()}, {},
        "dtype", "mismatch"),
    "a target without factors": (
        lambda factors: {k: v for k, v in factors.items() if "v_proj" not in k},
        {}, "adapter_bare", "warnings"),
    "a module to save": (lambda factors: factors,
                         {"modules_to_save": ["lm_head"]}, "adapter_bare",
                         "warnings"),
    "as it is": (lambda factors: factors, {}, "", "ok"),
    # peft leaves the base as it is (adapter_test.py, names of no adapter).
    "a state dict's names": (renamed(".weight", ".default.weight"), {},
                             "wrapped_names", "mismatch"),
    "one rank of its own": (
        lambda factors: {name: narrow({name: value})[name]
                         if "v_proj" in name else value
                         for name, value in factors.items()},
        {"rank_pattern": {"v_proj": 1}}, "", "ok"),
}


def test_alone(folder, what):
    """What an adapter lacks shows without its base."""
    change, config, kind, wanted = ALONE[what]
    code, document = verdict(make(folder / "a", change, **config))
    check_equal(document["verdict"], wanted, f"{what}: {document}")
    check((code == 0) == (wanted in ("ok", "warnings")), str(document))
    kinds = {one["kind"] for one in document["problems"]}
    check(kinds == ({kind} if kind else set()), f"{what}: {document}")


# Kinds of peft that are no sum of a matrix and factors, with a name that each
# gives its tensors.
OTHERS = {"IA3": "ia3_l", "OFT": "oft_R.weight", "BOFT": "boft_R",
          "VERA": "vera_lambda_b", "ADALORA": "lora_E",
          "LN_TUNING": "weight", "FOURIERFT": "fourierft_spectrum.default",
          "HRA": "hra_u", "BONE": "bone_block", "SHIRA": "shira_weight",
          "RANDLORA": "randlora_lambda", "MISS": "miss_block",
          "PROMPT_TUNING": None, "PREFIX_TUNING": None}


def test_other_kind(folder, kind):
    """Refused by its name, which inspect shows; verify can't tell."""
    name = OTHERS[kind]
    module = "base_model.model.model.layers.0.self_attn.q_proj."
    adapter = make(folder / "a", lambda factors: {
        "prompt_embeddings" if name is None else module + name:
            torch.randn(4, 16)}, peft_type=kind)
    done = merge(folder, adapter).want(5)
    check(f"of type {kind}" in done.err and "hint:" in done.err, str(done))
    check(not (folder / "out").exists(), "something was written")
    shown = CKPT.ok("inspect", adapter, "--json")
    check_equal(json.loads(shown.out)["adapter"]["type"], kind, "inspect")
    code, document = verdict(adapter)
    check_equal((code, document["verdict"]), (0, "cant_tell"), str(document))


def test_base_not_whole(folder):
    """The same question as without an adapter, of base and adapter together."""
    shutil.copytree(BASE, folder / "base")
    path = next((folder / "base").glob("*.safetensors"))
    state = load_file(path)
    for name in ("model.norm.weight", "model.layers.0.mlp.up_proj.weight"):
        save_file({k: v for k, v in state.items() if k != name}, path,
                  {"format": "pt"})
        done = CKPT.run("convert", folder / "base", folder / "out", "--to",
                        "safetensors", "--adapter", make(folder / "a")).want(5)
        check(name in done.err and not (folder / "out").exists(), str(done))


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    suite.add("added tokens", test_tokens)
    suite.add("a base that is not whole", test_base_not_whole)
    suite.add("as promised", test_whole)
    suite.add("half of the modules", test_half)
    suite.add("values that are not finite", test_values)
    suite.add("lora_B of zeros", test_zero)
    suite.add("modules_to_save", test_saved)
    suite.add("empty factors", test_empty)
    for what in ALONE:
        suite.add(f"verify: {what}", test_alone, what)
    for kind in OTHERS:
        suite.add(f"of type {kind}", test_other_kind, kind)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
