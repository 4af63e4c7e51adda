#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""--max-mem of each command that opens or plans, with each format that has many
tensors or files: the command succeeds or is refused (7), and never takes more
than the bound plus 64 MiB to find out. A refusal names a bound that is enough.

The checkpoint is a llama of 1,500 layers and 18 rows, written to each format
with its own ranks.

The largest resident set is the kernel's figure for the process. A child's
starts from its parent's, so this one stays small."""

import json
import multiprocessing
import random
import re
import struct
import subprocess
import sys

from support import DATA, HERE, Suite, check

CKPT = None  # set by prepare
MIB = 1 << 20
SLACK = 64 * MIB
LAYERS = 1500
LITTLE = "16MiB"  # the smallest allowed
FULL = False  # set by prepare

# How each format is made; only DeepSpeed's engine makes DeepSpeed's.
FORMATS = {
    "safetensors": [],
    "torch": [],
    "dcp": ["--dp", "8"],
    "megatron_torch_dist": ["--tp", "2", "--dp", "4"],
    "megatron_zarr": ["--tp", "2"],
    "megatron_legacy": ["--tp", "2", "--pp", "4"],
    "fairseq2": ["--tp", "2", "--dp", "2"],
    "olmo_core": ["--dp", "4"],
    "olmo_core_v1": ["--dp", "4"],
    "meta": ["--tp", "2"],
    "modelopt": ["--pp", "2"],
    "vllm": ["--tp", "2"],
}


def rows(layer):
    p = f"model.layers.{layer}."
    for name, shape in (("self_attn.q_proj", [8, 8]),
                        ("self_attn.k_proj", [8, 8]),
                        ("self_attn.v_proj", [8, 8]),
                        ("self_attn.o_proj", [8, 8]), ("mlp.gate_proj", [8, 8]),
                        ("mlp.up_proj", [8, 8]), ("mlp.down_proj", [8, 8]),
                        ("input_layernorm", [8]),
                        ("post_attention_layernorm", [8])):
        yield f"{p}{name}.weight", shape


def write_model(folder, layers=LAYERS):
    """What transformers would save for a llama that is mostly layers."""
    config = json.loads((DATA / "hf/llama/ckpt/config.json").read_text())
    config.update(num_hidden_layers=layers, hidden_size=8, head_dim=4,
                  intermediate_size=8, num_attention_heads=2,
                  num_key_value_heads=2, vocab_size=16, dtype="bfloat16",
                  tie_word_embeddings=False)
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(config))
    tensors = [("model.embed_tokens.weight", [16, 8]), ("lm_head.weight",
                                                        [16, 8]),
               ("model.norm.weight", [8])]
    for layer in range(layers):
        tensors += rows(layer)
    at, lines = 0, ['"__metadata__":{"format":"pt"}']
    for name, shape in tensors:
        size = 2 * shape[0] * (shape[1] if len(shape) > 1 else 1)
        lines.append(f'"{name}":{{"dtype":"BF16","shape":{shape},'
                     f'"data_offsets":[{at},{at + size}]}}')
        at += size
    header = ("{" + ",".join(lines) + "}").encode()
    header += b" " * (-len(header) % 8)
    with open(folder / "model.safetensors", "wb") as file:
        file.write(struct.pack("<Q", len(header)) + header)
        # No pickle opcodes: among so many small records, some would be one.
        file.write(random.Random(5).randbytes(at).translate(
            bytes(0xC0 | b & 0x3F for b in range(256))))
    return folder


def commands(path, out):
    """Each command that opens or plans; what is planned isn't written here. Of
    two that take the same path through memory, each format has one, by turns;
    all with --full."""
    turn = list(FORMATS).index(path.name) if path.name in FORMATS else 0
    for number, lines in enumerate((
            (["inspect", path, "--json"], ["inspect", path],
             ["show", path, "nowhere"]),
            (["verify", path], ["verify", path, "--quick"]),
            (["verify", path, path], ["diff", path, path]),
            (["convert", path, out, "--to", "safetensors", "--dry-run"],
             ["unshard", path, out.with_suffix(".safetensors"), "--dry-run"]),
            (["convert", path, out, "--to", "dcp", "--dp", "64", "--dry-run"],),
            (["reshard", path, out, "--dry-run"],))):
        yield from lines if FULL else [lines[(turn + number) % len(lines)]]


def bounded(argv, bound=LITTLE):
    done = CKPT.run(*argv, "-q", "--max-mem", bound)
    name = " ".join([argv[0], *(str(a) for a in argv[2:])])
    check(done.code in (0, 3, 5, 7), f"{done}")
    most = int(bound[:-3]) * MIB + SLACK
    check(done.rss <= most,
          f"{name}: {done.rss / MIB:.0f} MiB with {bound}, exit {done.code}: "
          f"{done}")
    return done


def enough_for(result):
    found = re.search(r"--max-mem (\d+MiB)", result.err)
    check(found, f"no figure: {result}")
    return found[1]


def look_at(path, out):
    """All commands with too little memory; of those refused, the figures of
    the first and the last are tried, with --full all."""
    refused, most = [], 0
    for argv in commands(path, out):
        done = bounded(argv)
        most = max(most, done.rss)
        if done.code == 7:
            refused.append((argv, enough_for(done)))
    check(not out.exists(), f"{out} was begun")
    print(f"  {most / MIB:.0f} MiB at most", flush=True)
    for argv, figure in refused if FULL else {
            str(one): one for one in (refused[:1] + refused[-1:])}.values():
        judge(argv, figure)


def judge(argv, figure):
    """The figure of a refusal is enough, at once. A large one is no more than
    what is needed by two thirds to read, and four times that to write: a target
    of an index that has no room is not laid out. Below that, what any process
    takes counts."""
    done = bounded(argv, figure)
    check(done.code != 7, f"{figure} is not enough: {done}")
    mib = int(figure[:-3])
    if mib < 64:
        return
    reads = argv[0] in ("inspect", "show", "verify", "diff")
    less = f"{mib * 6 // 10 if reads else mib // 4}MiB"
    check(bounded(argv, less).code == 7, f"{less} would do, not {figure}")


def test_format(folder, name):
    source = write_model(folder / "hf")
    path = source
    if name != "safetensors":
        path = folder / name
        CKPT.ok("convert", source, path, "--to", name, *FORMATS[name], "-q",
                "--no-fsync")
    look_at(path, folder / "out")


def content(path):
    """{name: (dtype, shape, bytes)} of a safetensors file."""
    data = path.read_bytes()
    (size,) = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    data = data[8 + size:]
    return {name: (row["dtype"], row["shape"],
                   data[slice(*row["data_offsets"])])
            for name, row in header.items()}


def test_in_place(folder):
    """Plans of more than 131,072 pieces replace the pieces: the bytes arrive, a
    damaged record is named with its tensor, and the manifest knows what is
    around tensors."""
    source = write_model(folder / "hf", 2500)  # 180,000 pieces over 8 ranks
    ranks, other, back = folder / "dp8", folder / "dp4", folder / "back"
    CKPT.ok("convert", source, ranks, "--to", "dcp", "--dp", "8", "-q",
            "--no-fsync")
    CKPT.ok("reshard", ranks, other, "--dp", "4", "-q", "--no-fsync")
    CKPT.ok("verify", other, "-q")
    CKPT.ok("convert", other, back, "--to", "safetensors", "-q", "--no-fsync")
    check(content(back / "model.safetensors") ==
          content(source / "model.safetensors"), "the bytes are others")
    # A byte of an element, in the middle of a file.
    path = sorted(ranks.glob("*.distcp"))[3]
    data = bytearray(path.read_bytes())
    name = b"archive/data/0"
    at = data.index(name + b"FB", len(data) // 2)
    extra = int.from_bytes(data[at - 2:at], "little")
    data[at + len(name) + extra] ^= 1
    path.write_bytes(data)
    damaged = CKPT.run("reshard", ranks, folder / "never", "--dp", "4", "-q",
                       "--no-fsync").want(4)
    check("model.layers." in damaged.err, f"no tensor is named: {damaged}")
    check(not (folder / "never").exists(), "a damaged copy")


def test_index(folder):
    """An index whose values alone are more than the bound: the figure is
    enough, whatever share of them had been read when it was refused. To read
    its 216,000 pieces takes 15 s of processor, so that is done with --full."""
    source, ranks = write_model(folder / "hf", 3000), folder / "dcp"
    CKPT.ok("convert", source, ranks, "--to", "dcp", "--dp", "8", "-q",
            "--no-fsync")
    for bound in ("16MiB", "40MiB", "64MiB") if FULL else ("16MiB", "64MiB"):
        for argv in (["inspect", ranks],
                     ["verify", ranks, *([] if FULL else ["--quick"])],
                     ["convert", ranks, folder / "x", "--to", "dcp", "--dp",
                      "64", "--dry-run"]):
            done = bounded(argv, bound)
            check(done.code == 7, f"{argv[0]} with {bound}: {done}")
            judge(argv, enough_for(done))


def test_ranks(folder):
    """Files of many ranks are opened by many threads: the bound may be reached
    on any of them."""
    source = folder / "ranks"
    subprocess.run(
        [sys.executable, HERE.parent.parent / "scripts/make_rank_files.py",
         "--optimizer", "--model", "8b", "--tp", "8", "--pp", "1", "--dp", "16",
         source], check=True, stdout=subprocess.DEVNULL)
    refused = 0
    for argv in commands(source, folder / "out"):
        if argv[0] in ("verify", "diff") and "--quick" not in argv:
            continue  # holes of many GB
        done = bounded(argv)
        if done.code == 7:
            refused += 1
            enough_for(done)
    check(refused, "nothing was refused")


def stated_memory(result):
    found = re.search(r"at most ([\d.]+) (MiB|GiB) of memory", result.out)
    check(found, f"no figure: {result}")
    return float(found[1]) * (MIB if found[2] == "MiB" else 1 << 30)


def test_stated(folder):
    """What a dry run says is not exceeded, and not much more than is taken:
    with few and with many ranks, and beside a manifest of the source."""
    source = write_model(folder / "hf")
    ranks = folder / "ranks"
    CKPT.ok("convert", source, ranks, "--to", "dcp", "--dp", "16", "-q",
            "--no-fsync")
    for number, (path, words) in enumerate((
            (source, "--to safetensors"), (source, "--to dcp --dp 16"),
            (source, "--to fairseq2 --tp 2 --dp 2"),
            (source, "--to megatron_torch_dist --tp 2"),
            (ranks, "--to dcp --dp 4"), (ranks, "--to torch"))):
        out = folder / f"out{number}"
        argv = ["convert", path, out, *words.split(), "--max-mem", "64MiB"]
        stated = stated_memory(CKPT.ok(*argv, "--dry-run"))
        # How much is in flight at once is the scheduler's, too.
        taken = 0
        for _ in range(30):
            taken = max(taken, CKPT.ok(*argv, "-q", "--no-fsync",
                                       "--overwrite").rss)
            if stated <= 1.3 * taken:
                break
        print(f"  {path.name} {words}: {taken / MIB:.0f} MiB, stated "
              f"{stated / MIB:.0f}", flush=True)
        check(CKPT.sanitized or taken <= stated <= 1.3 * taken,
              f"{words}: {taken / MIB:.0f} MiB, stated {stated / MIB:.0f}")


def apart(folder, test):
    """A test that takes memory, in a process that ends with it: in whatever
    order, the others are forked from a small one."""
    with multiprocessing.get_context("fork").Pool(1) as pool:
        pool.apply(test, (folder,))


def main():
    suite = Suite(__doc__)
    for name in FORMATS:
        suite.add(name, test_format, name)
    suite.add("ranks", test_ranks)
    suite.add("index", test_index)
    suite.add("stated", test_stated)
    suite.add("in place", apart, test_in_place)

    def prepare(suite, ckpt):
        global CKPT, FULL
        CKPT, FULL = ckpt, suite.full
    suite.main(prepare)


if __name__ == "__main__":
    main()
