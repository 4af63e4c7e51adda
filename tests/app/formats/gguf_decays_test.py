#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Decays of state-space layers, which transformers keep as log(-a) and GGUF as
a: out, as torch computes them, and home; from ranks; what can't be said.
"""

import json
import struct
import sys
from pathlib import Path

import gguf_test
import torch
from gguf_test import HOMES, SECTIONS, check_decays, check_same, tensors, tiny
from support import DATA, ROOT, Skip, Suite, check, check_equal

CKPT = None  # set by prepare


def decaying(folder, dtype):
    """A Qwen 3.5 whose A_log has numbers of all sizes that come home."""
    model = tiny("qwen3_5_text", linear_num_value_heads=512,
                 linear_key_head_dim=2, linear_value_head_dim=1).to(dtype)
    torch.manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("A_log"):
                parameter.copy_(torch.randn(512).sign()
                                * 2 ** (torch.rand(512) * 19.8 - 13.9))
            # Megatron has one less, which is no rounding where it is near 1.
            if name.endswith("linear_attn.norm.weight"):
                parameter.fill_(1.25)
    model.save_pretrained(folder)
    return tensors(folder)


def test_decays(folder):
    """A_log of 16 bits is torch's -exp(x) to the last bit, and comes home bit
    for bit; what is cut over ranks, too."""
    before = decaying(folder / "in", torch.bfloat16)
    said = CKPT.ok("convert", folder / "in", folder / "m.gguf")
    check("-exp(x)" not in said.err, said.err)
    got = gguf_test.contents(folder / "m.gguf")[0]
    for layer in range(3):
        x = before[f"model.layers.{layer}.linear_attn.A_log"].float()
        want = -torch.exp(x.reshape(4, 128).T.reshape(-1))
        check_decays(("F32", (512,), want.numpy().tobytes()),
                     got[f"blk.{layer}.ssm_a"], f"layer {layer}")
    said = CKPT.ok("convert", folder / "m.gguf", folder / "out", "--to",
                   "safetensors")
    check("-exp(x)" not in said.err, said.err)
    check_same(before, tensors(folder / "out"))
    CKPT.ok("convert", folder / "in", folder / "ranks", "--to",
            "megatron_torch_dist", "--tp", 2)
    CKPT.ok("convert", folder / "ranks", folder / "r.gguf", "--tokenizer-from",
            "none", "--config-from", folder / "in")
    check_equal(gguf_test.contents(folder / "r.gguf")[0], got, "from ranks")


def test_wide_decays(folder):
    """A_log of f32 comes home within rounding, and that is said."""
    before = decaying(folder / "in", torch.float32)
    for source, target in (("in", "m.gguf"), ("m.gguf", "out")):
        said = CKPT.ok("convert", folder / source, folder / target, "-vv",
                       *(("--to", "safetensors") if target == "out" else ()))
        check("3 decays are stored as -exp(x)" in said.err
              and "rounded to f32" in said.err, said.err)
    CKPT.ok("verify", folder / "in", folder / "m.gguf")
    after = tensors(folder / "out")
    for layer in range(3):
        name = f"model.layers.{layer}.linear_attn.A_log"
        far = (before[name] - after[name]).abs()
        check((far <= 2**-22 * (1 + before[name].abs())).all(),
              f"{name} is {far.max()} from what it was")


def test_decays_refused(folder):
    """Decays that are no -exp(x), and what qwen3next and qwen35 don't say."""
    import gguf
    from safetensors.torch import save_file

    before = decaying(folder / "in", torch.bfloat16)
    CKPT.ok("convert", folder / "in", folder / "m.gguf")
    [at] = [t.data_offset for t in gguf.GGUFReader(folder / "m.gguf").tensors
            if t.name == "blk.1.ssm_a"]
    for number in (0.0, 0.5, float("nan")):
        data = bytearray((folder / "m.gguf").read_bytes())
        data[at + 8:at + 12] = struct.pack("<f", number)
        (folder / "x.gguf").write_bytes(data)
        result = CKPT.run("convert", folder / "x.gguf", folder / "x", "--to",
                          "safetensors")
        check(result.code != 0 and "layers.1.linear_attn.A_log" in result.err
              and "below 0" in result.err, str(result))
        check(not (folder / "x").exists(), "nothing is written")
    for name, change, word in (
            ("qwen3_5_text", {"rope_parameters": {
                **SECTIONS["rope_parameters"], "mrope_section": None}},
             "rope_sections"),
            ("qwen3_next", {"norm_topk_prob": False}, "router_normalized"),
            ("qwen3_next", {"mlp_only_layers": [1]}, "moe_layers"),
            ("qwen3_next", {"attention_bias": True}, "k_proj.bias")):
        tiny(name, **change).save_pretrained(folder / word)
        result = CKPT.run("convert", folder / word, folder / "y.gguf")
        check(result.code == 5 and word in result.err, str(result))
        check(not (folder / "y.gguf").exists(), "nothing is written")
    # What predicts a further token has no place.
    save_file({**before, "mtp.fc.weight": torch.ones(32, 64)},
              folder / "in/model.safetensors", {"format": "pt"})
    result = CKPT.run("convert", folder / "in", folder / "y.gguf")
    check(result.code == 5 and "mtp.fc.weight" in result.err, str(result))
    CKPT.ok("convert", folder / "in", folder / "y.gguf", "--drop", "mtp.*")
    check_equal(gguf_test.contents(folder / "y.gguf"), gguf_test.contents(folder / "m.gguf"),
                "without further tokens")


def test_moments(folder):
    """What Adam counted of x says nothing about -exp(x)."""
    family = json.loads((ROOT / "models/families/qwen2.json").read_text())
    [rule] = [rule for rule in family["dialects"]["mcore"]["rules"]
              if rule["to"] == "decoder.final_layernorm.weight"]
    rule["op"] = "decay"
    (folder / "family.json").write_text(json.dumps(family))
    step = DATA / "runs/hf_trainer_qwen2/ckpt/checkpoint-10"
    words = ("--to", "megatron_torch_dist", "--family-file",
             folder / "family.json")
    result = CKPT.run("convert", step, folder / "x", *words)
    check(result.code == 5 and "decoder.final_layernorm.weight" in result.err
          and "moments" in result.err, str(result))
    check(not (folder / "x").exists(), "nothing is written")
    CKPT.ok("convert", step, folder / "x", *words, "--model-only")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    sys.path[1:1] = [str(home) for home in HOMES]
    sys.path.insert(1, str(Path(__file__).resolve().parents[1] / "models"))
    try:
        import gguf  # noqa: F401
        import transformers  # noqa: F401
    except ImportError as error:
        raise Skip(str(error)) from error
    suite.add("decays of 16 bits", test_decays)
    suite.add("decays of f32", test_wide_decays)
    suite.add("refused", test_decays_refused)
    suite.add("moments", test_moments)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
