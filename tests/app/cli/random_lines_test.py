#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Random command lines over the checkpoints of tests/data. Whatever is asked:
the exit status is one of those documented, a refusal names its reason and leaves
nothing, the source stays as it is, and what was written is whole and holds what
the source holds.
"""

import random
import shutil

from support import DATA, Suite, check

CKPT = None
BATCH = 10
FORMATS = ("safetensors torch dcp fairseq2 megatron_legacy megatron_torch_dist "
           "megatron_zarr olmo_core olmo_core_v1 meta modelopt vllm deepspeed "
           "fsdp").split()

SELECT = {
    "--keys": ["*", "*weight", "model.*", "*layers.0*", "nothing*", "*.bias"],
    "--exclude": ["*bias", "*norm*", "optim*", "lm_head*"],
    "--layers": ["0", "0-1", "1-3", "0,2", "5-9"],
    "--experts": ["0", "0-1", "0-3", "1,3"],
    "--model-only": None,
    "--optim-only": None,
}
READ = {
    "--from": FORMATS,
    "--trainer": ["none", "hf_trainer", "accelerate", "verl"],
    "--restrict": None,
    "-j": ["1", "2", "7"],
    "--max-mem": ["1MiB", "16MiB", "64MiB"],
    "--json": None,
    "-v": None,
    "-q": None,
}
GRID = {
    "--tp": ["1", "2", "3", "4", "2:4"],
    "--pp": ["1", "2", "3"],
    "--dp": ["1", "2", "4"],
    "--ep": ["1", "2", "4"],
    "--etp": ["1", "2"],
    "--vpp": ["2"],
    "--pp-layout": ["1,1", "2,1", "3"],
    "--make-vocab-size-divisible-by": ["1", "8", "128"],
}
# Bytes as they were, in other files.
ARRANGE = {
    "--max-shard-size": ["1", "1KB", "4KB", "1MB"],
    "--io": ["auto", "buffered", "direct", "mmap"],
    "--no-manifest": None,
    "--no-fsync": None,
    "--verify": None,
    "--dry-run": None,
    "--ignore-checksums": None,
    "--if-exists": ["skip", "fail", "replace"],
}
CHANGE = {
    "--dtype": ["f32", "bf16", "f16", "f8e4m3"],
    "--quantize": ["fp8-block", "q8_0"],
    "--vocab-size": ["1", "5", "16", "100"],
    "--set": ["rope_theta=10000", "vocab_size=7", "hidden_act=gelu"],
    "--drop": ["*bias", "*", "rope*"],
    "--allow-missing": ["*"],
    "--allow-unsaid": ["*"],
    "--allow-overflow": ["saturate", "inf"],
    "--dialect": ["hf", "megatron", "fairseq2", "meta", "none"],
}


def some(draw, *tables, most=3):
    """A few options, each with one of its values."""
    table = {name: values for one in tables for name, values in one.items()}
    line = []
    for name in draw.sample(sorted(table), draw.randint(0, most)):
        line += [name] if table[name] is None else [name,
                                                    draw.choice(table[name])]
    return line


def state_of(path):
    files = sorted(path.rglob("*")) if path.is_dir() else [path]
    return [(str(file), file.lstat().st_size, file.lstat().st_mtime_ns)
            for file in files if not file.is_dir()]


def written(line, result, target):
    """What a command wrote is whole; if it only moved bytes, they are all
    there."""
    found = sorted(target.parent.iterdir())
    if "--dry-run" in line:
        return check(not found, f"a dry run wrote {found}\n{result}")
    manifest = target.parent / f"{target.name}.ckpt-manifest.json"
    check(set(found) - {manifest} == {target},
          f"{found} for {target}\n{result}")
    partial = any(name in line for name in SELECT)
    if not partial:
        CKPT.ok("verify", target, "--deep")
    moved = line[0] == "reshard" and not any(
        name in line for table in (SELECT, CHANGE) for name in table)
    if moved and "--trainer" not in line and "--from" not in line:
        CKPT.ok("verify", line[1], target)


def one_line(draw, sources, folder):
    source, target = draw.choice(sources), folder / "out"
    command = draw.choice(["convert"] * 4 + ["reshard"] * 3 +
                          ["unshard", "inspect", "ls", "verify", "diff"])
    line = [command, source]
    if command == "convert":
        line += [target, "--to", draw.choice(FORMATS)]
        line += some(draw, SELECT, READ, GRID, ARRANGE, CHANGE)
    elif command == "reshard":
        line += [target, *some(draw, GRID, most=2)]
        line += some(draw, SELECT, READ, ARRANGE, most=2)
    elif command == "unshard":
        target = folder / draw.choice(["out", "out.safetensors", "out.pt"])
        line += [target, *some(draw, SELECT, READ, ARRANGE)]
    else:
        line += [draw.choice(sources)] if command == "diff" else []
        line += some(draw, SELECT, READ)
    before = state_of(source)
    result = CKPT.run(*line)
    check(0 <= result.code <= 8, str(result))
    check(state_of(source) == before, f"the source changed\n{result}")
    if result.code > 1:
        check("error" in result.err, f"no reason given\n{result}")
    if command in ("convert", "reshard", "unshard"):
        if result.code == 0:
            written([*map(str, line)], result, target)
        else:
            left = sorted(path.name for path in folder.iterdir())
            check(not left, f"left behind: {left}\n{result}")


def lines(folder, sources, seed):
    draw = random.Random(seed)
    for number in range(BATCH):
        place = folder / str(number)
        place.mkdir()
        one_line(draw, sources, place)
        shutil.rmtree(place)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    sources = sorted(path for path in DATA.glob("*/*/ckpt")
                     if path.parts[-3] not in ("bad", "zip"))
    for seed in range(300 if suite.full else 10):
        suite.add(f"lines {seed * BATCH} to {seed * BATCH + BATCH - 1}", lines,
                  sources, seed)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
