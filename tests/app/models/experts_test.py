#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""--experts: the model of the kept experts, as torch cuts it.

A tiny mixture from transformers is cut in torch: each parameter whose shape
differs in the smaller model keeps only the kept experts' rows of that
dimension. What ckpt makes from the saved model is that model, bit for bit, from
Hugging Face's names and from Megatron's, and transformers computes the same
with it.
"""

import json
import os
import sys

from support import (DATA, Suite, check, check_equal, compare,
                     read_safetensors)
from tiny_peer import config_of, models_of, tensors_of

sys.path.insert(0, os.path.join(sys.prefix, "transformers_5.12.1"))
CKPT = None  # set by prepare
KEPT = [1, 2, 5]
LIST = "1-2,5"
MANY = 7  # no other dimension has this size
BASE = dict(vocab_size=64, hidden_size=32, intermediate_size=48,
            num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
            max_position_embeddings=64, bos_token_id=1, eos_token_id=2,
            pad_token_id=0, head_dim=8)
MLA = dict(q_lora_rank=12, kv_lora_rank=8, qk_nope_head_dim=8,
           qk_rope_head_dim=4, v_head_dim=6, head_dim=4)
ROUTED = dict(num_experts_per_tok=2, moe_intermediate_size=8,
              n_shared_experts=1, n_group=1, topk_group=1)
# model type: (key of its number of experts, what else it has)
TYPES = {
    "mixtral": ("num_local_experts", {}),
    "qwen3_moe": ("num_experts", dict(moe_intermediate_size=8,
                                      num_experts_per_tok=2)),
    "qwen2_moe": ("num_experts", dict(moe_intermediate_size=8,
                                      num_experts_per_tok=2)),
    "deepseek_v3": ("n_routed_experts", dict(
        MLA, **ROUTED, first_k_dense_replace=1, num_key_value_heads=4)),
    "glm4_moe": ("n_routed_experts", dict(ROUTED, first_k_dense_replace=1)),
    "gpt_oss": ("num_local_experts", dict(num_experts_per_tok=2,
                                          sliding_window=4)),
    "llama4_text": ("num_local_experts", dict(
        num_experts_per_tok=1, interleave_moe_layer_step=2,
        intermediate_size_mlp=40, num_hidden_layers=4)),
    "granitemoe": ("num_local_experts", dict(num_experts_per_tok=2)),
    "minimax_m2": ("num_local_experts", dict(num_experts_per_tok=2)),
    "ernie4_5_moe": ("moe_num_experts", dict(
        moe_k=2, moe_intermediate_size=8, moe_num_shared_experts=1,
        moe_layer_start_index=1)),
}
VLLM = ("mixtral", "qwen2_moe", "qwen3_moe", "glm4_moe", "deepseek_v3")
MEGATRON = sorted(set(TYPES) - {"llama4_text"})


def models():
    return models_of("families2026_models")


def kept_rows(tensor, shape):
    import torch

    for dim, (have, want) in enumerate(zip(tensor.shape, shape)):
        if have != want:
            tensor = tensor.index_select(dim, torch.tensor(KEPT))
    check_equal(tuple(tensor.shape), tuple(shape), "shape")
    return tensor


def save_pair(folder, model_type):
    """The model, and the one with the kept experts as torch cuts it."""
    from transformers import AutoConfig

    tiny = models()
    key, own = TYPES[model_type]
    both = [AutoConfig.for_model(model_type, **{**BASE, **own, key: count})
            for count in (MANY, len(KEPT))]
    big, small = (tiny.model_of(config) for config in both)
    have = big.state_dict()
    small.load_state_dict({
        name: kept_rows(have[name], value.shape)
        for name, value in small.state_dict().items()})
    big.save_pretrained(folder / "big")
    small.save_pretrained(folder / "small")
    return tiny, small


def check_model(directory, folder, what):
    compare(tensors_of(directory), tensors_of(folder / "small"), what)
    check_equal(config_of(directory), config_of(folder / "small"),
                f"{what}: config.json")


def from_hf(folder, model_type):
    tiny, small = save_pair(folder, model_type)
    out = folder / "out"
    CKPT.ok("convert", folder / "big", out, "--to", "safetensors",
            "--experts", LIST, "--no-fsync", "--verify")
    check_model(out, folder, "from hf")
    import torch

    loaded = type(small).from_pretrained(out, dtype=torch.float32)
    check(torch.equal(tiny.logits_of(loaded), tiny.logits_of(small)),
          "logits differ")
    dry = CKPT.ok("convert", folder / "big", folder / "never", "--to",
                  "safetensors", "--experts", LIST, "-n", "-v")
    check("3 of 7 experts kept" in dry.out + dry.err, str(dry))
    check(not (folder / "never").exists(), "a dry run wrote")


# What no Megatron argument says, but custom code would know.
UNSAID = {"ernie4_5_moe": ["--allow-unsaid", "expert_bias"]}


def through_megatron(folder, model_type):
    save_pair(folder, model_type)
    big, small = folder / "big", folder / "small"
    for name, source, more in (("all", big, []),
                               ("few", big, ["--experts", LIST])):
        CKPT.ok("convert", source, folder / name, "--to",
                "megatron_torch_dist", "--tp", 2, "--no-fsync", "-q", *more,
                *UNSAID.get(model_type, []))
    CKPT.ok("reshard", folder / "all", folder / "cut", "--pp", 1, "--tp", 1,
            "--experts", LIST, "--no-fsync", "-q")
    CKPT.ok("verify", folder / "cut", folder / "few")
    CKPT.ok("verify", folder / "cut", small)
    CKPT.ok("convert", folder / "all", folder / "legacy", "--to",
            "megatron_legacy", "--experts", LIST, "--no-fsync", "-q")
    CKPT.ok("verify", folder / "legacy", small)
    for name in ("few", "cut"):
        CKPT.ok("convert", folder / name, folder / f"{name}_hf", "--to",
                "safetensors", "--no-fsync", "-q")
        check_model(folder / f"{name}_hf", folder, name)
    for path in list((folder / "cut").rglob("*config.json")):
        path.unlink()
    CKPT.ok("convert", folder / "cut", folder / "args", "--to", "safetensors",
            "--no-fsync", "-q")
    check_equal(config_of(folder / "args")[TYPES[model_type][0]], len(KEPT),
                "by the args alone")


def other_containers(folder, model_type):
    """torch, DCP and vLLM: renumbered there, too."""
    import torch

    save_pair(folder, model_type)
    big, want = folder / "big", tensors_of(folder / "small")
    CKPT.ok("convert", big, folder / "all.pt", "--no-fsync", "-q")
    CKPT.ok("convert", folder / "all.pt", folder / "few.pt", "--experts", LIST,
            "--no-fsync", "-q")
    state = torch.load(folder / "few.pt", weights_only=True)
    check_equal(sorted(state), sorted(want), "names")
    CKPT.ok("convert", folder / "few.pt", folder / "few.safetensors", "-q")
    compare(read_safetensors(folder / "few.safetensors"), want, "torch")
    CKPT.ok("convert", big, folder / "dcp", "--to", "dcp", "-q", "--no-fsync")
    CKPT.ok("unshard", folder / "dcp", folder / "dcp_few", "--experts", LIST,
            "--no-fsync", "-q")
    CKPT.ok("verify", folder / "dcp_few", folder / "small")
    if model_type not in VLLM:
        return
    CKPT.ok("convert", big, folder / "vllm", "--to", "vllm", "--tp", 2, "-q",
            "--no-fsync")
    CKPT.ok("convert", folder / "vllm", folder / "vllm_few", "--to",
            "safetensors", "--experts", LIST, "--no-fsync", "-q")
    compare(tensors_of(folder / "vllm_few"), want, "vllm")


def golden_optimizer(folder, case):
    """What Megatron wrote: model and optimizer state, row by row."""
    import torch

    golden = DATA / "megatron_torch_dist" / case
    CKPT.ok("reshard", golden / "ckpt", folder / "out", "--experts", "0,3",
            "--no-fsync", "-q")
    CKPT.ok("unshard", folder / "out", folder / "o.safetensors", "--optim-only",
            "-q")
    CKPT.ok("unshard", folder / "out", folder / "m.safetensors", "--model-only",
            "-q")
    from safetensors.torch import load_file

    seen = 0
    for ours, theirs in (("m", "expected"), ("o", "expected_optim")):
        got = load_file(folder / f"{ours}.safetensors")
        want = load_file(golden / f"{theirs}.safetensors")
        for name, value in want.items():
            if ".mlp.experts." in name or ".mlp.router." in name:
                value = value[:, [0, 3]]
                seen += 1
            if name in got:
                check(torch.equal(got[name], value), f"{name} differs")
        check_equal(sorted(got), sorted(want), ours)
    check_equal(seen, 12, "cut tensors")


def refused(folder):
    """Invalid lists, and lists that would leave an invalid model."""
    save_pair(folder, "mixtral")
    big = folder / "big"

    def said(code, *args):
        run = CKPT.run("convert", big, folder / "no", "--to", "safetensors",
                       *args).want(code)
        check(not (folder / "no").exists(), "something was written")
        return run.err

    for bad in ("", "a", "1,", "3-1", "1,1", "0-3,2", "-1", "1.5",
                "99999999999999999999"):
        said(2, f"--experts={bad}")
    check("there is no expert 7; the source has 7, 0 to 6"
          in said(2, "--experts", "7"), "out of range")
    check("keeps 1, the router picks 2" in said(5, "--experts", "0"), "picks")
    without(big, "num_experts_per_tok")  # 2 in transformers' class
    check("keeps 1, the router picks 2" in said(5, "--experts", "0"), "default")
    dense = DATA / "safetensors"
    first = sorted(dense.iterdir())[0]
    run = CKPT.run("convert", first, folder / "no", "--to", "safetensors",
                   "--experts", "0")
    check(run.code in (3, 5), str(run))


def without(folder, *keys):
    path = folder / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(
        {key: value for key, value in config.items() if key not in keys}))


def groups_by_default(folder):
    """config.json does not say the groups: the class has 8, and picks 4."""
    from transformers import AutoConfig

    tiny = models()
    key, own = TYPES["deepseek_v3"]
    config = AutoConfig.for_model("deepseek_v3", **{
        **BASE, **own, key: 24, "n_group": 8, "topk_group": 4})
    tiny.model_of(config).save_pretrained(folder / "big")
    without(folder / "big", "n_group", "topk_group")
    for kept, code in (("0-15", 0), ("0-14", 5), ("0-7", 5)):
        run = CKPT.run("convert", folder / "big", folder / f"o{kept}", "--to",
                       "safetensors", "--experts", kept, "-q", "--no-fsync")
        run.want(code)
        if code:
            check("8 groups" in run.err, run.err)


def groups(folder):
    """DeepSeek's groups must divide the kept experts."""
    from transformers import AutoConfig

    tiny = models()
    key, own = TYPES["deepseek_v3"]
    config = AutoConfig.for_model("deepseek_v3", **{
        **BASE, **own, key: 8, "n_group": 2, "topk_group": 1})
    tiny.model_of(config).save_pretrained(folder / "big")
    for kept, code in (("0-3", 0), ("0-2", 5), ("0-1", 5), ("0-5", 0)):
        run = CKPT.run("convert", folder / "big", folder / f"o{kept}", "--to",
                       "safetensors", "--experts", kept, "-q", "--no-fsync")
        run.want(code)
        if code:
            check("2 groups" in run.err, run.err)


def ranks(folder):
    """Kept experts divide evenly among expert-parallel ranks, or it is
    refused."""
    save_pair(folder, "qwen3_moe")
    for name, ep, code in (("three", 3, 0), ("one", 1, 0), ("two", 2, 5)):
        CKPT.run("convert", folder / "big", folder / name, "--to",
                 "megatron_legacy", "--tp", 2, "--ep", ep, "--experts", LIST,
                 "--no-fsync", "-q").want(code)
        if code == 0:
            CKPT.ok("verify", folder / name, folder / "small")
    check(not (folder / "two").exists(), "something was written")
    CKPT.ok("reshard", folder / "three", folder / "again", "--ep", 1,
            "--experts", "0-1", "--no-fsync", "-q")
    CKPT.run("reshard", folder / "three", folder / "no", "--ep", 3,
             "--experts", "0-1", "--no-fsync", "-q").want(5)


def resume(folder):
    """A run begun with another list is not resumed."""
    save_pair(folder, "qwen3_moe")
    args = ["convert", folder / "big", folder / "out", "--to", "safetensors",
            "--no-fsync", "-q"]
    CKPT.ok(*args, "--experts", LIST)
    check(CKPT.run(*args, "--experts", LIST).code != 0, "written over")
    CKPT.ok(*args, "--experts", LIST, "--overwrite", "--resume")
    check_model(folder / "out", folder, "again")
    CKPT.ok("verify", folder / "out", "--deep")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for model_type in TYPES:
        suite.add(model_type, from_hf, model_type)
        suite.add(f"{model_type} by other containers", other_containers,
                  model_type)
    for model_type in MEGATRON:
        suite.add(f"{model_type} by Megatron", through_megatron, model_type)
    suite.add("Megatron's own, with its optimizer", golden_optimizer,
              "moe_optim_buckets_ep2_pp2_v0161")
    suite.add("refused", refused)
    suite.add("groups of experts", groups)
    suite.add("groups of the class", groups_by_default)
    suite.add("expert-parallel ranks", ranks)
    suite.add("again", resume)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
