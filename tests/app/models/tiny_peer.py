# SPDX-License-Identifier: Apache-2.0
"""Shared by tests that make tiny models with transformers' own classes."""

import importlib
import json

from support import Skip, check, read_safetensors


def models_of(module):
    """The module of that name, which imports torch and transformers."""
    try:
        import torch

        found = importlib.import_module(module)
    except ImportError as error:
        raise Skip(str(error)) from error
    torch.set_num_threads(1)
    return found


def tensors_of(directory):
    tensors = {}
    for path in sorted(directory.glob("*.safetensors")):
        tensors.update(read_safetensors(path))
    return tensors


def config_of(directory):
    return json.loads((directory / "config.json").read_text())


def same_function(tiny, kind, source, alone):
    """Checks that the config.json that ckpt made describes the saved model."""
    import torch

    a, b = (tiny.logits_of(kind.from_pretrained(path, dtype=torch.float32))
            for path in (source, alone))
    check(torch.isfinite(a).all(), "logits of the source are not numbers")
    off = float((a - b).abs().max() / a.abs().max())
    check(off < 1e-5, f"logits differ by {off:.2g}: config.json is "
          + (alone / "config.json").read_text())
