#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Old optimizer state, made loadable: megatron-core 0.16.1 loads what
`ckpt convert --optim fully_reshardable` makes of it into a GPTModel and its
distributed optimizer, at topologies that the source did not have.

Flat buffers say nowhere which parameters they hold. What ckpt infers it has
to prove: a main weight that is not its model weight is refused and named.
"""

import importlib.util
import json
import shutil
import struct

from peer import Peer
from support import DATA, Skip, Suite, check, check_equal

CKPT = None
DIST = DATA / "megatron_torch_dist"
ZARR = DATA / "megatron_zarr"
HAVE_PEER = importlib.util.find_spec("megatron") is not None
PROGRAM = Peer("megatron_peer.py")
BUCKET = ("optimizer.distributed.dp_group_idx_0.gbuf_idx_0.dtype_"
          "(torch.bfloat16, torch.float32).bucket_idx_0.")

# The golden, the topology that ckpt writes, and the topologies that load it.
RESCUES = [
    (ZARR / "gpt_zarr_optim_bucket_space_v0090", {"tp": 2},
     [{"tp": 1, "pp": 2}, {"tp": 2, "dp": 2}]),
    (ZARR / "gpt_zarr_optim_model_space_v0090", {"tp": 1, "pp": 2},
     [{"tp": 2}, {"tp": 1, "dp": 3}]),
    (DIST / "gpt_flat_optim_model_space_v0140", {"tp": 1},
     [{"tp": 1, "pp": 2}, {"tp": 2, "dp": 2}]),
    (DIST / "gpt_optim_dp_reshardable_v0161", {"tp": 2, "pp": 2},
     [{"tp": 1, "pp": 2, "dp": 2}, {"tp": 2}]),
    (DIST / "gpt_optim_float16_v0161", {"tp": 1},
     [{"tp": 1, "dp": 2}, {"tp": 2}]),
    (DIST / "gpt_optim_tied_buckets_tp2_pp2_v0161", {"tp": 1},
     # Not at pp 2: when asked for its state, the peer's optimizer takes what
     # follows the embedding's bucket from where padding would have put it.
     [{"tp": 1, "dp": 2}, {"tp": 2, "dp": 2}]),
    (DIST / "moe_optim_buckets_ep2_pp2_v0161", {"tp": 1, "ep": 4, "dp": 4},
     [{"tp": 1, "ep": 2, "dp": 2}, {"tp": 1, "pp": 2, "ep": 2, "dp": 2}]),
    (DIST / "moe_optim_buckets_ep2_pp2_v0090", {"tp": 1},
     [{"tp": 1, "ep": 2, "dp": 2}]),
]


def options_of(topology):
    return [part for name, size in topology.items()
            for part in (f"--{name}", size)]


def convert(source, target, topology, *more):
    sizes = {"tp": 1, "pp": 1, "dp": 1, "ep": 1, **topology}
    return CKPT.run("convert", source, target, "--to", "megatron_torch_dist",
                    "--optim", "fully_reshardable", *options_of(sizes), *more)


def renamed_truth(case, folder):
    """The golden's expected tensors under the names of the new form."""
    from safetensors.torch import load_file, save_file

    model = load_file(case / "expected.safetensors")
    state = {name.replace(".fp32_param.", ".param."): tensor for name, tensor
             in load_file(case / "expected_optim.safetensors").items()}
    path = folder / "truth.safetensors"
    save_file({**model, **state}, path)
    return path


def load_by_peer(path, truth, case, topology):
    about = json.loads((case / "case.json").read_text())
    sizes = {"tp": 1, "pp": 1, "dp": 1, **topology}
    job = {"kind": "optim", "path": str(path), "expected": [str(truth)],
           "topology": topology, "model": about["model"],
           "world": sizes["tp"] * sizes["pp"] * sizes["dp"]}
    wrong = PROGRAM.ask(job)
    check(not wrong, f"megatron-core at {topology}: {wrong}")


def test_rescue(folder, case, topology, loads):
    if not case.exists():
        raise Skip("no such golden")
    convert(case / "ckpt", folder / "new", topology).want(0)
    CKPT.ok("verify", folder / "new", "--deep")
    truth = renamed_truth(case, folder)
    plain = folder / "plain.safetensors"
    CKPT.ok("unshard", folder / "new", plain)
    compare(plain, truth)
    if not HAVE_PEER:
        raise Skip("no megatron-core here: read back by ckpt only")
    for load in loads:
        load_by_peer(folder / "new", truth, case, load)


def compare(got, want):
    import torch
    from safetensors.torch import load_file

    got, want = load_file(got), load_file(want)
    check_equal(sorted(got), sorted(want), "names")
    for name, tensor in want.items():
        same = torch.equal(got[name].view(torch.uint8),
                           tensor.view(torch.uint8))
        check(same and got[name].shape == tensor.shape, f"{name} differs")


def test_common(folder, case):
    """What a load needs from the common part."""
    if not HAVE_PEER:
        raise Skip("no megatron-core here")
    new = folder / "new"
    convert(case / "ckpt", new, {"tp": 1}).want(0)
    import torch
    common = torch.load(new / "common.pt", weights_only=False)
    optimizer = common["optimizer"]
    check_equal(optimizer["param_state_sharding_type"],
                "fully_reshardable", "sharding type")
    check_equal(set(optimizer) - {"grad_scaler"},
                {"optimizer", "param_state_sharding_type"}, "entries")
    for group in optimizer["optimizer"]["param_groups"]:
        check_equal(float(group["step"]), 7.0, "step")
        check("params" not in group, "params are left out")
    about = common["content_metadata"]
    check_equal(about["distrib_optim_sharding_type"], "fully_reshardable",
                "content_metadata")
    check_equal(about["distrib_optim_fully_reshardable_mem_efficient"],
                False, "content_metadata")
    check_equal(about["chained_optim_avoid_prefix"], True,
                "content_metadata")


# ------------------------------------------------------------ what is refused
def writable(case, folder):
    path = folder / "ckpt"
    shutil.copytree(case / "ckpt", path)
    for file in path.rglob("*"):
        file.chmod(0o755 if file.is_dir() else 0o644)
    return path


def refused(path, folder, name):
    result = convert(path, folder / "new", {"tp": 1}).want(5)
    check(name in result.err, f"names {name}\n{result}")
    check(not (folder / "new").exists(), "nothing is written")
    convert(path, folder / "new", {"tp": 1}, "--dry-run").want(5)
    found = CKPT.run("verify", path, "--deep", "--json").want(1).json()
    kinds = {(p["kind"], p["tensor"]) for p in found["problems"]}
    check(("main_weight", name) in kinds, f"verify finds {name}: {kinds}")
    CKPT.ok("convert", path, folder / "model", "--to", "megatron_torch_dist",
            "--model-only")


def bucket_files(path, state):
    return [path / (BUCKET + state) / str(i) for i in range(2)]


def read_bucket(path, state):
    return bytearray(b"".join(
        file.read_bytes() for file in bucket_files(path, state)))


def write_bucket(path, state, content):
    files = bucket_files(path, state)
    half = len(content) // len(files)
    for i, file in enumerate(files):
        file.write_bytes(content[i * half:(i + 1) * half])


def slots_of(case):
    layout = json.loads((case / "case.json").read_text())["bucket_layout"]
    return {slot["param"]: slot for slot in layout}


def test_flipped_zarr(folder, case):
    path = writable(case, folder)
    slot = slots_of(case)["decoder.layers.1.self_attention.linear_qkv."
                          "weight"]
    content = read_bucket(path, "param")
    content[4 * slot["start"] + 4 * 17 + 2] ^= 1  # the last bit of bf16
    write_bucket(path, "param", content)
    refused(path, folder, slot["model_key"])


def test_swapped(folder, case):
    """Two parameters of one size, swapped with all of their state."""
    path = writable(case, folder)
    slots = slots_of(case)
    first = slots["decoder.layers.0.mlp.linear_fc2.weight"]
    second = slots["decoder.layers.1.mlp.linear_fc2.weight"]
    for state in ("param", "exp_avg", "exp_avg_sq"):
        content = read_bucket(path, state)
        a = slice(4 * first["start"], 4 * first["end"])
        b = slice(4 * second["start"], 4 * second["end"])
        content[a], content[b] = content[b], content[a]
        write_bucket(path, state, content)
    refused(path, folder, first["model_key"])


def test_flipped_item(folder, case):
    """A byte of a main weight in a .distcp file."""
    from safetensors.torch import load_file

    state = load_file(case / "expected_optim.safetensors")
    key = "decoder.layers.mlp.linear_fc1.layer_norm_weight"
    values = state["optimizer.state.param." + key][0].tolist()
    needle = struct.pack(f"<{len(values)}f", *values)
    path = writable(case, folder)
    for file in path.glob("*.distcp"):
        content = bytearray(file.read_bytes())
        at = content.find(needle)
        if at < 0:
            continue
        content[at + 7] ^= 0x40
        file.write_bytes(content)
        refused(path, folder, key)
        return
    check(False, "the weight is nowhere")


def test_unknown_form(folder, case):
    result = CKPT.run("convert", case / "ckpt", folder / "new",
                      "--to", "megatron_torch_dist", "--optim",
                      "dp_reshardable").want(2)
    check("fully_reshardable" in result.err, f"says which there is\n{result}")
    CKPT.run("convert", case / "ckpt", folder / "new", "--to", "dcp",
             "--optim", "fully_reshardable").want(2)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for case, topology, loads in RESCUES:
        suite.add(f"{case.name} as {topology}", test_rescue, case, topology,
                  loads)
    for case, _, _ in RESCUES[:6]:
        suite.add(f"{case.name}: common part", test_common, case)
    zarr = ZARR / "gpt_zarr_optim_bucket_space_v0090"
    suite.add("zarr: one bit of a main weight", test_flipped_zarr, zarr)
    suite.add("zarr: two parameters changed places", test_swapped, zarr)
    suite.add("torch_dist: a byte of a main weight", test_flipped_item,
              DIST / "gpt_optim_dp_reshardable_v0161")
    suite.add("forms that can't be asked for", test_unknown_form, zarr)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
