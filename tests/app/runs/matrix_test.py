#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each source, into each target, in each way: what is written opens.

One small checkpoint of each format and trainer is converted as it is, with
--model-only, --dtype, --layers and --rename. The command refuses and leaves
nothing behind, or the reader of the target opens what it wrote and finds no
name that the model does not have, and verify has no problem with it.
"""

import json
import os
import re
import sys
from pathlib import Path

from support import (
    DATA, Skip, Suite, check, check_equal, load_any, load_pt, read_header,
    short)

CKPT = None
PEER = Path(sys.prefix) / "transformers_5.12.1"

SOURCES = (
    "dcp/fsdp2_w2_adamw", "dcp/hf_sharded_w2", "dcp/plain_w1",
    "dcp/torch_save_to_dcp", "deepspeed/zero1_tp2_dp2", "deepspeed/zero3_dp2",
    "fairseq2_native/legacy046_tp2", "fairseq2_native/llama_tied_blocking",
    "fairseq2_native/wav2vec2_dp2_buffers", "fsdp/torch_w3",
    "hf/gpt2_f32", "hf/llama", "hf/llama_tied_bf16", "hf/mixtral_f32",
    "hf/qwen3_moe_bf16", "megatron_legacy/gpt_local_tied_pp2_vpp2",
    "megatron_legacy/llama_te_tp2_dp2_distopt",
    "megatron_legacy/llama_te_tp2_pp2", "megatron_legacy/lm_gpt_tp2_fp16",
    "megatron_legacy/moe_te_tp2_ep2",
    "megatron_torch_dist/gpt_optim_fully_reshardable_v0161",
    "megatron_torch_dist/gpt_tp2_pp2_v0161",
    "megatron_torch_dist/moe_tp1_ep2_pp2_v0161",
    "megatron_zarr/gpt_zarr_tp2_pp2_v0090", "meta/llama",
    "modelopt/converter_qwen2_w1", "modelopt/sharded_pth_w2",
    "modelopt/sharded_qwen3_idle_ranks_w4", "modelopt/subblocks_qwen2_w1",
    "olmo_core_dcp/hf_llama", "olmo_core_dcp/trainer_fsdp_w2",
    "olmo_core_v1/plain_w1", "orbax/pytree_zarr2",
    "runs/accelerate_fsdp2_w2", "runs/hf_trainer_fsdp2_w2",
    "runs/hf_trainer_lora", "runs/hf_trainer_moe_qwen3",
    "runs/hf_trainer_qwen2", "runs/hf_trainer_zero3_w2",
    "runs/lightning_ckpt", "runs/lightning_mp_w2", "runs/nanotron_tp2",
    "runs/torchtitan_w2", "runs/verl_fsdp1_flat_w2", "runs/verl_fsdp2_w2",
    "safetensors/hf_sharded", "torch_legacy/basic/ckpt/legacy_p2.pt", "torch_pt/sharded_bin",
    "torch_pt/training_objects/ckpt/ckpt_p4.pt", "verl/fsdp1/lora_only_w2", "vllm/tp2",
    "writers/automodel/full_w2", "writers/automodel/lora_w2",
    "writers/composer/file_w1")
# Its layers have their own sizes, and one has nothing: ModelOpt alone loads it,
# which verify says of what other formats hold.
OWN_LOADER = ("modelopt/subblocks_qwen2_w1",)
TARGETS = {
    "file.pt": (), "file.safetensors": (), "hf": ("--to", "safetensors"),
    "torch": ("--to", "torch"), "dcp": ("--to", "dcp"),
    "vllm": ("--to", "vllm"), "dist": ("--to", "megatron_torch_dist"),
    "meta": ("--to", "meta")}
WAYS = {
    "plain": (), "model-only": ("--model-only",), "dtype": ("--dtype", "bf16"),
    "layers": ("--layers", "0"), "rename": ("--rename",)}


# ------------------------------------------------------------- what is there
def read_dcp(folder):
    """Every tensor, by torch's own loader."""
    import torch
    from torch.distributed.checkpoint import FileSystemReader, load

    reader = FileSystemReader(str(folder))
    rows = reader.read_metadata().state_dict_metadata
    state = {name: torch.empty(row.size, dtype=row.properties.dtype)
             for name, row in rows.items() if hasattr(row, "properties")}
    load(state, storage_reader=reader, no_dist=True)
    return state


def flat(tree, above="", within=()):
    """Dotted names of the tensors in what torch.load gives."""
    import torch

    if isinstance(tree, torch.Tensor):
        return {above: tree}
    if any(tree is outer for outer in within):  # a cycle
        return {}
    pairs = tree.items() if isinstance(tree, dict) else enumerate(tree) \
        if isinstance(tree, list | tuple) else ()
    found = {}
    for key, value in pairs:
        found |= flat(value, f"{above}.{key}" if above else str(key),
                      (*within, tree))
    return found


def opened(out, alone):
    """name -> tensor, of every file that the target's reader would open. What
    is not the model alone may hold classes of its trainer's."""
    from safetensors.torch import load_file

    found = {}
    paths = [out] if out.is_file() else sorted(out.rglob("*"))
    for path in paths:
        if path.name == ".metadata":
            found |= read_dcp(path.parent)
        elif path.suffix == ".safetensors":
            found |= load_file(path)
        elif path.suffix in (".pt", ".pth", ".bin", ".ckpt"):
            found |= flat(load_pt(path) if alone else load_any(path))
    return found


def transformers_say(out):
    """What transformers does not find, or has no place for."""
    if not PEER.is_dir():
        raise Skip("transformers is not installed (scripts/test.sh does it)")
    os.environ.update(HF_HUB_OFFLINE="1", TQDM_DISABLE="1")
    if str(PEER) not in sys.path:
        sys.path.insert(0, str(PEER))
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    config = transformers.AutoConfig.from_pretrained(out)
    kind = getattr(transformers, (config.architectures or ["AutoModel"])[0])
    _, info = kind.from_pretrained(out, output_loading_info=True,
                                   local_files_only=True)
    return {what: sorted(map(str, info[f"{what}_keys"]))
            for what in ("missing", "unexpected", "mismatched")}


def names_a_model(config):
    """transformers' configuration, and not another's of the same name."""
    return config.exists() and "model_type" in json.loads(config.read_text())


# --------------------------------------------------------------------- cells
def expected(source):
    """Names of the model's tensors, as the trainer's module has them."""
    path = DATA / source / "expected.safetensors"
    return set(read_header(path)[0]) - {"__metadata__"} if path.exists() \
        else set()


def test_cell(folder, source, target, way):
    out = folder / target
    words = list(WAYS[way])
    if way == "rename":
        rules = folder / "rules.json"
        rules.write_text('{"*": "net.*"}')
        words.append(rules)
    path = DATA / source
    if path.is_dir():
        path /= "ckpt"
    done = CKPT.run("convert", path, out, *TARGETS[target], *words)
    if done.code in (2, 5):
        check("hint: " in done.err, f"no next step\n{done}")
        check_equal([p.name for p in folder.iterdir()
                     if p.name != "rules.json"], [], f"left behind by\n{done}")
        return
    done.want(0)
    state = opened(out, way == "model-only" and target in ("file.pt", "torch"))
    check(state, f"nothing is in it\n{done}")
    if way == "rename":
        check_equal(sorted(expected(source) & set(state)), [],
                    f"names that --rename did not change\n{done}")
        check(any("net." in name for name in state), f"not renamed\n{done}")
    if way == "model-only" and target != "dist":
        foreign = [name for name in state if re.search(
            r"exp_avg|optimizer|optim\b|scheduler|rng|_extra_state", name)]
        check_equal(foreign, [], f"beside the model\n{done}")
    if source in OWN_LOADER:
        return
    if target == "hf" and names_a_model(out / "config.json"):
        said = transformers_say(out)
        if way == "layers":
            said.pop("missing")
        check_equal({k: v for k, v in said.items() if v}, {}, f"{done}")
    said = CKPT.run("verify", out, "--json")
    check_equal(said.code, 0, f"{done}\n{short(said.out, 3000)}")
    verdict = said.json()["verdict"]
    check(verdict in ("ok", "cant_tell", "warnings"), f"{verdict}: {done}")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for source in SOURCES:
        for target in TARGETS:
            for way in WAYS:
                suite.add(f"{source} to {target}, {way}", test_cell, source,
                          target, way)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
