#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""transformers loads what ckpt wrote, and the model says what it said before.

Each golden model goes through Megatron's format, or another dialect, and back;
transformers reads the directory, config.json included, and gives the same
logits. Where nothing but Megatron's args is left, config.json is made of them.
"""

import sys
from pathlib import Path

from support import DATA, Skip, Suite, check, check_equal

CKPT = None  # set by prepare
GOLDENS = DATA / "hf"
PEER = Path(sys.prefix) / "transformers_5.12.1"
# Families that need what args don't have: layer types, expert groups, windows,
# a token id that fits a tiny vocabulary.
NEEDS_CONFIG = ("gemma2", "gemma3", "deepseek", "olmo2", "mistral",
                "phi3")


def cases():
    return sorted(p.name for p in GOLDENS.iterdir() if p.is_dir())


def transformers():
    if not PEER.is_dir():
        raise Skip("transformers is not installed (scripts/test.sh does it)")
    if str(PEER) not in sys.path:
        sys.path.insert(0, str(PEER))
    import transformers as peer

    peer.logging.set_verbosity_error()
    peer.logging.disable_progress_bar()
    return peer


def load(directory):
    model, info = transformers().AutoModelForCausalLM.from_pretrained(
        str(directory), output_loading_info=True, local_files_only=True)
    for what in ("missing_keys", "mismatched_keys"):
        check(not info[what], f"{what}: {sorted(info[what])[:5]}")
    return model.eval(), set(info["unexpected_keys"])


def logits(directory):
    import torch

    model, unexpected = load(directory)
    torch.manual_seed(5)
    vocabulary = model.config.get_text_config().vocab_size
    tokens = torch.randint(0, vocabulary, (2, 17))
    with torch.no_grad():
        return model(tokens, use_cache=False).logits, unexpected


def same_logits(directory, case):
    import torch

    want, unknown = logits(GOLDENS / case / "ckpt")
    got, unexpected = logits(directory)
    check(unexpected <= unknown,
          f"unexpected keys: {sorted(unexpected - unknown)[:5]}")
    check_equal(got.shape, want.shape, "shape of the logits")
    check(torch.equal(got, want),
          f"logits differ by {(got - want).abs().max()}")


def through(folder, case, container, options):
    """There, with everything that the source has, and back."""
    there, back = folder / "there", folder / "back"
    CKPT.ok("convert", GOLDENS / case / "ckpt", there, "-q", "--to", container,
            *options)
    CKPT.ok("convert", there, back, "-q", "--to", "safetensors", "--dialect",
            "hf", "--max-shard-size", "100KB",
            *(["--config-from", GOLDENS / case / "ckpt"]
              if container != "megatron_torch_dist" else []))
    same_logits(back, case)


def from_args(folder, case):
    """Only Megatron's args say what the model is."""
    there, back = folder / "there", folder / "back"
    CKPT.ok("convert", GOLDENS / case / "ckpt", there, "-q", "--to",
            "megatron_torch_dist", "--tp",
            1 if case.startswith("falcon") else 2)
    for path in there.rglob("config.json"):
        path.unlink()
    for path in there.rglob("generation_config.json"):
        path.unlink()
    CKPT.ok("convert", there, back, "-q", "--to", "safetensors")
    check((back / "config.json").exists(), "no config.json")
    same_logits(back, case)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for case in cases():
        # Falcon's goldens have one layer and one group of heads.
        ranks = 1 if case.startswith("falcon") else 2
        suite.add(f"{case} through Megatron", through, case,
                  "megatron_torch_dist", ["--tp", ranks, "--pp", ranks])
        if not case.startswith(NEEDS_CONFIG):
            suite.add(f"{case} from args", from_args, case)
        for dialect, container in (("meta", "meta"),
                                   ("fairseq2", "fairseq2"),
                                   ("olmo_core", "olmo_core")):
            if (GOLDENS / case / f"expected_{dialect}.safetensors").exists():
                suite.add(f"{case} through {container}", through, case,
                          container, [])


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
