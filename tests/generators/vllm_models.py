#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes tests/data/vllm/models: what vLLM's model classes hold of tiny models.

Needs transformers, and vLLM's package with what it imports; its CUDA code is
not run (VLLM_TARGET_DEVICE=cpu), so an accelerator's wheel serves on any
machine. Every rank is a process that builds its model and loads the Hugging
Face directory with vLLM's own loader; what it holds then, filtered as the
loader of sharded states does, is told by dtype, shape and SHA-256.

    python vllm_models.py OUT 4,2e gpt_oss llama4_text
"""

import glob
import hashlib
import json
import os
import sys
import tempfile
import traceback
from pathlib import Path

os.environ.update(VLLM_TARGET_DEVICE="cpu", HF_HUB_OFFLINE="1",
                  VLLM_LOGGING_LEVEL="ERROR", VLLM_NO_USAGE_STATS="1")
sys.path.insert(0, str(Path(__file__).parents[1] / "app"))

SMALL = dict(vocab_size=120, hidden_size=64, intermediate_size=96,
             num_hidden_layers=2, num_attention_heads=8,
             num_key_value_heads=2, max_position_embeddings=64,
             pad_token_id=0, bos_token_id=1, eos_token_id=2)
ROUTED = {"moe_intermediate_size": 32, "num_experts_per_tok": 2}
LATENT = {"q_lora_rank": 16, "kv_lora_rank": 16, "qk_rope_head_dim": 8,
          "qk_nope_head_dim": 16, "v_head_dim": 16}
MODELS = {
    "gpt_oss": {"num_local_experts": 4, "head_dim": 8,
                "num_experts_per_tok": 2,
                "layer_types": ["sliding_attention", "full_attention"]},
    "llama4_text": {"num_local_experts": 4, "head_dim": 8,
                    "no_rope_layers": [1, 0], "intermediate_size_mlp": 96,
                    "interleave_moe_layer_step": 2, "intermediate_size": 32,
                    "moe_layers": None},
    "minimax_m2": {"num_local_experts": 4, "head_dim": 8,
                   "num_experts_per_tok": 2},
    "granitemoe": {"num_local_experts": 4},
    "granitemoeshared": {"num_local_experts": 4,
                         "shared_intermediate_size": 32},
    "ernie4_5": {"head_dim": 8},
    "ernie4_5_moe": {"moe_num_experts": 4, "moe_intermediate_size": 32,
                     "moe_k": 2, "moe_num_shared_experts": 1,
                     "moe_layer_start_index": 1},
    "ministral3": {"head_dim": 8},
    "glm4_moe_lite": {"n_routed_experts": 4, "n_shared_experts": 1,
                      "n_group": 1, "topk_group": 1,
                      "mlp_layer_types": ["dense", "sparse"],
                      **ROUTED, **LATENT},
    "exaone_moe": {"num_experts": 4, "num_shared_experts": 1, "head_dim": 8,
                   "n_group": 1, "topk_group": 1, **ROUTED},
    "apertus": {},
    "opt": {"ffn_dim": 96, "word_embed_proj_dim": 64},
}
# What the class of vLLM asks of config.json, and transformers does not write.
MORE = {"minimax_m2": {"rotary_dim": 4, "scoring_func": "sigmoid",
                       "use_routing_bias": True}}


def make(folder, kind):
    """Names, shapes and configuration by transformers, values by name."""
    import torch
    import transformers
    from safetensors.torch import load_file, save_file
    from vllm_peer_test import filled

    config = transformers.AutoConfig.for_model(kind, **{**SMALL,
                                                        **MODELS[kind]})
    model = transformers.AutoModelForCausalLM.from_config(config)
    model.to(torch.bfloat16).save_pretrained(folder)
    path = f"{folder}/config.json"
    config = {**json.loads(Path(path).read_text()), **MORE.get(kind, {})}
    Path(path).write_text(json.dumps(config))
    names = {torch.bfloat16: "bf16", torch.float32: "f32"}
    shapes = {n: (names[t.dtype], list(t.shape)) for n, t in load_file(
        f"{folder}/model.safetensors").items()}
    save_file({n: filled(n, *s) for n, s in shapes.items()},
              f"{folder}/model.safetensors", {"format": "pt"})
    return config, shapes


def configure(folder, ranks, whole):
    import vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method \
        as unquantized
    import vllm.model_executor.models.registry as registry
    from vllm.engine.arg_utils import EngineArgs

    # Kernels of experts are chosen by what the machine has; none is run.
    unquantized.select_unquantized_moe_backend = lambda moe_config=None: (
        unquantized.UnquantizedMoeBackend.TRITON, None)
    registry._run_in_subprocess = lambda function: function()
    return EngineArgs(
        model=folder, tokenizer=folder, skip_tokenizer_init=True,
        tensor_parallel_size=ranks, enable_expert_parallel=whole,
        enforce_eager=True, dtype="bfloat16",
        max_model_len=32).create_engine_config()


def be_rank(config, out, ranks, rank):
    from safetensors.torch import save_file
    from vllm.config import set_current_vllm_config
    from vllm.distributed import (
        init_distributed_environment, initialize_model_parallel)
    from vllm.model_executor.model_loader import get_model_loader
    from vllm.model_executor.model_loader.sharded_state_loader import (
        ShardedStateLoader)
    from vllm.model_executor.model_loader.utils import initialize_model
    from vllm.utils.torch_utils import set_default_torch_dtype

    with set_current_vllm_config(config):
        init_distributed_environment(
            world_size=ranks, rank=rank, local_rank=rank, backend="gloo",
            distributed_init_method=f"file://{out}/store")
        initialize_model_parallel(tensor_model_parallel_size=ranks)
        with set_default_torch_dtype(config.model_config.dtype):
            model = initialize_model(vllm_config=config)
        get_model_loader(config.load_config).load_weights(
            model, config.model_config)
    state = ShardedStateLoader._filter_subtensors(model.state_dict())
    save_file({k: v.contiguous().clone() for k, v in state.items()},
              f"{out}/rank{rank}.safetensors")


def load(folder, ranks, whole):
    """{name: [dtype, shape, the digest on each rank]}"""
    from support import read_safetensors

    config = configure(folder, ranks, whole)
    with tempfile.TemporaryDirectory() as out:
        children = []
        for rank in range(ranks):
            child = os.fork()
            if not child:
                try:
                    be_rank(config, out, ranks, rank)
                    os._exit(0)
                except BaseException:
                    traceback.print_exc()
                    os._exit(1)
            children.append(child)
        if any([os.waitpid(child, 0)[1] for child in children]):
            raise SystemExit(f"{folder}: vLLM did not load it")
        held = {}
        for rank in range(len(glob.glob(f"{out}/rank*"))):
            for name, t in read_safetensors(
                    f"{out}/rank{rank}.safetensors").items():
                one = held.setdefault(name, [t.dtype, list(t.shape), []])
                one[2].append(hashlib.sha256(t.data).hexdigest()[:16])
    return dict(sorted(held.items()))


def lines(values):
    """A line for each key."""
    return "{\n" + ",\n".join(f"  {json.dumps(k)}: {json.dumps(v)}"
                              for k, v in values.items()) + "\n }"


def main(out, specs, kinds):
    import vllm

    for kind in kinds:
        with tempfile.TemporaryDirectory() as folder:
            config, shapes = make(folder, kind)
            ranks = {spec: load(folder, int(spec.rstrip("e")),
                                spec.endswith("e"))
                     for spec in specs.split(",")}
        Path(out, f"{kind}.json").write_text(
            f'{{\n "peer": "vllm",\n "peer_version": "{vllm.__version__}",\n'
            f' "config": {json.dumps(config)},\n'
            f' "tensors": {lines(shapes)},\n "ranks": {{'
            + ",\n ".join(f'"{spec}": {lines(held)}'
                          for spec, held in ranks.items()) + "}\n}\n")


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3:])
