#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every file of every golden of many files, removed one at a time.

`verify` must refuse and say what is missing, unless the file is in a short
table below with the reason why nothing that remains shows it. A row that no
file needs fails, so that the tables stay short and true.
"""

import collections
import fnmatch
import os
import re
import shutil

from support import DATA, Skip, Suite, check

CKPT = None

# Independent files, not a checkpoint of several. Arrays without some of their
# chunks, which then hold a fill value.
APART = {"megatron_zarr/zarr_v2_variants_emulated",
         "safetensors/all_dtypes",
         "safetensors/odd_but_valid",
         "torch_pt/container_variants", "torch_pt/dtensor_per_rank", "torch_pt/training_objects",
         "torch_pt/whole_module"}
APART_FOLDERS = ("torch_legacy", "torch_pt/torch", "hf/")

# Path below tests/data -> why what remains doesn't show it.
UNSEEN = {
    # --- nothing needs it
    "*/latest_checkpointed_iteration.txt": "the newest step is taken",
    "runs/nanotron_tp2/latest.txt": "the newest step is taken",
    "megatron_torch_dist/*/integrity.json":
        "an option of the writer's: most have none",
    "*.metadata.json": "says the release that wrote it",
    "olmo_core_dcp/state_hsdp_w4/__[23]_0.distcp":
        "empty: these ranks are replicas, and had nothing to save",
    "megatron_zarr/*.sync/*": "locks that a writer left behind",
    "modelopt/converter_qwen2_w1/generation_config.json":
        "defaults for sampling",
    "runs/*/generation_config.json": "defaults for sampling",
    "runs/hf_trainer_zero3_w2/*.py": "a copy of DeepSpeed's script",
    "runs/hf_trainer_lora/*/README.md": "a model card",
    "fairseq2_native/*/score*": "the score of a step; of no use to a resume",
    "orbax/*/_CHECKPOINT_METADATA": "when it was written",
    "orbax/*/_sharding": "which devices had what; of no use to others",
    "orbax/*/array_metadatas/*": ".zarray says the same",
    "fairseq2_native/*/cc/*": "whatever a user wants copied",
    "fairseq2_native/legacy046_*/step_10/config.json": "a copy of cc/",
    "fairseq2_native/legacy046_tp1/*/metadata.pt": "a user's own, or none",
    "olmo_core_dcp/trainer_fsdp_w2/train/rank1.pt":
        "rank 0's alone is what all ranks take after a reshard",
    "olmo_core_dcp/*/data_paths.txt": "a list of names for people",
    # --- an index or configuration beside weights that say it all themselves
    "safetensors/hf_sharded/config.json": "weights alone are a checkpoint too",
    "torch_pt/sharded_bin/*.index.json": "x-of-N says how many there are",
    "safetensors/hf_sharded/*.index.json": "x-of-N says how many there are",
    "dcp/hf_rank0_w1/*.index.json": "x-of-N says how many there are",
    "modelopt/*/config.json": "weights alone are a checkpoint too",
    "modelopt/*/*.index.json": "the files are there, whole",
    "olmo_core_dcp/*/config.json": "weights alone are a checkpoint too",
    "meta/*/params.json": "the ranks' shapes agree",
    "runs/*config.json": "weights alone are a checkpoint too",
    "runs/*/tokenizer.json": "a trainer may have had no tokenizer",
    "fairseq2_native/*/model.yaml": "the family shows in names and shapes",
    # --- once per run, not once per rank: it may never have been there
    "runs/*/training_args.bin": "of no use to a resume",
    "runs/accelerate_*/scheduler.bin": "what was registered; maybe nothing",
    "runs/accelerate_*/custom_checkpoint_0.pkl":
        "what was registered; maybe nothing",
    "fairseq2_native/legacy046_tp1/*/rank_0.pt":
        "0.4's training state is one file at tp=1, and is not read",
    "megatron_zarr/handmade_*/obj.*/shard_0_1.pt":
        "the only part of an object, and zarr has no index",
    "megatron_zarr/*per_bucket_numel_unpadded/shard_0_1.pt":
        "older cores wrote none, and zarr has no index",
    # --- the last rank, where nothing says how many there are
    "dcp/hf_sharded_*/*-model-0000[12]-of-0000[12].safetensors":
        "a tensor ends where its last shard does",
    "dcp/hf_consolidate_fn/shard-00002-*":
        "a tensor ends where its last shard does",
    "vllm/tp2/model-rank-1-part-0.safetensors":
        "the files of one rank are a checkpoint of one rank",
}

# What may be named instead of the file: its owner.
MEANT = {
    "deepspeed/*/latest": r"global_step2 \(deepspeed\)",
    "deepspeed/zero0_*_model_states.pt": "not a recognized checkpoint",
    "*/mp_rank_*_model_states.pt":
        r"no \*_model_states.pt|model states of mp_rank|whose model states",
    "*/zero_pp_rank_*_model_states.pt":
        r"model states of (mp_rank|data-parallel rank|1 data|3 data)",
    "*_optim_states.pt":
        r"partition \d of \d .* is missing|has 1 partitions",
    "dcp/nocollectives_w2/*": "a rank's part was not saved",
    "dcp/hf_*": "a rank's file is missing",
    "fairseq2_native/*/model.pt": "not a recognized checkpoint",
    "fairseq2_native/*/model.0.pt": "not a recognized checkpoint",
    "fairseq2_native/*/model.1.pt": "files are missing, or model.yaml",
    "fairseq2_native/*/model/*/sdp_00.pt": "not a recognized checkpoint",
    "fairseq2_native/*/model/*": r"files are missing|has as many sdp files",
    "fairseq2_native/*/optimizer/*":
        r"the model's are of pp=|has as many sdp files",
    "fairseq2_native/*/model.yaml": "family is not known",
    "fsdp/fairscale_w3/*": "not a recognized checkpoint|flat tensor of 2",
    "fsdp/*rank*.pt": "files of the other ranks hold the rest",
    "torch/dtensor_mesh/*": "files of the other ranks hold the rest",
    "megatron_legacy/*": r"expert-parallel rank \d|parts of expert tensor",
    "megatron_zarr/*/shard_*.pt": "object_grid|missing_object",
    "meta/*/consolidated.01.pth": "are all files of the checkpoint here",
    "modelopt/*.index.json":
        r"is in two files|not a recognized|config.json asks for it",
    "olmo_core_v1/checkpointer_mixed_w4/metadata.json": "is in two files",
    "runs/nanotron_tp2/*/model_weight*":
        r"that of rank \d is missing|is in two parts",
    "vllm/tp2/model-rank-0-part-1.safetensors": "is the last part",
}
USED = collections.Counter()
RAN = collections.Counter()
KINDS = (".pt", ".pth", ".bin", ".pkl", ".json", ".safetensors")


def row_of(table, name, kind):
    for pattern in table:
        if fnmatch.fnmatch(name, pattern):
            USED[kind, pattern] += 1
            return table[pattern]
    return None


def is_named(name, text):
    path = name.split("/")
    if path[-1] in text or "/".join(path[-3:-1]) in text:
        return True
    return path[-2].startswith("mp_rank_") and path[-2][:10] in text


def verify(path):
    result = CKPT.run("verify", path, "--quick")
    check(result.code in (0, 1, 3, 4, 5), f"a crash or a bug\n{result}")
    return result, result.out + result.err


def judge(name, result, text, wrong):
    if result.code:
        if not is_named(name, text):
            pattern = row_of(MEANT, name, "meant")
            if not pattern or not re.search(pattern, text):
                wrong.append(f"{name}: nothing names it: {text.strip()[:300]}")
        return
    why = row_of(UNSEEN, name, "unseen")
    if why is None:
        wrong.append(f"{name}: verify finds it whole without")


def test_deleted(folder, case):
    copy = folder / "copy"
    shutil.copytree(case / "ckpt", copy)
    result, text = verify(copy)
    check(not result.code, f"the whole one is refused\n{text}")
    RAN["deleted"] += 1
    wrong, aside = [], folder / "aside"
    for path in sorted(p for p in copy.rglob("*") if p.is_file()):
        name = f"{case.parent.name}/{case.name}/{path.relative_to(copy)}"
        os.rename(path, aside)
        judge(name, *verify(copy), wrong)
        os.rename(aside, path)
    check(not wrong, "\n".join(wrong))


def test_emptied(folder, case):
    """No such file is ever empty, whether needed or not."""
    copy = folder / "copy"
    shutil.copytree(case / "ckpt", copy)
    wrong = []
    for path in sorted(p for p in copy.rglob("*") if p.suffix in KINDS):
        content = path.read_bytes()
        path.write_bytes(b"")
        name = f"{case.parent.name}/{case.name}/{path.relative_to(copy)}"
        result, text = verify(copy)
        if not result.code:
            wrong.append(f"{name}: verify finds it whole")
        elif not is_named(name, text) and "not a recognized" not in text:
            pattern = row_of(MEANT, name, "meant")
            if not pattern or not re.search(pattern, text):
                wrong.append(f"{name}: nothing names it: {text[:300]}")
        path.write_bytes(content)
    check(not wrong, "\n".join(wrong))


def test_rows_needed(folder, cases):
    """Each row above has a file; otherwise it hides what is now detected."""
    if RAN["deleted"] < cases:
        raise Skip("not all cases were run")
    idle = [f"{kind}: {pattern}" for kind, table in
            (("unseen", UNSEEN), ("meant", MEANT)) for pattern in table
            if not USED[kind, pattern]]
    check(not idle, "nothing needs these rows any more:\n  "
          + "\n  ".join(idle))


def is_apart(name):
    return name in APART or name.startswith(APART_FOLDERS)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    cases = 0
    for case in sorted(DATA.glob("*/*/ckpt")):
        name = f"{case.parts[-3]}/{case.parts[-2]}"
        if name.startswith("bad/") or is_apart(name) or not case.is_dir():
            continue
        if sum(1 for p in case.rglob("*") if p.is_file()) < 2:
            continue
        cases += 1
        suite.add(f"{name}: deleted", test_deleted, case.parent)
        suite.add(f"{name}: emptied", test_emptied, case.parent)
    check(cases >= 100, f"only {cases} goldens: tests/data is cut")
    suite.add("every row is needed", test_rows_needed, cases)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
