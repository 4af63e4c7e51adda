# SPDX-License-Identifier: Apache-2.0
"""What is measured: one line for each promise, with what it is compared with.

A case runs in turn with the copy of its source (`cp -r`), or with another
command that does the same work. The results are ratios of medians.
"""

from dataclasses import dataclass


@dataclass
class Case:
    row: str  # in the table of promises
    label: str
    argv: list  # "OUT" is the target
    source: str  # what the base copies
    base: str = "cp"  # the command to compare with
    clock: float = None  # promised ratios
    processor: float = None
    scale: float = 1.0  # of the base: bytes moved / bytes copied


def cases(ckpt, at):
    """`at`: folders by name."""
    quick = ["--no-fsync", "-q"]

    def convert(source, *options, out="OUT"):
        return [ckpt, "convert", at[source], out, *quick, *options]

    def reshard(source, *options):
        return [ckpt, "reshard", at[source], "OUT", *quick, *options]

    shard = str(max(1, at["bytes"] // 4))
    hf = ["--to", "safetensors", "--max-shard-size", shard]
    found = [
        # The cost of any program that only reads and writes each byte.
        Case("1", "dd bs=1M of each file, for scale", dd(at["f2"]), "f2"),
        Case("1", "the same, two at once", dd(at["f2"], 2), "f2"),
        Case("1", "TP 4 to 8 (fairseq2)", reshard("f2", "--tp", "8"), "f2",
             clock=1.0, processor=1.1),
        Case("1", "TP 4 to 2 (fairseq2)", reshard("f2", "--tp", "2"), "f2",
             clock=1.0, processor=1.1),
        Case("1", "shards of another size (HF)", convert("hf", *hf), "hf",
             clock=1.0, processor=1.1),
        Case("1", "TP 4 to 8, one thread",
             reshard("f2", "--tp", "8", "-j", "1"), "f2",
             clock=1.0, processor=1.1),
        Case("1", "shards of another size, one thread",
             convert("hf", *hf, "-j", "1"), "hf", clock=1.0, processor=1.1),
        Case("2", "dd bs=1M of each file, for scale", dd(at["col8"]),
             "col8"),
        Case("2", "the same, two at once", dd(at["col8"], 2), "col8"),
        Case("2", "rows of 2 KiB, TP 4 to 8", reshard("col2", "--tp", "8"),
             "col2", clock=1.1, processor=1.25),
        Case("2", "rows of 8 KiB, TP 4 to 8", reshard("col8", "--tp", "8"),
             "col8", clock=1.1, processor=1.25),
        Case("2", "rows of 64 KiB, TP 4 to 8", reshard("col64", "--tp", "8"),
             "col64", clock=1.1, processor=1.25),
        Case("2", "rows of 8 KiB, one thread",
             reshard("col8", "--tp", "8", "-j", "1"), "col8",
             clock=1.1, processor=1.25),
        Case("3", "with digests (the default), one thread",
             convert("hf", *hf, "-j", "1"), "hf", base="no digests",
             clock=1.1, processor=1.1),
        Case("4", "torch zip, with CRC-32",
             convert("hf", "--to", "torch", out="OUT.pt"), "hf",
             base="safetensors", clock=1.1, processor=1.1),
        Case("5", "HF to Megatron (mp_rank), TP 4",
             convert("hf", "--to", "megatron_legacy", "--tp", "4"), "hf",
             clock=1.2),
        Case("5", "HF to Megatron (torch_dist), TP 4",
             convert("hf", "--to", "megatron_torch_dist", "--tp", "4", "--dp",
                     "4"), "hf", clock=1.2),
        Case("5", "HF to Meta's (rotary rows)",
             convert("hf", "--to", "meta", "--tp", "4"), "hf", clock=1.2),
        Case("6", "f32 to bf16",
             convert("f32", *hf, "--dtype", "bf16"), "f32", clock=1.3,
             scale=0.75),
        Case("7", "HF shards, synced",
             [x for x in convert("hf", *hf) if x != "--no-fsync"], "hf",
             base="cp, sync", clock=1.1),
        Case("15", "verify A B, TP 4 and 8",
             [ckpt, "verify", at["f2"], at["f2_tp8"], "-q"], "f2",
             base="cat A B", clock=1.25),
    ]
    if at.get("xfs"):
        for label, size in (("unchanged bytes (XFS), the same shards",
                             at["bytes"] // 3),
                            ("unchanged bytes (XFS), shards of another size",
                             shard)):
            found.append(Case(
                "8", label,
                convert("xfs", "--to", "safetensors", "--max-shard-size",
                        str(size), "--no-manifest", out="XFS"),
                "xfs", base="cp, XFS", clock=0.05))
    return found


def dd(source, at_once=1):
    return ["sh", "-c",
            'cd "$0" && find . -type d -exec mkdir -p "$1/{}" \\; && '
            'find . -type f | xargs -P "$2" -I {} '
            'dd if={} of="$1/{}" bs=1M status=none',
            source, "OUT", str(at_once)]


def bases(ckpt, at, case):
    """The command that a case is compared with."""
    source = at[case.source]
    if case.base == "safetensors":
        return [ckpt, "convert", source, "OUT.safetensors", "--to",
                "safetensors", "--no-fsync", "-q"]
    if case.base == "no digests":
        return [*case.argv, "--no-manifest"]
    if case.base == "cp, sync":
        return ["sh", "-c", 'cp -r "$0" "$1" && sync -f "$1"', source, "OUT"]
    if case.base == "cp, XFS":
        return ["cp", "-r", "--reflink=never", source, "XFS"]
    if case.base == "cat A B":
        return ["sh", "-c", 'find "$0" "$1" -type f | xargs cat >/dev/null',
                source, at["f2_tp8"]]
    return ["cp", "-r", source, "OUT"]


def quantized(ckpt, at):
    """(label, source, argv, promised ratio): against `cp` of the target."""
    def convert(source, *options):
        return [ckpt, "convert", at[source], "OUT", "--to", "safetensors",
                "--no-fsync", "-q", *options]

    numbers = ("--dtype", "bf16")
    return [("fp8 128x128 to bf16", "fp8", convert("fp8", *numbers), 2),
            ("mxfp4 to bf16", "mxfp4", convert("mxfp4", *numbers), 2),
            ("GPTQ to bf16", "gptq", convert("gptq", *numbers), 2),
            ("AWQ to bf16", "awq", convert("awq", *numbers), 2),
            ("bf16 to fp8 128x128", "bf16",
             convert("bf16", "--quantize", "fp8-block"), 2)]


def peers(ckpt, at):
    """(label, peer's task, source, ckpt's command, promised ratio)"""
    def command(verb, source, *options, out="OUT"):
        return [ckpt, verb, at[source], out, "--no-fsync", "-q", *options]

    return [
        ("fairseq2 lazy_load + torch.save, TP 4 to 8", "lazy_load", "f2",
         command("reshard", "f2", "--tp", "8"), 10),
        ("torch.load + torch.save, TP 4 to 8", "torch_load_save", "f2",
         command("reshard", "f2", "--tp", "8"), 10),
        ("dcp_to_torch_save", "dcp_to_torch_save", "dcp",
         command("unshard", "dcp", out="OUT.pt"), 10),
        ("consolidate_safetensors_files", "consolidate", "st4",
         command("convert", "st4", "--to", "safetensors"), 10),
        ("safetensors get_slice + save_file, TP 1 to 4", "get_slice", "hf",
         command("convert", "hf", "--to", "vllm", "--tp", "4"), 3),
    ]
