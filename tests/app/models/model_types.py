#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Which model types of transformers go where: prints a table in Markdown.

    .venv/bin/python tests/app/models/model_types.py --ckpt build/bin/ckpt [TYPE ...]

A tiny model of each type with random weights, as transformers saves it. `dist`:
to Megatron's distributed checkpoint on two ranks (one, where two can't share
it) and back, each tensor bit for bit; with --allow-unsaid where GPTModel lacks
what the model has. `vllm`: to sharded_state on two ranks and back. `itself`: to
other shards and a torch file and back. Otherwise what ckpt says, exit status
first.
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from support import HANG

sys.path.insert(0, os.path.join(sys.prefix, "transformers_5.12.1"))
os.environ.update(HF_HUB_OFFLINE="1", TQDM_DISABLE="1")

# Sizes that make any model tiny, where its configuration has the key.
SMALL = dict(
    vocab_size=128, hidden_size=32, n_embd=32, d_model=32, n_layer=2, n_layers=2,
    num_hidden_layers=2, num_layers=2, encoder_layers=2, decoder_layers=2,
    num_decoder_layers=2, num_attention_heads=4, n_head=4, n_heads=4,
    num_heads=4, encoder_attention_heads=4, decoder_attention_heads=4,
    num_key_value_heads=2, intermediate_size=48, ffn_dim=48, d_ff=48, d_kv=8,
    encoder_ffn_dim=48, decoder_ffn_dim=48, n_inner=48, head_dim=8,
    max_position_embeddings=64, n_positions=64, n_ctx=64, image_size=32,
    patch_size=16, word_embed_proj_dim=32, rotary_dim=4, moe_intermediate_size=8,
    num_local_experts=4, num_experts=4, n_routed_experts=4,
    num_experts_per_tok=2, mamba_d_state=4, mamba_d_conv=4, state_size=4,
    time_step_rank=4, mamba_dt_rank=4, max_source_positions=32,
    max_target_positions=32, num_mel_bins=16, embedding_size=32,
    projection_dim=16, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    attention_hidden_size=32, q_lora_rank=12, kv_lora_rank=8,
    qk_nope_head_dim=8, qk_rope_head_dim=4, v_head_dim=8, n_group=1,
    topk_group=1, decoder_start_token_id=1)
MOST = 8_000_000  # parameters of a tiny model
# Causal models are all of AutoModelForCausalLM's; these are extra.
OTHERS = ("bert", "roberta", "modernbert", "megatron-bert", "t5", "mt5", "umt5",
          "clip", "siglip", "vit", "whisper")
# Names of one class under two types, pieces of other models, or speech.
SKIP = ("gpt-sw3", "git", "fuyu", "musicgen", "musicgen_melody", "moshi", "emu3",
        "got_ocr2", "reformer", "cpmant", "trocr", "mllama", "phi4_multimodal")


def small_config(model_type):
    import transformers
    from transformers import AutoConfig

    for module in ("families2026_models", "hybrid_models", "multimodal_models"):
        tiny = __import__(module)
        if model_type in {*tiny.TYPES, *getattr(tiny, "VARIANTS", ())}:
            return (tiny.model_of(tiny.config_of(model_type)),
                    getattr(tiny, "UNSAID", {}).get(model_type, ()))
    import encoders_test
    import families2026_models as tiny

    # T5 as it is since v1.1; BERT with both heads.
    if model_type in ("megatron-bert", "t5", "mt5"):
        [kind] = {kind for kind, _ in encoders_test.MODELS.values()
                  if kind.lower() in (
                      model_type.replace("-", "") + "forpretraining",
                      model_type + "forconditionalgeneration")}
        return encoders_test.made(kind, {}), ()
    config = AutoConfig.for_model(model_type)
    for one in (config, *(v for v in vars(config).values()
                          if isinstance(v, transformers.PretrainedConfig))):
        known = {**one.to_dict(), **getattr(one, "attribute_map", {})}
        changes = {k: v for k, v in SMALL.items()
                   if k in known and (known[k] is not None
                                      or k == "num_key_value_heads")}
        if "kv_lora_rank" in known:  # latent attention has no groups
            changes["num_key_value_heads"] = changes["num_attention_heads"]
        for key in ("layer_types", "layers_block_type", "block_types"):
            if key in known and isinstance(known[key], list):
                changes[key] = (known[key] * 2)[:2]
        if "num_heads" in known and "d_model" not in known:
            changes["num_heads"] = 4
        one.__dict__.update(type(one)(**changes).__dict__)
    return model_of(config, tiny), ()


def model_of(config, tiny):
    import torch
    from transformers import (AutoModel, AutoModelForCausalLM,
                              AutoModelForSeq2SeqLM)

    torch.manual_seed(0)
    for kind in (AutoModelForCausalLM, AutoModelForSeq2SeqLM, AutoModel):
        if type(config) in kind._model_mapping:
            with torch.device("meta"):
                count = kind.from_config(config).num_parameters()
            if count > MOST:
                raise ValueError(f"{count} parameters, however small it is")
            return tiny.with_weights(kind.from_config(config).float().eval(), 0)
    raise ValueError("no class")


class Trial:
    def __init__(self, ckpt, folder):
        self.ckpt, self.folder, self.err = ckpt, folder, ""

    def home(self, name, allowed, *options):
        there, back = (self.folder / f"{name}{end}" for end in ("", "_back"))
        for path in (there, back):
            shutil.rmtree(path, ignore_errors=True)
        said = self.run("convert", self.folder / "source", there, *options,
                        *(word for fact in allowed
                          for word in ("--allow-unsaid", fact)))
        said = said or self.run("convert", there, back, "--to", "safetensors")
        return said or self.differs(back)

    def differs(self, back):
        from safetensors.torch import load_file

        def read(folder):
            return {k: v for path in sorted(folder.glob("*.safetensors"))
                    for k, v in load_file(path).items()}

        want, got = read(self.folder / "source"), read(back)
        if sorted(want) != sorted(got):
            odd = sorted(set(want) ^ set(got))
            return f"other names at home: {odd[0]} (of {len(odd)})"
        bad = [k for k in want if want[k].shape != got[k].shape
               or want[k].numpy().tobytes() != got[k].numpy().tobytes()]
        return f"other bytes at home: {bad[0]}" if bad else None

    def dist(self, allowed):
        """What the message demands is allowed, and named in the table."""
        for tp in (2, 1):
            asked = list(allowed)
            for _ in range(6):
                said = self.home("dist", asked, "--to", "megatron_torch_dist",
                                 "--tp", tp)
                more = set(re.findall(r"--allow-unsaid ([\w.*]+)", self.err))
                if said is None or more <= set(asked):
                    break
                asked = sorted({*asked, *more})
            if said is None:
                return ("yes" + (f" ({', '.join(asked)})" if asked else "")
                        + (" on one rank" if tp == 1 else ""))
        return said

    def run(self, *argv):
        done = subprocess.run([self.ckpt, *map(str, argv), "--no-fsync"],
                              capture_output=True, text=True, check=False,
                              timeout=HANG)
        self.err = done.stderr
        if done.returncode == 0:
            return None
        text = next((line for line in done.stderr.splitlines()
                     if "error: " in line), done.stderr)
        text = text[text.find("error: ") + 7:]
        text = text.removeprefix(f"{self.folder}/source: ")
        return f"{done.returncode}: {text.strip().replace('|', '/')}"


def row(ckpt, model_type):
    with tempfile.TemporaryDirectory(prefix="ckpt_types_") as folder:
        folder = Path(folder)
        try:
            model, allowed = small_config(model_type)
            model.save_pretrained(folder / "source")
            if model_type == "qwen2_audio":
                __import__("multimodal_models").publish(
                    folder / "source" / "model.safetensors")
        except Exception as error:  # a class that can't be made tiny this way
            return {"type": model_type, "made": str(error).splitlines()[0][:90]}
        trial = Trial(ckpt, folder)
        return {"type": model_type, "dist": trial.dist(allowed),
                "vllm": trial.home("vllm", (), "--to", "vllm", "--tp", 2)
                or "yes",
                "itself": trial.home("torch", (), "--to", "torch") or "yes"}


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ckpt", default="build/bin/ckpt")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("types", nargs="*")
    options = parser.parse_args()
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)

    import hybrid_models
    import multimodal_models

    types = options.types or sorted(
        {*MODEL_FOR_CAUSAL_LM_MAPPING_NAMES, *OTHERS, *hybrid_models.TYPES,
         *multimodal_models.TYPES, *multimodal_models.VARIANTS} - {*SKIP})
    rows = []
    for model_type in types:
        rows.append(row(options.ckpt, model_type))
        if options.json:
            print(json.dumps(rows[-1]), flush=True)
            continue
        one = rows[-1]
        print("| " + " | ".join(
            [model_type] + ([f"not made: {one['made']}", "", ""] if "made" in one
                            else [one["dist"], one["vllm"], one["itself"]]))
              + " |", flush=True)
    counts = {key: sum(r.get(key, "").startswith("yes") for r in rows)
              for key in ("dist", "vllm", "itself")}
    made = sum("made" not in r for r in rows)
    print(f"{len(rows)} types, {made} made; " + ", ".join(
        f"{key} {count}" for key, count in counts.items()))


if __name__ == "__main__":
    main()
