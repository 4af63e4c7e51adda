#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Models in vLLM's sharded_state, held against vLLM itself: names, shapes and
values of every rank are those that vLLM 0.33.0's model classes had after they
loaded the same Hugging Face model, and the way back is bit for bit.

vLLM needs some hundred packages, so what it held is in tests/data/vllm/models:
each tensor of each rank by its dtype, shape and SHA-256.
`generators/vllm_models.py` wrote them. The values of a model follow from the
names of its tensors (`filled`), so that no weights are stored.
"""

import hashlib
import json
import math

from support import DATA, Suite, check, check_equal, read_safetensors

CKPT = None  # set by prepare
MODELS = DATA / "vllm/models"


def filled(name, dtype, shape):
    """Finite numbers with 16 bits, of which the name is the seed."""
    import torch

    data = hashlib.shake_128(name.encode()).digest(2 * math.prod(shape))
    bits = torch.frombuffer(bytearray(data), dtype=torch.int16) & ~0x4000
    kinds = {"bf16": torch.bfloat16, "f32": torch.float32}
    return bits.view(torch.bfloat16).reshape(shape).to(kinds[dtype])


def write_source(folder, truth):
    from safetensors.torch import save_file

    folder.mkdir()
    save_file({n: filled(n, *t) for n, t in truth["tensors"].items()},
              folder / "model.safetensors", {"format": "pt"})
    (folder / "config.json").write_text(json.dumps(truth["config"]))
    return folder


def values(tensor, dtype):
    """As that dtype: vLLM has some routers in f32 and copies what is stored."""
    import torch

    kinds = {"bf16": torch.bfloat16, "f32": torch.float32}
    own = torch.frombuffer(bytearray(tensor.data), dtype=kinds[tensor.dtype])
    return own.to(kinds[dtype]).view(torch.uint8).numpy().tobytes()


def check_ranks(folder, want, ranks):
    for rank in range(ranks):
        got = {}
        for path in sorted(folder.glob(f"model-rank-{rank}-part-*")):
            got.update(read_safetensors(path))
        check_equal(sorted(got), sorted(want), f"rank {rank}: names")
        for name, (dtype, shape, digests) in want.items():
            tensor = got[name]
            check_equal(list(tensor.shape), shape, f"rank {rank}: {name}")
            digest = hashlib.sha256(values(tensor, dtype)).hexdigest()
            check(digest.startswith(digests[rank]),
                  f"rank {rank}: {name} has other values")
    check(not list(folder.glob(f"model-rank-{ranks}-*")), "another rank")


def check_back(folder, source, hf):
    CKPT.ok("verify", source, "--deep")
    CKPT.ok("convert", source, folder / "back", "-q", "--to", "safetensors")
    got = {}
    for path in (folder / "back").glob("*.safetensors"):
        got.update(read_safetensors(path))
    want = read_safetensors(hf / "model.safetensors")
    check_equal(sorted(got), sorted(want), "back: names")
    for name, tensor in want.items():
        check_equal((got[name].dtype, got[name].shape, got[name].data),
                    (tensor.dtype, tensor.shape, tensor.data), name)


def test_model(folder, path):
    """To every number of ranks that vLLM was asked for, one from another."""
    truth = json.loads(path.read_text())
    hf = source = write_source(folder / "hf", truth)
    for spec, want in truth["ranks"].items():
        ranks, whole = int(spec.rstrip("e")), spec.endswith("e")
        out = folder / f"out{spec}"
        CKPT.ok("convert", source, out, "-q", "--to", "vllm", "--tp", ranks,
                "--ep", ranks if whole else 1, "--verify")
        check_ranks(out, want, ranks)
        source = out
    CKPT.ok("convert", source, folder / "one", "-q", "--to", "vllm",
            "--tp", 1)
    check_back(folder, folder / "one", hf)


def test_pairs(folder):
    """Llama 4's heads have to be whole pairs of rows."""
    truth = json.loads((MODELS / "llama4_text.json").read_text())
    truth["config"].update(num_attention_heads=64, num_key_value_heads=64)
    hf = write_source(folder / "hf", truth)
    run = CKPT.run("convert", hf, folder / "no", "--to", "vllm")
    run.want(5)
    check("pairs" in run.err, str(run))


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for path in sorted(MODELS.glob("*.json")):
        suite.add(f"model {path.stem}", test_model, path)
    suite.add("pairs", test_pairs)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
