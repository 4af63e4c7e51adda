#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""--layers counts the language model's layers: towers beside it stay whole.

Every model type that sees or hears, as transformers saves it: with one layer fewer, and
with its layers twice, each tensor of the tower is what it was, transformers
finds all that it looks for, and nothing else. So do models of an encoder and a
decoder, which are cut alike.
"""

import os
import sys

from support import Suite, check, check_equal, compare
from tiny_peer import config_of, models_of, tensors_of

sys.path.insert(0, os.path.join(sys.prefix, "transformers_5.12.1"))
CKPT = None  # set by prepare
PAIRS = {
    "t5": {"num_layers": 3, "num_decoder_layers": 2, "d_model": 32, "d_kv": 8,
           "d_ff": 48, "num_heads": 4, "vocab_size": 96},
    "whisper": {"encoder_layers": 3, "decoder_layers": 2, "d_model": 32,
                "encoder_attention_heads": 4, "decoder_attention_heads": 4,
                "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "vocab_size": 96,
                "num_mel_bins": 16, "max_source_positions": 32,
                "max_target_positions": 32, "pad_token_id": 0,
                "bos_token_id": 1, "eos_token_id": 2,
                "decoder_start_token_id": 1},
    "bart": {"encoder_layers": 2, "decoder_layers": 3, "d_model": 32,
             "encoder_attention_heads": 4, "decoder_attention_heads": 4,
             "encoder_ffn_dim": 48, "decoder_ffn_dim": 48, "vocab_size": 96,
             "max_position_embeddings": 64},
}


def loads_all(kind, folder):
    import torch

    model, told = kind.from_pretrained(folder, dtype=torch.float32,
                                       output_loading_info=True)
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        check(not told[what], f"{folder.name}: {what}: {sorted(told[what])[:3]}")
    return model


def is_tower(name):
    return any(part in name for part in ("visual.", "vision_tower.",
                                         "vision_model.", "projector.",
                                         "audio_tower."))


def tower(folder, name):
    tiny = models_of("multimodal_models")
    model = tiny.model_of(tiny.config_of(name))
    source = folder / "source"
    model.save_pretrained(source)
    saved = tensors_of(source)
    want = {key: value for key, value in saved.items() if is_tower(key)}
    check(any(char.isdigit() for key in want for char in key), "no tower")
    config = config_of(source)
    text = config.get("text_config", config)
    layers = text["num_hidden_layers"]
    # The first layers are dense, so the last layer is repeated.
    again = layers - 1 if text.get("first_k_dense_replace") else 0
    for kept, count in ((f"0-{layers - 2}", layers - 1),
                        (f"0-{layers - 1},{again}-{layers - 1}",
                         2 * layers - again)):
        out = folder / f"of{count}"
        CKPT.ok("convert", source, out, "--to", "safetensors", "--layers",
                kept, "--no-fsync", "-q")
        got = tensors_of(out)
        compare({key: value for key, value in got.items() if is_tower(key)},
                want, f"--layers {kept}: the tower")
        now = config_of(out)
        for key in ("vision_config", "audio_config"):
            check_equal(now.get(key), config.get(key), key)
        check_equal(now.get("text_config", now)["num_hidden_layers"], count,
                    "num_hidden_layers")
        tiny.logits_of(loads_all(type(model), out))


def two_stacks(folder, name):
    import torch
    from transformers import AutoConfig, AutoModelForSeq2SeqLM, \
        AutoModelForSpeechSeq2Seq

    torch.manual_seed(0)
    config = AutoConfig.for_model(name, **PAIRS[name])
    kind = (AutoModelForSpeechSeq2Seq if name == "whisper"
            else AutoModelForSeq2SeqLM)
    model = kind.from_config(config).float()
    model.save_pretrained(folder / "source")
    for kept in (1, 2):
        out = folder / f"of{kept}"
        CKPT.ok("convert", folder / "source", out, "--to", "safetensors",
                "--layers", f"0-{kept - 1}", "--no-fsync", "-q")
        loads_all(type(model), out)


def by_itself(folder):
    """--keys leaves only a model's tower: its layers are counted, and rows that
    a distributed checkpoint stacks aren't the text's."""
    tiny = models_of("multimodal_models")
    name = "qwen2_5_vl"
    tiny.model_of(tiny.config_of(name)).save_pretrained(folder / "source")
    CKPT.ok("convert", folder / "source", folder / "there", "--to",
            "megatron_torch_dist", "--no-fsync", "-q")
    want = {key: value for key, value in tensors_of(folder / "source").items()
            if is_tower(key) and ".blocks.1." not in key}
    CKPT.ok("convert", folder / "source", folder / "out", "--to", "safetensors",
            "--keys", "*visual.*", "--layers", "0", "--no-fsync", "-q")
    compare(tensors_of(folder / "out"), want, "the tower's first layer")
    # Beside the text it stays whole, in each order, stacked or not.
    for kept in ("0", "0-1,0-1"):
        for source in ("source", "there"):
            CKPT.ok("convert", folder / source, folder / f"{source}{kept}",
                    "--to", "safetensors", "--layers", kept, "--no-fsync", "-q")
        CKPT.ok("verify", folder / f"source{kept}", folder / f"there{kept}")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for name in models_of("multimodal_models").TYPES:
        suite.add(name, tower, name)
    for name in PAIRS:
        suite.add(name, two_stacks, name)
    suite.add("a tower by itself", by_itself)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
