#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""--names, for each class whose module and whose files on the Hub name tensors
in two ways: what save_pretrained wrote becomes the module's state dict, and
that what save_pretrained wrote, bit for bit; transformers opens both, of the
classes that can be tiny. Names of both ways at once, lost experts and what no row says are refused.
"""

import json
import os
import sys
from pathlib import Path

from support import Skip, Suite, check, check_equal, read_safetensors
from tiny_peer import tensors_of

sys.path.insert(0, os.path.join(sys.prefix, "transformers_5.12.1"))
CKPT = None  # set by prepare
ROOT = Path(__file__).resolve().parents[3]
TABLE = "models/families/hf_names.json"
WAYS = ("hub", "transformers5")
ODD = {
    # Its files say "embedding.weight", which its base class alone has.
    "NemotronHModel": "the family's rules know it behind backbone. only",
    "GroundingDinoModel": "its names are taken for fairseq2's",
    "MMGroundingDinoModel": "its names are taken for fairseq2's",
}


def kinds():
    from transformers import (
        AutoModel, AutoModelForCausalLM, AutoModelForImageTextToText,
        AutoModelForSeq2SeqLM)

    return (AutoModelForCausalLM, AutoModelForImageTextToText,
            AutoModelForSeq2SeqLM, AutoModel)


def types_with_rows():
    """Types with a class in the table that has rows, and the classes."""
    classes = {name for row in json.loads((ROOT / TABLE).read_text())["tables"]
               if len(row) > 1 for name in row["classes"]}
    found = {}
    for kind in kinds():
        for name, model in kind._model_mapping._model_mapping.items():
            found.setdefault(name, set()).update(
                {model} if isinstance(model, str) else model)
    return {name: sorted(found[name] & classes) for name in sorted(found)}


def tiny(model_type, kind):
    import torch
    import model_types

    try:
        config = model_types.small_config(model_type)[0].config
    except Exception:  # it has no tiny model; the table was made without memory
        return None
    if not issubclass(kind.config_class, type(config)):
        return None
    torch.manual_seed(1)
    model = kind(config).eval()
    for number, tensor in enumerate(model.state_dict().values()):
        if tensor.is_floating_point():
            tensor.copy_(torch.rand(tensor.shape) + number)
    return model


def raw(model, folder):
    """The module's own state dict, as torch programs save it."""
    import torch
    from safetensors.torch import save_file

    folder.mkdir()
    state, seen = {}, {}
    for name, tensor in model.state_dict().items():
        if tensor.numel() and seen.setdefault(tensor.data_ptr(), name) == name:
            state[name] = tensor.contiguous()
    check(not any(torch.is_complex(one) for one in state.values()), "complex")
    save_file(state, folder / "model.safetensors", {"format": "pt"})
    model.config.architectures = [type(model).__name__]
    model.config.save_pretrained(folder)


def convert(source, out, *words):
    return CKPT.run("convert", source, out, "--to", "safetensors", *words)


def same(found, wanted, what):
    found, wanted = tensors_of(found), tensors_of(wanted)
    check_equal(sorted(found), sorted(wanted), f"names, {what}")
    for name in wanted:
        check_equal(found[name], wanted[name], f"{what}: {name}")


def test_class(folder, model_type, name):
    import transformers

    if name in ODD:
        raise Skip(ODD[name])
    kind = getattr(transformers, name)
    model = tiny(model_type, kind)
    if model is None:
        return test_without_memory(folder, model_type, name)
    if not all(one.numel() for one in model.state_dict().values()):
        raise Skip("a parameter of no elements, which ckpt refuses")
    model.save_pretrained(folder / "hub")
    raw(model, folder / "transformers5")
    for source in WAYS:
        for way in WAYS:
            out = folder / f"{source} as {way}"
            convert(folder / source, out, "--names", way).want(0)
            same(out, folder / way, f"{source} as {way}")
        _, said = kind.from_pretrained(out, output_loading_info=True)
        check(not said["missing_keys"] and not said["mismatched_keys"],
              f"{source}: transformers lacks {said['missing_keys']}")
    CKPT.ok("verify", folder / "hub", folder / "hub as transformers5")
    transformers4 = folder / "transformers4"
    convert(folder / "transformers5", transformers4, "--names",
            "transformers4").want(0)
    same(transformers4, folder / "hub", "transformers4")


def test_without_memory(folder, model_type, name):
    """Of a class that can't be tiny: a few rows of each parameter, as
    transformers renames them. Only names and bytes are compared."""
    import torch
    import transformers
    from safetensors.torch import save_file

    sys.path.insert(0, str(ROOT / "tests/generators"))
    import hf_names

    kind = getattr(transformers, name)
    *_, config = hf_names.configs(model_type)
    if not issubclass(kind.config_class, type(config)):
        raise Skip(f"{name} is of another configuration")
    with torch.device("meta"):
        model = kind(config)
    state = hf_names.numbered(model)
    for way, tensors in (("transformers5", state),
                         ("hub", hf_names.hub_of(model, state))):
        (folder / way).mkdir()
        save_file({key: tensor.float().contiguous().clone()
                   for key, tensor in tensors.items() if tensor.numel()},
                  folder / way / "model.safetensors", {"format": "pt"})
        (folder / way / "config.json").write_text(json.dumps(
            {"architectures": [name], "model_type": "of no family"}))
    for source in WAYS:
        for way in WAYS:
            out = folder / f"{source} as {way}"
            convert(folder / source, out, "--names", way,
                    "--allow-missing", "*").want(0)
            same(out, folder / way, f"{source} as {way}")


def edited(source, folder, change):
    import torch
    from safetensors.torch import load_file, save_file

    folder.mkdir()
    state = load_file(source / "model.safetensors")
    change(state, torch)
    save_file({name: tensor.contiguous() for name, tensor in state.items()},
              folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text((source / "config.json").read_text())
    return folder


def test_refused(folder):
    from transformers import MixtralForCausalLM

    model = tiny("mixtral", MixtralForCausalLM)
    model.save_pretrained(folder / "hub")
    raw(model, folder / "raw")
    hub, module = folder / "hub", folder / "raw"
    part = "model.layers.0.block_sparse_moe.experts.{}.{}.weight"
    gate = "model.layers.{}.block_sparse_moe.gate.weight"
    stack = "model.layers.0.mlp.experts.gate_up_proj"
    rows = {
        "an expert lost": (hub, WAYS[1], lambda s, _: [
            s.pop(part.format(1, one)) for one in ("w1", "w2", "w3")]),
        "a part lost": (hub, WAYS[1], lambda s, _: s.pop(part.format(2, "w3"))),
        "another shape": (hub, WAYS[1], lambda s, torch: s.update(
            {part.format(0, "w1"): torch.ones(3, 32)})),
        "a scale": (hub, WAYS[1], lambda s, torch: s.update(
            {part.format(0, "w1") + "_scale_inv": torch.ones(1, 1)})),
        "both ways": (module, WAYS[0], lambda s, torch: s.update(
            {gate.format(1): s["model.layers.1.mlp.gate.weight"].clone()})),
        "odd rows": (module, WAYS[0], lambda s, torch: s.update(
            {stack: torch.ones(4, 7, 32)})),
        "not stacked": (module, WAYS[0], lambda s, torch: s.update(
            {stack: torch.ones(4, 32)})),
    }
    for what, (source, way, change) in rows.items():
        broken = edited(source, folder / what, change)
        done = convert(broken, folder / f"{what} out", "--names", way,
                       "--allow-missing", "*")
        check_equal(done.code, 5, f"{what}\n{done}")
        check("Traceback" not in done.err and "hint" in done.err
              or "expert" in done.err or "expected" in done.err
              or "shape" in done.err, f"{what}: {done}")
    # Its own names, and names of another framework.
    CKPT.run("convert", hub, folder / "m", "--to", "megatron_torch_dist",
             "--names", "hub").want(2)
    bad = edited(hub, folder / "bad", lambda s, _: None)
    config = json.loads((bad / "config.json").read_text())
    config["architectures"] = ["NobodyForCausalLM"]
    (bad / "config.json").write_text(json.dumps(config))
    convert(bad, folder / "x", "--names", "transformers5").want(5)


def test_megatron(folder):
    """Megatron's is the same from both ways."""
    from transformers import MixtralForCausalLM

    model = tiny("mixtral", MixtralForCausalLM)
    model.save_pretrained(folder / "hub")
    raw(model, folder / "transformers5")
    for way in WAYS:
        CKPT.ok("convert", folder / way, folder / f"{way} mcore", "--to",
                "megatron_torch_dist", "--tp", "2")
    CKPT.ok("verify", *(folder / f"{way} mcore" for way in WAYS))
    CKPT.ok("verify", folder / "transformers5", folder / "hub mcore")
    convert(folder / "hub mcore", folder / "home", "--names",
            "transformers5").want(0)
    same(folder / "home", folder / "transformers5", "home")


def test_vllm(folder):
    """vLLM's ranks are the same from both ways."""
    from transformers import MixtralForCausalLM, Qwen3MoeForCausalLM

    for model_type, kind in (("mixtral", MixtralForCausalLM),
                             ("qwen3_moe", Qwen3MoeForCausalLM)):
        at = folder / model_type
        at.mkdir()
        model = tiny(model_type, kind)
        model.save_pretrained(at / "hub")
        raw(model, at / "transformers5")
        for way in WAYS:
            CKPT.ok("convert", at / way, at / f"{way} ranks", "--to", "vllm",
                    "--tp", "2")
        ranks = [sorted((at / f"{way} ranks").glob("*.safetensors"))
                 for way in WAYS]
        check_equal(*([path.name for path in one] for one in ranks), "ranks")
        for one, other in zip(*ranks):
            check_equal(*map(read_safetensors, (one, other)), one.name)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    import torch

    torch.set_num_threads(1)
    for model_type, classes in types_with_rows().items():
        for name in classes:
            suite.add(f"{model_type} {name}", test_class, model_type, name)
    suite.add("refused", test_refused)
    suite.add("to vLLM", test_vllm)
    suite.add("to Megatron", test_megatron)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
