#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""DCP checkpoints of modules that torchao itself quantized: ckpt reads and
reshards them, torch and torchao load them again, bit for bit.

dcp_subclass_test.py has more cases, of classes that are made there.
"""

import sys
import warnings
from pathlib import Path

import torch
import torch.distributed.checkpoint as dcp

from support import (
    Skip, Suite, check, check_equal, compare, from_torch, read_safetensors)

warnings.filterwarnings("ignore")
CKPT = None
FOLDER = Path(sys.prefix) / "torchao"
KINDS = ("Int8WeightOnlyConfig", "Float8WeightOnlyConfig",
         "Int8DynamicActivationInt8WeightConfig")


def configs():
    if not FOLDER.exists():
        raise Skip("torchao is not in .venv (scripts/test.sh)")
    if str(FOLDER) not in sys.path:
        sys.path.append(str(FOLDER))
    import torchao.quantization
    return torchao.quantization


def module(kind, seed):
    """Two linear layers, quantized by torchao, and a norm that is not."""
    torch.manual_seed(seed)
    made = torch.nn.Sequential(
        torch.nn.Linear(256, 128), torch.nn.LayerNorm(128),
        torch.nn.Linear(128, 64, bias=False)).bfloat16()
    quantization = configs()
    quantization.quantize_(made, getattr(quantization, kind)())
    return made


def plain_parts(name, tensor):
    """The plain tensors inside, as torch flattens a subclass."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return {name: from_torch(tensor.detach())}
    found = {}
    for part in tensor.__tensor_flatten__()[0]:
        found.update(plain_parts(f"{name}.{part}", getattr(tensor, part)))
    return found


def parts_of(state):
    found = {}
    for name, tensor in state.items():
        found.update(plain_parts(name, tensor))
    return found


def test_kind(folder, kind):
    source, out = folder / "source", folder / "out"
    before = module(kind, 1)
    want = parts_of(before.state_dict())
    check(len(want) > 4, f"{kind} quantized nothing: {sorted(want)}")
    dcp.save(before.state_dict(), checkpoint_id=source)
    rows = CKPT.inspect(source)["tensors"]
    check_equal({row["name"] for row in rows}, set(want), "parts")
    CKPT.ok("verify", source, "--deep")
    CKPT.ok("reshard", source, out, "--dp", 2)
    for path in (source, out):
        after = module(kind, 2)
        state = after.state_dict()
        dcp.load(state, checkpoint_id=path)
        compare(parts_of(state), want, f"{kind} from {path.name}")
        inputs = torch.randn(3, 256).bfloat16()
        after.load_state_dict(state, assign=True)
        check(torch.equal(after(inputs), before(inputs)), "another output")


def test_nf4(folder):
    """NF4, which torchao makes from one tensor, not from a module."""
    configs()
    from torchao.quantization.quantize_.workflows.nf4.nf4_tensor import to_nf4

    torch.manual_seed(3)
    made = [to_nf4(torch.randn(512, 256)) for _ in range(2)]
    source, out = folder / "source", folder / "out"
    dcp.save({"w": made[0], "b": torch.ones(3)}, checkpoint_id=source)
    want = parts_of({"w": made[0]})
    CKPT.ok("verify", source, "--deep")
    check(set(want) <= {row["name"] for row in CKPT.inspect(source)["tensors"]},
          "parts")
    CKPT.ok("unshard", source, folder / "out.safetensors")
    got = read_safetensors(folder / "out.safetensors")
    compare({name: got[name] for name in want}, want, "as data")
    CKPT.ok("reshard", source, out, "--dp", 2)
    CKPT.ok("verify", source, out)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    torch.set_num_threads(1)
    for kind in KINDS:
        suite.add(kind, test_kind, kind)
    suite.add("NF4", test_nf4)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
