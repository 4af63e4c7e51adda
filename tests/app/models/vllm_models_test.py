#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models in vLLM's sharded_state, experts among them: against what vLLM 0.33.0
makes of Hugging Face's tensors, and back to them bit for bit.

vLLM needs a GPU's build, so `Rank` says in our own words what its model
classes hold on each rank. One tensor may be in several modules there (the
shared experts are in the block and in the runner of the routed ones); the
loader of sharded states looks for the smallest of its names alone, and refuses
both other names and missing ones.
"""

import json
import os
import re
import shutil
import sys
from pathlib import Path

from support import (
    DATA, Skip, Suite, check, check_equal, compare, from_torch,
    read_safetensors)

CKPT = None  # set by prepare
PEER = Path(sys.prefix) / "transformers_5.12.1"
GOLDENS = ("mixtral_f32", "olmoe_bf16", "qwen2_moe_bf16", "qwen3_moe_bf16",
           "deepseek_v2_bf16", "deepseek_v2_lite_bf16", "deepseek_v3_bf16")
SCALES = ("_k_scale", "_prob_scale", "_q_scale", "_v_scale")
SMALL = dict(vocab_size=120, hidden_size=32, intermediate_size=48,
             num_hidden_layers=2, num_attention_heads=8,
             num_key_value_heads=4, max_position_embeddings=64)
# transformers' names of models, and the settings that make them small.
MODELS = {
    "llama": {}, "mistral": {"head_dim": 4}, "qwen2": {}, "qwen3": {},
    "granite": {},
    "glm4": {"pad_token_id": 0},
    "exaone4": {"sliding_window": 16, "sliding_window_pattern": 4},
    "stablelm": {"use_qkv_bias": True}, "nemotron": {}, "cohere": {},
    "cohere2": {}, "gemma": {"head_dim": 4}, "gemma2": {"head_dim": 4},
    "gemma3_text": {"head_dim": 4},
    "phi3": {"pad_token_id": 0, "num_key_value_heads": 8},
    "phimoe": {"num_local_experts": 4, "attention_bias": True,
               "lm_head_bias": True},
    "glm4_moe": {"n_routed_experts": 8, "moe_intermediate_size": 16,
                 "n_shared_experts": 1, "first_k_dense_replace": 1,
                 "use_qk_norm": True, "num_experts_per_tok": 2,
                 "attention_bias": True},
    "qwen2_moe": {"num_experts": 8, "moe_intermediate_size": 16,
                  "shared_expert_intermediate_size": 32,
                  "num_experts_per_tok": 2},
}
# Models whose runner of experts gets the router.
OWNS_ROUTER = ("qwen3_moe", "deepseek_v2", "deepseek_v3")


class Rank:
    """What a rank holds: the loaders' cuts of Hugging Face's tensors."""

    def __init__(self, tensors, config, tp, rank, ep):
        self.t, self.config, self.tp, self.rank, self.ep = (
            tensors, config, tp, rank, ep)
        self.kind = config["model_type"]
        self.state = {}
        self.taken = set()
        heads = config["num_attention_heads"]
        self.heads = heads
        self.kv_heads = config.get("num_key_value_heads") or heads
        self.vocabulary()
        for prefix in sorted({m[0] for m in (
                re.match(r"model\.layers\.\d+\.", n) for n in tensors) if m}):
            self.attention(prefix + "self_attn.")
            for module in ("mlp", "block_sparse_moe"):
                if f"{prefix}{module}.gate.weight" in tensors:
                    self.experts(f"{prefix}{module}.")
            self.mlp(prefix + "mlp.", [prefix + "mlp."])
        # Norms, and nothing else.
        for name in tensors:
            if name not in self.taken:
                check("norm" in name, f"not cut: {name}")
                self.put([name], self.take(name))

    def take(self, name):
        self.taken.add(name)
        return self.t[name]

    def put(self, names, value):
        self.state[min(names)] = value.contiguous()

    def rows(self, value):
        return value.chunk(self.tp, 0)[self.rank]

    def columns(self, value):
        return value.chunk(self.tp, 1)[self.rank]

    def vocabulary(self):
        import torch

        rows = self.config["vocab_size"]
        embedding, head = "model.embed_tokens.weight", "lm_head.weight"
        gemma = self.kind.startswith(("gemma", "cohere"))
        for name in (embedding, head):
            if name not in self.t:
                continue
            value = self.take(name)
            full = torch.zeros(-(-rows // 64) * 64, *value.shape[1:],
                               dtype=value.dtype)
            full[:rows] = value
            names = [name]
            if head not in self.t and not gemma:
                names.append(head)  # tied: lm_head is the embedding
            self.put(names, self.rows(full))
        if "lm_head.bias" in self.t:
            bias = self.take("lm_head.bias")
            full = torch.zeros(-(-rows // 64) * 64, dtype=bias.dtype)
            full[:rows] = bias
            self.put(["lm_head.bias"], self.rows(full))

    def scales(self, prefix):
        import torch

        for scale in SCALES:
            self.put([prefix + scale], torch.tensor(1.0))

    def attention(self, a):
        if a + "kv_a_proj_with_mqa.weight" in self.t:
            return self.latent(a)
        import torch

        replicas = max(1, self.tp // self.kv_heads)
        parts = max(1, self.tp // replicas)
        for what in ("weight", "bias"):
            if a + "qkv_proj." + what in self.t:  # of phi3
                whole = self.take(a + "qkv_proj." + what)
                head = whole.shape[0] // (self.heads + 2 * self.kv_heads)
                q, k, v = whole.split([self.heads * head]
                                      + [self.kv_heads * head] * 2)
            elif a + "q_proj." + what in self.t:
                q, k, v = (self.take(f"{a}{x}_proj.{what}") for x in "qkv")
            else:
                continue
            mine = [self.rows(q)] + [
                x.chunk(parts)[self.rank // replicas] for x in (k, v)]
            self.put([a + "qkv_proj." + what], torch.cat(mine))
        self.put([a + "o_proj.weight"],
                 self.columns(self.take(a + "o_proj.weight")))
        if a + "o_proj.bias" in self.t:
            self.put([a + "o_proj.bias"], self.take(a + "o_proj.bias"))
        self.scales(a + "attn.")

    def latent(self, a):
        """MLA: the attention's modules are also in a wrapper."""
        import torch

        def put(name, value):
            self.put([a + name, a + "mla_attn." + name], value)

        down = self.take(a + "kv_a_proj_with_mqa.weight")
        if a + "q_a_proj.weight" in self.t:
            put("fused_qkv_a_proj.weight",
                torch.cat([self.take(a + "q_a_proj.weight"), down]))
            put("q_a_layernorm.weight", self.take(a + "q_a_layernorm.weight"))
            put("q_b_proj.weight", self.rows(self.take(a + "q_b_proj.weight")))
        else:
            put("kv_a_proj_with_mqa.weight", down)
            put("q_proj.weight", self.rows(self.take(a + "q_proj.weight")))
        put("kv_a_layernorm.weight", self.take(a + "kv_a_layernorm.weight"))
        put("kv_b_proj.weight", self.rows(self.take(a + "kv_b_proj.weight")))
        put("o_proj.weight", self.columns(self.take(a + "o_proj.weight")))
        self.scales(a + "mla_attn.mla_attn.")

    def mlp(self, m, names):
        import torch

        if m + "down_proj.weight" not in self.t:
            return
        for what in ("weight", "bias"):
            if m + "gate_proj." + what in self.t:
                value = torch.cat([self.rows(self.take(f"{m}{x}_proj.{what}"))
                                   for x in ("gate", "up")])
                self.put([n + "gate_up_proj." + what for n in names], value)
            elif m + "gate_up_proj." + what in self.t:  # of phi3 and glm4
                whole = self.take(m + "gate_up_proj." + what)
                self.put([n + "gate_up_proj." + what for n in names],
                         torch.cat([self.rows(x) for x in whole.chunk(2)]))
            elif m + "up_proj." + what in self.t:
                self.put([n + "up_proj." + what for n in names],
                         self.rows(self.take(m + "up_proj." + what)))
        self.put([n + "down_proj.weight" for n in names],
                 self.columns(self.take(m + "down_proj.weight")))

    def experts(self, m):
        import torch

        gate, up, down = (("w1", "w3", "w2") if "block_sparse" in m else
                          ("gate_proj", "up_proj", "down_proj"))
        count = 0
        while f"{m}experts.{count}.{gate}.weight" in self.t:
            count += 1
        mine = range(count)
        if self.ep:
            size = count // self.tp
            mine = range(self.rank * size, (self.rank + 1) * size)
        rows = (lambda x: x) if self.ep else self.rows
        columns = (lambda x: x) if self.ep else self.columns
        w13, w2 = [], []
        for e in range(count):
            g, u, d = (self.take(f"{m}experts.{e}.{x}.weight")
                       for x in (gate, up, down))
            if e in mine:
                w13.append(torch.cat([rows(g), rows(u)]))
                w2.append(columns(d))
        routed = m + "experts.routed_experts."
        self.put([routed + "w13_weight"], torch.stack(w13))
        self.put([routed + "w2_weight"], torch.stack(w2))
        runner = ([m + "experts.gate."] if self.kind in OWNS_ROUTER else [])
        self.put([x + "weight" for x in [m + "gate."] + runner],
                 self.take(m + "gate.weight"))
        bias = "e_score_correction_bias"
        if m + "gate." + bias in self.t:
            self.put([x + bias for x in [m + "gate.", routed] + runner],
                     self.take(m + "gate." + bias))
        inner = m + "experts._shared_experts._layer."
        for shared in ("shared_expert.", "shared_experts."):
            self.mlp(m + shared, [m + shared, inner])
        if m + "shared_expert_gate.weight" in self.t:
            self.put([m + "shared_expert_gate.weight",
                      m + "shared_expert.expert_gate.weight",
                      inner + "expert_gate.weight"],
                     self.take(m + "shared_expert_gate.weight"))


BLOCK = 2  # rows and columns that share a scale, so that models stay tiny


class Fp8Rank(Rank):
    """The same in fp8 blocks, as vLLM 0.33.0 makes the parameters that its
    loader fills (Fp8LinearMethod, Fp8MoEMethod: create_weights, before the
    kernels' own form): a weight_scale_inv beside each weight, cut and joined as
    the weight is, and an attention's cache scales, -1 where no checkpoint gives
    them (Fp8KVCacheMethod; MLA's attention has none).
    """

    def __init__(self, tensors, config, tp, rank, ep):
        scales = {n.removesuffix("_scale_inv"): t for n, t in tensors.items()
                  if n.endswith("_scale_inv")}
        others = {n: t for n, t in tensors.items()
                  if not n.endswith("_scale_inv")}
        super().__init__(others, config, tp, rank, ep)
        # Scales are cut like a model with these sizes divided by the block.
        small = {n: scales.get(n, t) for n, t in others.items()}
        whole = self.state
        super().__init__(small, config, tp, rank, ep)
        for name, value in self.state.items():
            if whole[name].element_size() == 1:
                whole[name + "_scale_inv"] = value
        self.state = whole

    def scales(self, prefix):
        import torch

        super().scales(prefix)
        if "mla_attn" not in prefix:
            for scale in ("k_scale", "v_scale", "q_scale", "prob_scale"):
                self.put([prefix + scale], torch.tensor(-1.0))


def in_fp8(folder):
    """Turns a model's linear layers into fp8 codes and block scales."""
    import torch
    from safetensors.torch import save_file

    from quantized_peer import fp8_block

    generator = torch.Generator().manual_seed(3)
    tensors = {}
    for name, value in read_hf(folder).items():
        plain = value.dim() != 2 or ".gate." in name or not (
            "_proj" in name or ".experts." in name)
        if plain:
            tensors[name] = value
            continue
        parts, _, _, config = fp8_block(generator, *value.shape,
                                        block=(BLOCK, BLOCK))
        for end, part in parts.items():
            tensors[name.removesuffix("weight") + end] = part
    for path in folder.glob("*.safetensors"):
        path.unlink()
    for path in folder.glob("*.index.json"):
        path.unlink()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    path = folder / "config.json"
    said = json.loads(path.read_text()) | {"quantization_config": config}
    path.write_text(json.dumps(said))
    return folder


def quantized(folder, kind):
    hf = folder / "hf"
    if kind in GOLDENS:
        shutil.copytree(DATA / "hf" / kind / "ckpt", hf)
    else:
        make(hf, kind)
    in_fp8(hf)
    ranks = [(1, False), (2, False)]
    if kind in GOLDENS:
        ranks.append((2, True))
    round_trip(folder, hf, ranks, Fp8Rank)
    # Of 2 rows each: a block would be cut.
    run = CKPT.run("convert", hf, folder / "no", "--to", "vllm", "--tp", 16)
    run.want(5)
    CKPT.ok("convert", hf, folder / "bf16", "-q", "--to", "vllm", "--tp", 2,
            "--dtype", "bf16")
    config = json.loads((hf / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "gptq", "bits": 4}
    (hf / "config.json").write_text(json.dumps(config))
    run = CKPT.run("convert", hf, folder / "no", "--to", "vllm").want(5)
    check("kernels" in run.err, run.err)


def read_hf(folder):
    import torch

    kinds = {"f32": torch.float32, "bf16": torch.bfloat16,
             "f16": torch.float16, "f8_e4m3": torch.float8_e4m3fn}
    return {name: torch.frombuffer(bytearray(t.data), dtype=kinds[
                t.dtype]).reshape(t.shape)
            for path in sorted(Path(folder).glob("*.safetensors"))
            for name, t in read_safetensors(path).items()}


def make(folder, kind):
    """A random model by transformers."""
    if not PEER.is_dir():
        raise Skip("transformers is not installed (scripts/test.sh does it)")
    os.environ["HF_HUB_OFFLINE"] = "1"
    if str(PEER) not in sys.path:
        sys.path.insert(0, str(PEER))
    import torch
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    torch.manual_seed(7)
    config = transformers.AutoConfig.for_model(kind, **{**SMALL,
                                                        **MODELS[kind]})
    model = transformers.AutoModelForCausalLM.from_config(config)
    with torch.no_grad():
        for value in model.state_dict().values():
            if value.is_floating_point():
                value.normal_()
    model.to(torch.bfloat16).save_pretrained(folder)
    return folder


def check_ranks(folder, tensors, config, tp, ep, kind=Rank):
    for rank in range(tp):
        want = kind(tensors, config, tp, rank, ep).state
        got = {}
        for path in sorted(folder.glob(f"model-rank-{rank}-part-*")):
            got.update(read_safetensors(path))
        check_equal(sorted(got), sorted(want), f"rank {rank}: names")
        compare(got, {k: from_torch(v) for k, v in want.items()},
                f"rank {rank}")
    check(not list(folder.glob(f"model-rank-{tp}-*")), "another rank")


def round_trip(folder, hf, ranks, kind=Rank):
    """Each (tp, whole experts on each rank) in turn, and back."""
    tensors = read_hf(hf)
    config = json.loads((hf / "config.json").read_text())
    config.setdefault("num_key_value_heads", config["num_attention_heads"])
    source = hf
    mtp = [f"model.layers.{config['num_hidden_layers']}."]
    tensors = {n: t for n, t in tensors.items()
               if not n.startswith(tuple(mtp)) and "inv_freq" not in n}
    for step, (tp, ep) in enumerate(ranks):
        out = folder / f"out{step}"
        CKPT.ok("convert", source, out, "-q", "--to", "vllm", "--tp", tp,
                "--ep", tp if ep else 1)
        check_ranks(out, tensors, config, tp, ep, kind)
        source = out
    CKPT.ok("verify", source, "--deep")
    back = folder / "back"
    CKPT.ok("convert", source, back, "-q", "--to", "safetensors")
    got = read_hf(back)
    if config.get("tie_word_embeddings") or "lm_head.weight" not in got:
        tensors.pop("lm_head.weight", None)
    compare({k: from_torch(v) for k, v in got.items()},
            {k: from_torch(v) for k, v in tensors.items()}, "back")


def golden(folder, case):
    heads = json.loads((DATA / "hf" / case / "ckpt/config.json").read_text())[
        "num_attention_heads"]
    most = 4 if heads % 4 == 0 else 2
    round_trip(folder, DATA / "hf" / case / "ckpt",
               [(1, False), (2, False), (2, True), (most, False)])


def made(folder, kind):
    round_trip(folder, make(folder / "hf", kind),
               [(2, False), (4, False), (1, False)])


def old_names(folder):
    """The experts' names of vLLM 0.11: read, and split all the same."""
    from safetensors.torch import save_file

    hf = DATA / "hf/qwen3_moe_bf16/ckpt"
    tensors = read_hf(hf)
    config = json.loads((hf / "config.json").read_text())
    source = folder / "old"
    source.mkdir()
    (source / "config.json").write_text(json.dumps(config))
    for rank in range(2):
        state = {k.replace("experts.routed_experts.", "experts.").replace(
            "experts.gate.", "gate."): v for k, v in Rank(
                tensors, config, 2, rank, False).state.items()}
        save_file(state, source / f"model-rank-{rank}-part-0.safetensors")
    CKPT.ok("convert", source, folder / "back", "-q", "--to", "safetensors")
    compare({k: from_torch(v) for k, v in read_hf(folder / "back").items()},
            {k: from_torch(v) for k, v in tensors.items()}, "back")


def refusals(folder):
    def refused(source, code, word, *options):
        run = CKPT.run("convert", source, folder / "no", "--to", "vllm",
                       *options)
        run.want(code)
        check(word in run.err, f"not said: {word}\n{run}")
        check(not (folder / "no").exists(), "something was written")

    moe = DATA / "hf/qwen3_moe_bf16/ckpt"
    refused(moe, 5, "keeps all experts", "--exclude", "*.experts.1.*")
    refused(moe, 2, "--ep 4 with --tp 2", "--tp", 2, "--ep", 4)
    refused(DATA / "hf/deepseek_v3_mtp_bf16/ckpt", 5, "--exclude",
            "--tp", 2)
    refused(DATA / "hf/deepseek_v3_bf16/ckpt", 5, "heads", "--tp", 16)
    # A base model has no "model." before its names, vLLM's models always.
    rules = folder / "rules.json"
    rules.write_text(json.dumps({"model.*": "*"}))
    refused(moe, 5, "a base model's names get it by --rename", "--rename", rules)


def counted(folder):
    """Counts the transformers models that go there and back."""
    kinds = {json.loads((DATA / "hf" / g / "ckpt/config.json").read_text())[
        "model_type"] for g in GOLDENS} | set(MODELS)
    print(f"{len(kinds)} model types to vLLM's sharded_state and back: "
          + ", ".join(sorted(kinds)))
    check(len(kinds) >= 23, f"{len(kinds)} model types")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for case in GOLDENS:
        suite.add(f"golden {case}", golden, case)
    for kind in MODELS:
        suite.add(f"made {kind}", made, kind)
    for kind in ("qwen3_moe_bf16", "deepseek_v3_bf16", "mixtral_f32", "qwen3",
                 "glm4_moe"):
        suite.add(f"fp8 {kind}", quantized, kind)
    suite.add("old names", old_names)
    suite.add("refusals", refusals)
    suite.add("counted", counted)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
