#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""--vocab-size and padding, for every model type that becomes Megatron's.

Fewer tokens: the model of the first ones. It comes home from Megatron without a
config.json beside it, transformers opens it, and its logits are the first of
the whole model's. Rows that pad a vocabulary are zero in Megatron's files and
gone at home. More tokens than there are rows are refused: no file has them.
"""

import os
import sys

from support import Suite, check, check_equal, compare
from tiny_peer import config_of, models_of, tensors_of

sys.path.insert(0, os.path.join(sys.prefix, "transformers_5.12.1"))
os.environ.update(HF_HUB_OFFLINE="1", TQDM_DISABLE="1")
CKPT = None  # set by prepare
ROWS, FEWER = 64, 48


def tiny_models():
    return models_of("families2026_models")


def logits_of(model):
    import torch

    tokens = torch.arange(24)[None] * 7 % FEWER
    with torch.no_grad():
        return model.eval()(input_ids=tokens, use_cache=False).logits


def to_megatron(source, there, model_type, *more):
    allowed = tiny_models().UNSAID.get(model_type, ())
    return CKPT.run("convert", source, there, "--to", "megatron_torch_dist",
                    "--no-fsync", "-q", *more,
                    *(word for fact in allowed
                      for word in ("--allow-unsaid", fact)))


def home(there, back):
    CKPT.ok("convert", there, back, "--to", "safetensors", "--no-fsync", "-q")
    return tensors_of(back)


def vocabulary(folder, model_type):
    import torch

    tiny = tiny_models()
    model = tiny.model_of(tiny.config_of(model_type))
    source = folder / "source"
    model.save_pretrained(source)
    saved = type(model).from_pretrained(source, dtype=torch.float32)
    want = logits_of(saved)[..., :FEWER]
    fewer(folder, source, model_type, type(model), want)
    padded = folder / "padded"
    to_megatron(source, padded, model_type, "--tp", 2,
                "--make-vocab-size-divisible-by", 48).want(0)
    [rows] = {t["shape"][0] for t in CKPT.inspect(padded)["tensors"]
              if t["name"].endswith("word_embeddings.weight")}
    check_equal(rows, 96, "rows with their padding")
    compare(home(padded, folder / "padded_home"), tensors_of(source), "padded")
    run = to_megatron(source, folder / "no", model_type, "--vocab-size",
                      ROWS + 1).want(5)
    check(str(ROWS + 1) in run.err and f"{ROWS} rows" in run.err, run.err)
    check(not (folder / "no").exists(), "something was written")
    check(torch.isfinite(want).all(), "logits are not numbers")


def fewer(folder, source, model_type, kind, want):
    import torch

    there, back = folder / "there", folder / "back"
    to_megatron(source, there, model_type, "--vocab-size", FEWER).want(0)
    beside = home(there, folder / "beside")
    was, now = config_of(source), config_of(folder / "beside")
    check_equal({k for k in was if was[k] != now.get(k)}, {"vocab_size"},
                "what config.json says otherwise")
    for path in list(there.rglob("*config.json")):
        path.unlink()
    compare(home(there, back), beside, "without config.json")
    check_equal(config_of(back)["vocab_size"], FEWER, "vocab_size")
    before = tensors_of(source)
    for name, value in beside.items():
        if value.shape != before[name].shape:
            check_equal(value.shape[0], FEWER, name)
            check(before[name].data.startswith(value.data),
                  f"{name}: not the first rows")
    loaded = kind.from_pretrained(back, dtype=torch.float32)
    got = logits_of(loaded)
    off = float((got - want).abs().max() / want.abs().max())
    check(got.shape == want.shape and off < 1e-5, f"logits differ by {off:.2g}")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for model_type in tiny_models().TYPES:
        suite.add(model_type, vocabulary, model_type)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
