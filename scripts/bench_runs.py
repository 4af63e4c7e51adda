#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A trainer's folder into one model: ckpt beside the trainers' own mergers.

    scripts/bench_runs.py [--mib N] [--rounds N] [--peers DIR[:DIR]]

A step of Accelerate (FSDP, DCP) is made with torch; ckpt writes it as verl's
and Lightning's; a checkpoint of ZeRO 2 is made in DeepSpeed's form. Then each
merger and ckpt, in turn, do the same work: clock and peak RSS of the process,
as the kernel counts them, the median of the rounds. No merger syncs its files, so
ckpt runs with --no-fsync. Prints a Markdown table.

Run it with .venv/bin/python. Peers that .venv lacks are installed into folders
of it (pip, without dependencies); DIR holds others. What can't be had is named
and left out.
"""

import argparse
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
MIB = 1 << 20

SHAPES = """
H, F, V = 1024, 4096, 8192
def layer(i):
    p = f"model.layers.{i}."
    return {p + "self_attn.q_proj.weight": (H, H), p + "self_attn.k_proj.weight": (H, H),
        p + "self_attn.v_proj.weight": (H, H), p + "self_attn.o_proj.weight": (H, H),
        p + "mlp.gate_proj.weight": (F, H), p + "mlp.up_proj.weight": (F, H),
        p + "mlp.down_proj.weight": (H, F), p + "input_layernorm.weight": (H,),
        p + "post_attention_layernorm.weight": (H,)}
def layers_of(mib):
    return max(1, (mib * 2**20 // 4 - 2 * V * H) // (4 * H * H + 3 * F * H))
def shapes_of(mib):
    shapes = {"model.embed_tokens.weight": (V, H)}
    for i in range(layers_of(mib)):
        shapes |= layer(i)
    return shapes | {"model.norm.weight": (H,), "lm_head.weight": (V, H)}
"""

MAKE = """
import json, sys, torch, torch.distributed.checkpoint as dcp
exec(sys.argv[3])
step, mib = sys.argv[1], int(sys.argv[2])
shapes = shapes_of(mib)
layers = layers_of(mib)
torch.manual_seed(0)
weights = {"model." + n: torch.randn(s) for n, s in shapes.items()}
dcp.save(weights, checkpoint_id=step + "/pytorch_model_fsdp_0", no_dist=True)
torch.save({"step": 0}, step + "/random_states_0.pkl")
json.dump({"model_type": "llama", "architectures": ["LlamaForCausalLM"],
    "hidden_size": H, "intermediate_size": F, "num_hidden_layers": layers,
    "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": V,
    "tie_word_embeddings": False}, open(step + "/config.json", "w"))
"""

# Four ranks of ZeRO 2, as DeepSpeed 0.19 writes them: f32 masters and moments in
# flat partitions, the module in bf16.
MAKE_ZERO = """
import sys, torch
from collections import OrderedDict
exec(sys.argv[3])
folder, mib = sys.argv[1], int(sys.argv[2])
shapes = shapes_of(mib)
torch.manual_seed(1)
ranks = 4
total = sum(torch.Size(s).numel() for s in shapes.values())
part = -(-total // (2 * ranks)) * 2
used = [max(0, min(part, total - r * part)) for r in range(ranks)]
flat = torch.zeros(part * ranks)
flat[:total].normal_()
half = flat[:total].to(torch.bfloat16)
module, at = OrderedDict(), 0
for name, shape in shapes.items():
    count = torch.Size(shape).numel()
    module[name] = half[at:at + count].view(shape)
    at += count
config = {"zero_optimization": {"stage": 2}, "bf16": {"enabled": True}}
torch.save({"module": module, "buffer_names": [], "optimizer": None,
    "param_shapes": [OrderedDict((n, torch.Size(s)) for n, s in shapes.items())],
    "frozen_param_shapes": OrderedDict(), "shared_params": {},
    "frozen_param_fragments": OrderedDict(), "lr_scheduler": None,
    "global_steps": 1, "skipped_steps": 0, "dp_world_size": ranks,
    "mp_world_size": 1, "ds_config": config, "ds_version": "0.19.8"},
    folder + "/mp_rank_00_model_states.pt")
for r in range(ranks):
    mine = flat[r * part:(r + 1) * part]
    where, start = OrderedDict(), 0
    torch.save({"optimizer_state_dict": {"zero_stage": 2, "overflow": False,
        "base_optimizer_state": {"state": {0: {"step": torch.tensor(1.),
            "exp_avg": mine.clone(), "exp_avg_sq": mine.abs()}},
            "param_groups": [{"lr": 1e-3, "params": [0]}]},
        "single_partition_of_fp32_groups": [mine[:used[r]].clone()],
        "group_paddings": [part - used[r]], "partition_count": [ranks],
        "ds_version": "0.19.8"}, "ds_config": config, "ds_version": "0.19.8"},
        folder + f"/bf16_zero_pp_rank_{r}_mp_rank_00_optim_states.pt")
"""

ZERO = """
import sys
from deepspeed.utils.zero_to_fp32 import (
    convert_zero_checkpoint_to_fp32_state_dict as convert)
convert(sys.argv[1], sys.argv[2], safe_serialization=True)
"""

# Folders of .venv, and what they hold, without dependencies.
PEERS = {
    "deepspeed": "tests/requirements/deepspeed.txt",
    "lightning": "tests/requirements/lightning.txt",
    "verl": "verl==0.9.1",
}

ACCELERATE = """
import sys
from accelerate.utils import merge_fsdp_weights
merge_fsdp_weights(sys.argv[1] + "/pytorch_model_fsdp_0", sys.argv[2])
"""

# verl.model_merger's own classes. Importing verl itself needs ray and more, so
# its package is entered without its __init__.
VERL = """
import sys, types, importlib.machinery
from pathlib import Path
where = next(Path(p, "verl") for p in sys.path if Path(p, "verl/model_merger").is_dir())
for name, path in (("verl", where), ("verl.utils", where / "utils"),
                   ("verl.model_merger", where / "model_merger")):
    module = types.ModuleType(name); module.__path__ = [str(path)]
    sys.modules[name] = module
sys.modules["verl.utils"].hf_processor = lambda *a, **k: None
sys.modules["verl.utils"].hf_tokenizer = lambda *a, **k: None
from verl.model_merger.base_model_merger import ModelMergerConfig
from verl.model_merger.fsdp_model_merger import FSDPModelMerger
config = ModelMergerConfig(operation="merge", backend="fsdp", local_dir=sys.argv[1],
    target_dir=sys.argv[2], hf_model_config_path=sys.argv[1] + "/huggingface")
FSDPModelMerger(config).merge_and_save()
"""

LIGHTNING = """
import sys, torch
from pathlib import Path
from lightning.fabric.utilities.load import _load_distributed_checkpoint
torch.save(_load_distributed_checkpoint(Path(sys.argv[1])), sys.argv[2])
"""


def measured(command, environment, log):
    """Clock seconds, processor seconds and MiB of one process."""
    begin = time.monotonic()
    with open(log, "w") as out:
        one = subprocess.Popen([str(c) for c in command], env=environment,
                               stdout=out, stderr=subprocess.STDOUT)
        _, status, usage = os.wait4(one.pid, 0)
    seconds = time.monotonic() - begin
    one.returncode = os.waitstatus_to_exitcode(status)
    if one.returncode:
        raise RuntimeError(Path(log).read_text()[-1500:])
    return seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024


def install(options):
    """Installs the peers. Returns their folders, for PYTHONPATH."""
    folders = []
    for name, what in PEERS.items():
        folder = Path(sys.prefix) / name
        folders.append(str(folder))
        given = any(Path(p, name).is_dir() for p in options.peers.split(":"))
        if given or (folder / name).is_dir():
            continue
        wanted = ["-r", ROOT / what] if what.endswith(".txt") else [what]
        done = subprocess.run(
            [sys.executable, "-m", "pip", "install", "-q", "--no-deps",
             "--disable-pip-version-check", "--target", folder, *wanted],
            check=False)
        if done.returncode:
            print(f"{name}: pip can't install it", file=sys.stderr)
    return folders


def clear(path):
    if path.is_dir():
        shutil.rmtree(path)
    elif path.exists():
        path.unlink()


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--peers", default="")
    parser.add_argument("--ckpt", default=str(ROOT / "build/bin/ckpt"))
    options = parser.parse_args()
    python = sys.executable
    paths = [str(Path(sys.prefix) / "transformers_5.12.1")]
    paths += [p for p in options.peers.split(":") if p] + install(options)
    environment = {**os.environ, "PYTHONPATH": ":".join(paths),
                   "HF_HUB_OFFLINE": "1",
                   "DS_ACCELERATOR": "cpu", "TOKENIZERS_PARALLELISM": "false"}
    with tempfile.TemporaryDirectory(prefix="bench_runs_") as temporary:
        base = Path(temporary)
        step = base / "step"
        for code, folder in ((MAKE, step),
                             (MAKE_ZERO, base / "zero/global_step1")):
            folder.mkdir(parents=True)
            subprocess.run([python, "-W", "ignore", "-c", code, folder,
                            str(options.mib), SHAPES], check=True,
                           env=environment)
        (base / "zero/latest").write_text("global_step1")
        size = sum(p.stat().st_size for p in step.rglob("*.distcp")) / MIB
        convert = [options.ckpt, "convert"]
        made = {}
        for trainer, name in (("verl", "verl"), ("lightning", "last.ckpt")):
            made[trainer] = base / name
            subprocess.run([*convert, step, made[trainer], "--to", "run",
                            "--trainer", trainer, "--dp", "4", "-q"],
                           check=True)
        cases = [
            ("accelerate's merge_fsdp_weights", ACCELERATE, step, "out",
             ["--to", "safetensors"]),
            ("verl's model_merger (bf16)", VERL, made["verl"], "out",
             ["--to", "safetensors", "--dtype", "bf16"]),
            ("Lightning's consolidate", LIGHTNING, made["lightning"],
             "out.ckpt", ["--to", "torch"]),
            ("DeepSpeed's zero_to_fp32", ZERO, base / "zero", "out",
             ["--to", "safetensors", "--model-only"]),
        ]
        print(f"{size:.0f} MiB of f32, medians of {options.rounds}, "
              f"load {os.getloadavg()[0]:.1f}\n")
        print("| merger | clock | processor | peak RSS | ckpt | processor "
              "| peak RSS | ratio | of processor | same |")
        print("|---|---|---|---|---|---|---|---|---|---|")
        for name, code, source, target, arguments in cases:
            peer, mine = [], []
            out = base / target
            commands = {
                "peer": ([python, "-W", "ignore", "-c", code, source, out],
                         peer),
                "ckpt": ([*convert, source, out, *arguments, "--no-fsync", "-q"],
                         mine)}
            why = ""
            kept = base / f"kept_{target}"
            for _ in range(options.rounds):
                for what, (command, results) in commands.items():
                    clear(out)
                    try:
                        results.append(measured(
                            command, environment, base / "log"))
                    except RuntimeError as error:
                        why = f"{what}: {str(error).strip()[-300:]}"
                        break
                    if what == "peer":
                        clear(kept)
                        out.rename(kept)
                if why:
                    break
            same = not why and subprocess.run(
                [options.ckpt, "verify", kept, out], capture_output=True,
                check=False).returncode == 0
            clear(out)
            clear(kept)
            if why:
                print(f"| {name} | not run |" + " |" * 8, flush=True)
                print(why, file=sys.stderr)
                continue
            a, b = ([statistics.median(x) for x in zip(*one)]
                    for one in (peer, mine))
            print(f"| {name} | {a[0]:.2f} s | {a[1]:.2f} s | {a[2]:.0f} MiB "
                  f"| {b[0]:.2f} s | {b[1]:.2f} s | {b[2]:.0f} MiB "
                  f"| {a[0] / b[0]:.1f} | {a[1] / b[1]:.1f} "
                  f"| {'yes' if same else 'no'} |", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
