#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""LoHa and LoKr, added to a base: the same bits as peft's merge_and_unload of
what peft saved, and what LyCORIS' own modules compute in training. Their Tucker
cores and DoRA are refused by name.
"""

import json
import sys
from pathlib import Path

from adapter_test import (blas_sums_in_order, compare, make_base, merge,
                          merged_by_peft, peers, read_model)
from support import Skip, Suite, check, check_equal

CKPT = None  # set by prepare
LYCORIS = Path(sys.prefix) / "lycoris"
MODULES = ["q_proj", "v_proj", "up_proj", "down_proj"]
# How peft makes the two matrices of LoKr: whole, or of two factors.
KINDS = {"loha": ("LoHaConfig", {"r": 4, "alpha": 6}),
         "loha of many ranks":
         ("LoHaConfig", {"r": 4, "alpha": 6, "rank_pattern": {"q_proj": 2},
                         "alpha_pattern": {"up_proj": 3}}),
         "lokr": ("LoKrConfig", {"r": 2, "alpha": 5}),
         "lokr whole": ("LoKrConfig", {"r": 64, "alpha": 48}),
         "lokr of four": ("LoKrConfig", {"r": 1, "alpha": 3,
                                         "decompose_both": True}),
         "lokr of one factor": ("LoKrConfig", {"r": 1, "alpha": 3,
                                               "decompose_factor": 4})}
TINY = ("lokr", "lokr of one factor")


def random_adapter(folder, base, kind, seed=4):
    """Of peft, with random factors."""
    torch, transformers, peft = peers()
    name, options = KINDS[kind]
    torch.manual_seed(seed)
    model = peft.get_peft_model(
        transformers.AutoModelForCausalLM.from_pretrained(
            base, dtype=torch.float32),
        getattr(peft, name)(target_modules=MODULES, **options))
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            if "hada_" in key or "lokr_" in key:
                parameter.copy_(torch.randn(parameter.shape) / 4)
    model.save_pretrained(folder)
    return folder


def test_peft(folder, kind, dtype, size="llama"):
    base = make_base(folder / "base", size, dtype)
    one = random_adapter(folder / "a", base, kind)
    got = merge(base, folder / "out", [one])
    want = merged_by_peft(base, one)
    # Products of tiny matrices are summed in another order (docs/adapters.md).
    if blas_sums_in_order() and kind not in TINY:
        compare(got, want, "peft's")
    old, changed = read_model(base), 0
    for name, tensor in want.items():
        apart = (got[name].float() - tensor.float()).abs().max().item()
        room = 1e-5 if dtype == "float32" else 0.04
        check(apart < room, f"{name}: {apart} apart")
        changed += not (tensor == old[name]).all()
    check_equal(changed, 2 * len(MODULES), "weights that change")
    shown = CKPT.ok("inspect", one).out
    check(("LoHa" if "loha" in kind else "LoKr") in shown, shown)
    check_equal(CKPT.inspect(one)["adapter"]["type"],
                "LOHA" if "loha" in kind else "LOKR", "its type")


def test_two(folder):
    """One after the other, each with its weight."""
    base = make_base(folder / "base", "llama", "float32")
    first = random_adapter(folder / "a", base, "loha")
    second = random_adapter(folder / "b", base, "lokr", seed=9)
    got = merge(base, folder / "out", [first, second],
                "--adapter-weight", "0.5", "--adapter-weight", "1")
    old = read_model(base)
    half = {k: v - old[k] for k, v in merged_by_peft(base, first).items()}
    rest = {k: v - old[k] for k, v in merged_by_peft(base, second).items()}
    for name, tensor in old.items():
        apart = (got[name] - tensor - half[name] / 2 - rest[name]).abs().max()
        check(apart < 1e-5, f"{name}: {apart} apart")


def lycoris():
    if not LYCORIS.is_dir():
        raise Skip("LyCORIS is not installed (scripts/test.sh does it)")
    peers()
    if str(LYCORIS) not in sys.path:
        sys.path.insert(1, str(LYCORIS))
    from lycoris.modules.loha import LohaModule
    from lycoris.modules.lokr import LokrModule
    return {"loha": LohaModule, "lokr": LokrModule}


def unet(folder):
    """A base of diffusers' names, and the modules that it is of."""
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(2)
    nn = torch.nn
    modules = {"conv_in": nn.Conv2d(4, 8, 3),
               "mid_block.attentions.0.proj_in": nn.Conv2d(8, 8, 1),
               "mid_block.attentions.0.to_out.0": nn.Linear(12, 8),
               "mid_block.attentions.0.to_q": nn.Linear(16, 64)}
    folder.mkdir()
    save_file({f"{name}.weight": module.weight.detach()
               for name, module in modules.items()},
              folder / "diffusion_pytorch_model.safetensors")
    (folder / "config.json").write_text(json.dumps(
        {"_class_name": "UNet2DConditionModel"}))
    return modules


def test_lycoris(folder, kind, prefix, options):
    import torch
    from safetensors.torch import save_file

    Module = lycoris()[kind]
    modules = unet(folder / "base")
    state, want = {}, {}
    for i, (name, module) in enumerate(modules.items()):
        flat = prefix + name.replace(".", "_") if prefix.endswith("_") \
            else prefix + name
        made = Module(flat, module, lora_dim=2, alpha=3 + i, **options)
        with torch.no_grad():
            for parameter in made.parameters():
                if parameter.dim() >= 2:
                    parameter.copy_(torch.randn(parameter.shape) / 2)
            made.scalar.fill_(1)
            # What is added in training.
            want[name + ".weight"] = module.weight + made.get_weight(
                module.weight.shape)
        for key, value in made.custom_state_dict().items():
            state[f"{flat}.{key}"] = torch.as_tensor(value).detach().clone() \
                .contiguous()
    save_file(state, folder / "l.safetensors")
    CKPT.ok("convert", folder / "base", folder / "out", "--to", "safetensors",
            "--adapter", folder / "l.safetensors")
    got = read_model(folder / "out")
    for name, tensor in want.items():
        apart = (got[name] - tensor).abs().max().item()
        check(apart < 1e-5, f"{name}: {apart} apart")
    refused = CKPT.run("convert", folder / "l.safetensors", folder / "peft",
                       "--to", "safetensors", "--dialect", "hf")
    check(refused.code == 5 and ("LoHa" in refused.err or "LoKr" in refused.err
                                 or "names" in refused.err), str(refused))


def test_refused(folder):
    import torch
    from safetensors.torch import load_file, save_file

    base = make_base(folder / "base", "llama", "float32")
    one = random_adapter(folder / "a", base, "loha")
    whole = load_file(one / "adapter_model.safetensors")
    stem = "base_model.model.model.layers.0.self_attn.q_proj."
    for words, change in (
            (["Tucker"], {stem + "hada_t1": torch.ones(4, 4, 3, 3)}),
            (["hada_w2_b", "ranks"],
             {stem + "hada_w2_b": torch.ones(3, 64)}),
            (["a factor of LoHa's is missing"], {stem + "hada_w2_b": None}),
            (["64 x 64"], {stem + "hada_w2_b": torch.ones(4, 60),
                           stem + "hada_w1_b": torch.ones(4, 60)}),
            (["LoRA's factors, too"],
             {stem + "lora_magnitude_vector": torch.ones(64)})):
        save_file({k: v for k, v in {**whole, **change}.items()
                   if v is not None}, one / "adapter_model.safetensors")
        run = CKPT.run("convert", base, folder / "no", "--to", "safetensors",
                       "--adapter", one)
        check(run.code in (4, 5), str(run))
        for word in words:
            check(word in run.err, f"not said: {word}\n{run}")
        check(not (folder / "no").exists(), "written all the same")


def prepare(suite, ckpt):
    import adapter_test

    global CKPT
    adapter_test.CKPT = CKPT = ckpt
    peers()
    for kind in KINDS:
        for dtype in ("float32", "bfloat16"):
            suite.add(f"{kind} by peft, {dtype}", test_peft, kind, dtype)
        suite.add(f"{kind} by peft, in several blocks", test_peft, kind,
                  "float32", "large")
    suite.add("one after the other", test_two)
    for kind, options in (("loha", {}), ("lokr", {}),
                          ("lokr", {"decompose_both": True}),
                          ("lokr", {"full_matrix": True}),
                          ("lokr", {"factor": 2})):
        for prefix in ("lycoris_", "lora_unet_", "diffusion_model."):
            suite.add(f"{kind} {options} by LyCORIS, {prefix}", test_lycoris,
                      kind, prefix, options)
    suite.add("refused", test_refused)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
