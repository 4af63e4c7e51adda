# SPDX-License-Identifier: Apache-2.0
"""A tiny Llama-Nemotron whose layers differ, for the tests of its family.

transformers has no class for it. Each layer is one of Llama's own modules in
the sizes of its block; a block without attention or MLP leaves it out with its
norm, and one that is replaced has a matrix there. DeciLM's code on the hub and
Megatron-Core's heterogeneous layers do the same.
"""

import copy
import json

import torch
from families2026_models import with_weights
from transformers import LlamaConfig
from transformers.models.llama import modeling_llama as llama

HIDDEN = 32


def part(size=None, of="n_heads_in_group", no_op=False, linear=False):
    return {of: size, "no_op": no_op, "replace_with_linear": linear}


def mlp(size=None, **options):
    return part(size, "ffn_mult", **options)


# Groups of 2 and of 1, widths of 256 and 512, and blocks left out.
BLOCKS = [
    {"attention": part(2), "ffn": mlp(5.25)},
    {"attention": part(no_op=True), "ffn": mlp(13.0)},
    {"attention": part(2), "ffn": mlp(no_op=True)},
    {"attention": part(linear=True), "ffn": mlp(5.25)},
    {"attention": part(2), "ffn": mlp(linear=True)},
    {"attention": part(4), "ffn": mlp(13.0)},
]


def width(block):
    size = int(2 * block["ffn_mult"] * HIDDEN / 3)
    return -(-size // 256) * 256


class Matrix(torch.nn.Module):
    def __init__(self, name):
        super().__init__()
        self.name = name
        self.add_module(name, torch.nn.Linear(HIDDEN, HIDDEN, bias=False))

    def forward(self, x):
        return getattr(self, self.name)(x)


class Layer(torch.nn.Module):
    def __init__(self, config, index, block):
        super().__init__()
        own = copy.deepcopy(config)
        attention, ffn = block["attention"], block["ffn"]
        self.attends = not attention["no_op"]
        self.feeds = not ffn["no_op"]
        self.is_linear = attention["replace_with_linear"]
        if self.attends:
            self.input_layernorm = llama.LlamaRMSNorm(HIDDEN,
                                                      config.rms_norm_eps)
            if self.is_linear:
                self.self_attn = Matrix("linear_attn")
            else:
                own.num_key_value_heads = (config.num_attention_heads
                                           // attention["n_heads_in_group"])
                self.self_attn = llama.LlamaAttention(own, index)
        if self.feeds:
            self.post_attention_layernorm = llama.LlamaRMSNorm(
                HIDDEN, config.rms_norm_eps)
            if ffn["replace_with_linear"]:
                self.mlp = Matrix("linear_mlp")
            else:
                own.intermediate_size = width(ffn)
                self.mlp = llama.LlamaMLP(own)

    def forward(self, x, rope, mask):
        if self.attends:
            seen = self.input_layernorm(x)
            x = x + (self.self_attn(seen) if self.is_linear else
                     self.self_attn(seen, position_embeddings=rope,
                                    attention_mask=mask)[0])
        if self.feeds:
            x = x + self.mlp(self.post_attention_layernorm(x))
        return x


class Nas(torch.nn.Module):
    def __init__(self, config, blocks):
        super().__init__()
        self.config, self.blocks = config, blocks
        self.model = torch.nn.Module()
        self.model.embed_tokens = torch.nn.Embedding(config.vocab_size, HIDDEN)
        self.model.layers = torch.nn.ModuleList(
            Layer(config, i, block) for i, block in enumerate(blocks))
        self.model.norm = llama.LlamaRMSNorm(HIDDEN, config.rms_norm_eps)
        self.lm_head = torch.nn.Linear(HIDDEN, config.vocab_size, bias=False)
        self.rope = [llama.LlamaRotaryEmbedding(config)]  # not in the state

    def forward(self, tokens):
        x = self.model.embed_tokens(tokens)
        places = torch.arange(tokens.shape[1])[None]
        rope = self.rope[0](x, places)
        mask = torch.full((tokens.shape[1],) * 2, float("-inf")).triu(1)
        for layer in self.model.layers:
            x = layer(x, rope, mask[None, None])
        return self.lm_head(self.model.norm(x))

    def save_pretrained(self, path):
        from safetensors.torch import save_file

        path.mkdir(parents=True)
        save_file({k: v.contiguous() for k, v in self.state_dict().items()},
                  path / "model.safetensors", {"format": "pt"})
        table = self.config.to_dict()
        table.update(model_type="nemotron-nas", dtype="float32",
                     architectures=["DeciLMForCausalLM"],
                     block_configs=self.blocks, num_key_value_heads=None,
                     intermediate_size=None,
                     rope_theta=table.pop("rope_parameters")["rope_theta"])
        (path / "config.json").write_text(json.dumps(table, indent=2))


def model_of(blocks=BLOCKS, seed=0):
    config = LlamaConfig(
        vocab_size=64, hidden_size=HIDDEN, intermediate_size=48,
        num_hidden_layers=len(blocks), num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=64, bos_token_id=1,
        eos_token_id=2, pad_token_id=0, attn_implementation="eager")
    return with_weights(Nas(config, blocks).float().eval(), seed)


def logits_of(model):
    tokens = torch.arange(24)[None] * 7 % 64
    with torch.no_grad():
        return model(tokens)
