# SPDX-License-Identifier: Apache-2.0
"""Adapters by the C interface: what peft made, against peft's own merge; cases
of python_test.py."""

import pickle

import ckpt
import torch
from adapter_test import (blas_sums_in_order, make_adapter, make_base,
                          merged_by_peft, peers)
from safetensors.torch import load_file, save_file

from python_values import refused
from support import check, check_equal

TARGETS = ["q_proj", "v_proj", "down_proj"]


def made(folder, seed=3, **options):
    base = folder / "base"
    if not base.exists():
        make_base(base, "llama", "bfloat16")
    return base, make_adapter(folder / f"a{seed}", base, seed=seed,
                              target_modules=TARGETS, r=4, lora_alpha=6,
                              **options)


def same(checkpoint, want):
    check_equal(sorted(checkpoint), sorted(want), "names")
    for name, tensor in want.items():
        got = checkpoint[name].read().torch()
        apart = (got.float() - tensor.float()).abs().max().item()
        check(torch.equal(got, tensor) if blas_sums_in_order()
              else apart < 0.02, f"{name}: {apart} apart")


def adapters_described(folder):
    peers()
    base, one = made(folder)
    with ckpt.open(base) as c:
        check(c.adapter is None and not c.has_adapter_inside, "a base")
        refused(None, ckpt.errors.MissingError, c.with_adapters, base)
    with ckpt.open(one) as c:
        said = c.adapter
        check_equal((said.kind, said.names, said.rank, said.alpha,
                     sorted(said.targets), said.dora),
                    ("LORA", "peft", 4, 6.0, sorted(TARGETS), False), "it")
        check_equal(sorted(c.as_peft()),
                    sorted(load_file(one / "adapter_model.safetensors")),
                    "PEFT's names")


def adapters_added(folder):
    peers()
    base, one = made(folder)
    with ckpt.open(base) as c:
        summed = c.with_adapters(one)
        same(summed, merged_by_peft(base, one))
        # A part of it, a copy of it, and one that is added to a sum.
        part = summed.select(keys=["*.layers.0.*"])
        check(all(".layers.0." in name for name in part) and part, "a part")
        whole = merged_by_peft(base, one)
        name = "model.layers.1.mlp.down_proj.weight"
        check(torch.equal(summed[name][3:9, 5:].torch(),
                          summed[name].read().torch()[3:9, 5:]), "a box")
        again = pickle.loads(pickle.dumps(summed))
        same(again, whole)
        c.close()
        same(summed, whole)  # it holds what it is made from
        other = made(folder, seed=8)[1]
        both = summed.with_adapters(other, weights=[0.5])
        summed.close()
        with ckpt.open(base) as plain:
            same(plain.with_adapters(one, other, weights=[1, 0.5]),
                 {name: both[name].read().torch() for name in both})
            refused(None, ckpt.errors.UsageError, plain.with_adapters, one,
                    weights=[1, 2])
            refused(None, ckpt.errors.MissingError, plain.with_adapters)


def adapters_inside(folder):
    """A live model's state dict: alpha is in no file."""
    _, _, peft = peers()
    base, one = made(folder)
    import transformers

    model = peft.PeftModel.from_pretrained(
        transformers.AutoModelForCausalLM.from_pretrained(
            base, dtype=torch.bfloat16), one)
    live = folder / "live"
    live.mkdir()
    save_file({name: tensor.clone() for name, tensor in
               model.state_dict().items()}, live / "model.safetensors")
    (live / "config.json").write_text((base / "config.json").read_text())
    with ckpt.open(live) as c:
        check(c.has_adapter_inside, "it is inside")
        refused(None, ckpt.errors.UnfaithfulError, c.with_adapters)
        found = c.with_adapters(alpha=6)
        want = {"base_model.model." + k: v
                for k, v in merged_by_peft(base, one).items()}
        got = {k if k.startswith("base_model.") else "base_model.model." + k: k
               for k in found}
        check_equal(sorted(got), sorted(want), "names")
        for name, tensor in want.items():
            apart = (found[got[name]].read().torch().float()
                     - tensor.float()).abs().max().item()
            check(apart < 0.02, f"{name}: {apart} apart")


CASES = [adapters_described, adapters_added, adapters_inside]
