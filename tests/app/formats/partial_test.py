#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a part of a checkpoint costs: with --keys, --layers or --blocks no byte
of other tensors is read. As the engine counts its reads (--json), and as the
kernel saw them.
"""

import json
import shutil
import subprocess

from dist_cases import dist_units
from golden_cases import all_units
from support import Skip, Suite, check, check_equal

CKPT = None  # set by prepare


def files_of(path):
    return [p for p in sorted(path.rglob("*")) if p.is_file()]


def header_bytes(path):
    """Headers, indexes and configs: everything but tensor data."""
    total = 0
    for file in files_of(path):
        if file.suffix == ".safetensors":
            with open(file, "rb") as f:
                total += 8 + int.from_bytes(f.read(8), "little")
        else:
            total += file.stat().st_size
    return total


def rank_case(folder, blocks=12, rows=1 << 16):
    """A model large enough that headers don't count."""
    from safetensors.torch import save_file
    import torch

    out = folder / "big"
    out.mkdir()
    config = {"model_type": "llama", "num_hidden_layers": blocks,
              "hidden_size": 16, "num_attention_heads": 4}
    (out / "config.json").write_text(json.dumps(config))
    weights = {}
    for file in range(3):
        tensors = {f"model.layers.{b}.mlp.up_proj.weight": torch.full(
            (rows, 16), b, dtype=torch.bfloat16)
            for b in range(file, blocks, 3)}
        name = f"model-{file + 1:05}-of-00003.safetensors"
        save_file(tensors, out / name, {"format": "pt"})
        weights |= dict.fromkeys(tensors, name)
    (out / "model.safetensors.index.json").write_text(json.dumps(
        {"metadata": {}, "weight_map": weights}))
    return out


PARTS = (["--keys", "*.5.*"], ["--layers", "2-3,7"], ["--blocks", "0,11"])


def chosen_bytes(path, options):
    return sum(t["bytes"] for t in CKPT.inspect(path, *options)["tensors"])


def test_partial_engine(folder):
    """No tensor byte is read that was not asked for, by the engine's own count,
    for every command that reads."""
    path = rank_case(folder)
    headers = header_bytes(path)
    for number, options in enumerate(PARTS):
        want = chosen_bytes(path, options)
        check(0 < want < 2 * 16 * (1 << 16) * 4, f"{want} bytes are chosen")
        commands = [
            ("inspect", path, "--digest"),
            ("unshard", path, folder / f"{number}.safetensors"),
            ("convert", path, folder / f"{number}t", "--to", "torch"),
            ("reshard", path, folder / f"{number}r"),
            ("reshard", path, folder / f"{number}m", "--to", "modelopt")]
        for command in commands:
            got = CKPT.ok(*command, *options, "--json").json()
            check_equal(got["bytes_read"], want, f"bytes of {command[0]}")
            # The start of a file is read once more to detect its format.
            most = 3 * headers + 4096 * len(files_of(path))
            check(got["header_bytes_read"] <= most,
                  f"{got['header_bytes_read']} bytes of headers, {headers} "
                  f"are there")


def test_partial_system(folder):
    """The same from outside: what the kernel saw the process read."""
    path = rank_case(folder)
    calls = "trace=read,pread64,readv,preadv,preadv2,mmap,copy_file_range"
    if not shutil.which("strace"):
        return check_accounting(folder, path)
    for options in PARTS:
        log = folder / "strace"
        result = subprocess.run(
            ["strace", "-f", "-y", "-e", calls, "-o", log, CKPT.path,
             "unshard", path, folder / "out.safetensors", "--overwrite",
             *options], capture_output=True, text=True)
        if "ptrace" in result.stderr:
            return check_accounting(folder, path)
        check_equal(result.returncode, 0, result.stderr)
        total = 0
        for line in log.read_text().splitlines():
            if str(path) in line and "= " in line:
                check("mmap(" not in line, f"payload is mapped: {line}")
                total += int(line.rsplit("= ", 1)[1].split()[0])
        most = chosen_bytes(path, options) + 4 * header_bytes(path) + 65536
        check(total <= most, f"{total} bytes were read, at most {most}")
    return None


def check_accounting(folder, path):
    """Without strace: the kernel's counters, for the whole process."""
    whole = read_by(folder, path, [])
    for options in PARTS:
        want = chosen_bytes(path, options)
        everything = chosen_bytes(path, [])
        saved = whole - read_by(folder, path, options)
        check(saved >= (everything - want) - 65536,
              f"{options}: only {saved} bytes less are read")


def read_by(folder, path, options):
    """rchar of a run: bytes that went through read calls."""
    code = ("import os,sys,subprocess;"
            "p=subprocess.run(sys.argv[1:],stdout=subprocess.DEVNULL);"
            "print(open('/proc/self/io').read());sys.exit(p.returncode)")
    result = subprocess.run(
        ["/usr/bin/env", "python3", "-c", code, CKPT.path, "inspect", path,
         "--digest", *options], capture_output=True, text=True)
    if "rchar" not in result.stdout:
        raise Skip("neither strace nor /proc/self/io")
    check_equal(result.returncode, 0, result.stderr)
    return int(result.stdout.split("rchar: ")[1].split()[0])


# ------------------------------------------------------------ all the formats
def test_one_tensor(folder, unit):
    """Only the largest tensor, of every golden."""
    document = CKPT.inspect(unit.path)
    readable = [t for t in document["tensors"]
                if t["name"] not in unit.unreadable and
                not set(t["name"]) & set("*?[]{},\\")]
    if not readable:
        raise Skip("no tensor that a pattern can name")
    tensor = max(readable, key=lambda t: t["bytes"])
    part = CKPT.inspect(unit.path, "--digest", "--keys", tensor["name"])
    check_equal([t["name"] for t in part["tensors"]], [tensor["name"]],
                "names")
    # Rows that alternate closely (fused weights in old orders) are read
    # together with the gaps between them: less than a page here.
    check(part["bytes_read"] <= max(tensor["bytes"], 4096),
          f"{part['bytes_read']} bytes are read, {tensor['name']} has "
          f"{tensor['bytes']}")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for unit in all_units() + dist_units():
        suite.add(f"{unit.name}: one tensor", test_one_tensor, unit)
    suite.add("parts of a model, by the engine", test_partial_engine)
    suite.add("parts of a model, by the kernel", test_partial_system)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
