# SPDX-License-Identifier: Apache-2.0
"""What the tables of hub_configs.py are made of."""

COMMON = dict(
    attention_dropout=0.0, bos_token_id=1, eos_token_id=2, hidden_size=32,
    initializer_range=0.02, intermediate_size=48, num_attention_heads=8,
    num_hidden_layers=2, num_key_value_heads=2, torch_dtype="bfloat16",
    transformers_version="4.42.3", use_cache=True, vocab_size=64)


def less(config, *keys, **changes):
    """The same without some keys."""
    return {k: v for k, v in {**config, **changes}.items() if k not in keys}
