#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`verify --seal`, and the fingerprint of a checkpoint: checkpoints that others
wrote get a manifest which finds what changes later, and one string for all
weights that this test computes for itself from the tensors' bytes, by the
definitions in docs/digest.md.
"""

import hashlib
import json
import shutil

import numpy
from support import DATA, Suite, check, check_equal

CKPT = None  # set by prepare
MANIFEST = ".ckpt-manifest.json"
MASK = (1 << 64) - 1


# ------------------------------------------------- docs/digest.md, in Python
def mix(x):
    z = (x + 0x9E3779B97F4A7C15) & MASK
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & MASK
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & MASK
    return z ^ (z >> 31)


def digest(content):
    words = numpy.frombuffer(content + b"\0" * (-len(content) % 4), "<u4")
    parts = []
    for a in range(2):
        total = 0
        for j, word in enumerate(words.tolist()):
            t = (mix(1024 * (a + 1) + j % 1024) >> 32) | 1
            m = mix(((a + 1) << 32) + j // 1024) | 1
            total = (total + word * t * m) & MASK
        parts.append(f"{total:016x}")
    return "".join(parts)


NAMES = {"float32": "f32", "bfloat16": "bf16", "int64": "i64"}


def fingerprint(state):
    """`state`: torch tensors by name."""
    import torch

    lines = []
    for name in sorted(state, key=str.encode):
        tensor = state[name].contiguous()
        content = tensor.flatten().view(torch.uint8).numpy().tobytes()
        dtype = NAMES[str(tensor.dtype).split(".")[1]]
        lines.append(f"{name}\t{dtype}\t{list(tensor.shape)}\t{digest(content)}\n")
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def model(folder):
    """Weights as transformers would save them, in two files."""
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(0)
    state = {f"layers.{i}.{name}.weight": torch.randn(8, 4).to(dtype)
             for i in range(3) for name, dtype in
             (("up", torch.float32), ("down", torch.bfloat16))}
    state["counts"] = torch.arange(7)
    folder.mkdir()
    names = sorted(state)
    files = {"model-00001-of-00002.safetensors": names[:4],
             "model-00002-of-00002.safetensors": names[4:]}
    for file, some in files.items():
        save_file({name: state[name] for name in some}, folder / file)
    (folder / "model.safetensors.index.json").write_text(json.dumps(
        {"metadata": {}, "weight_map": {
            name: file for file, some in files.items() for name in some}}))
    (folder / "tokenizer.json").write_text('{"a": 1}')
    return state


def said_by(path):
    lines = CKPT.ok("inspect", path, "--digest").out.splitlines()
    check(lines[-1].startswith("fingerprint "), lines[-1])
    said = CKPT.ok("inspect", path, "--digest", "--json").json()["fingerprint"]
    check_equal(lines[-1].split()[1], said, "text and JSON")
    deep = CKPT.ok("verify", path, "--deep", "--json").json()["fingerprint"]
    check_equal(deep, said, "verify's and inspect's")
    return said


def one_string(folder):
    """The same string for each format that keeps names, and other bits have
    another one."""
    import torch

    state = model(folder / "hf")
    want = fingerprint(state)
    check_equal(said_by(folder / "hf"), want, "safetensors")
    torch.save(state, folder / "state.pt")
    check_equal(said_by(folder / "state.pt"), want, "torch.save")
    for kind in ("dcp", "torch", "safetensors"):
        CKPT.ok("convert", folder / "hf", folder / kind, "-q", "--to", kind)
        check_equal(said_by(folder / kind), want, kind)
    state["counts"][3] += 1
    torch.save(state, folder / "other.pt")
    check(said_by(folder / "other.pt") != want, "another value, the same string")
    some = CKPT.ok("inspect", folder / "hf", "--digest", "--json", "--keys",
                   "layers.0.*").json()
    check("fingerprint" not in some, "a fingerprint of a part")


def any_topology(folder):
    """Megatron's ranks, however many: vocabulary padding does not count."""
    whole = DATA / "safetensors/hf_sharded/ckpt"
    said = {CKPT.ok("inspect", path, "--digest", "--json").json()["fingerprint"]
            for path in (whole,)}
    for i, options in enumerate((("--to", "dcp"), ("--to", "torch"))):
        CKPT.ok("convert", whole, folder / str(i), "-q", *options)
        said.add(CKPT.ok("inspect", folder / str(i), "--digest",
                         "--json").json()["fingerprint"])
    check_equal(len(said), 1, str(said))


def finds_each_bit(folder, kind):
    """A flipped bit in each file, a lost and an added one."""
    import torch

    state = model(folder / "hf")
    source = folder / "hf"
    if kind == "file":
        torch.save(state, folder / "state.pt")
        source = folder / "state.pt"
    result = CKPT.ok("verify", source, "--seal")
    check("sealed: " in result.out, result.out)
    manifest = (source / MANIFEST if kind == "folder"
                else source.parent / (source.name + MANIFEST))
    before = manifest.read_bytes()
    again = CKPT.ok("verify", source, "--seal")
    check("sealed before" in again.out, again.out)
    check_equal(manifest.read_bytes(), before, "the manifest")
    files = [source] if kind == "file" else sorted(
        path for path in source.iterdir() if path.name != MANIFEST)
    for path in files:
        content = path.read_bytes()
        for at in (len(content) // 3, len(content) - 2):
            changed = bytearray(content)
            changed[at] ^= 4
            path.write_bytes(changed)
            CKPT.run("verify", source).want(1)
            refused = CKPT.run("verify", source, "--seal")
            check_equal(refused.code, 1, str(refused))
            check_equal(manifest.read_bytes(), before, "the manifest")
        path.write_bytes(content)
    CKPT.ok("verify", source)
    if kind == "folder":
        (source / "tokenizer.json").unlink()
        CKPT.run("verify", source).want(1)


def refuses(folder):
    """No seal for what has a problem, and none over what lies there."""
    import torch

    state = model(folder / "hf")
    state["layers.0.up.weight"].zero_()
    torch.save(state, folder / "zeros.pt")
    result = CKPT.run("verify", folder / "zeros.pt", "--seal")
    check("not sealed" in result.out, str(result))
    check(not list(folder.glob("*" + MANIFEST)), "a seal of a warning")
    whole = folder / "hf"
    cut = whole / "model-00001-of-00002.safetensors"
    content = cut.read_bytes()
    cut.write_bytes(content[:-5])
    CKPT.run("verify", whole, "--seal").want(1)
    check(not (whole / MANIFEST).exists(), "a seal of damage")
    cut.write_bytes(content)
    (whole / MANIFEST).write_text("something else")
    before = sorted(path.name for path in whole.iterdir())
    check(CKPT.run("verify", whole, "--seal").code != 0, "sealed over a file")
    check_equal((whole / MANIFEST).read_text(), "something else", "the file")
    check_equal(sorted(path.name for path in whole.iterdir()), before, "files")
    for options in (("--quick",), ("--keys", "counts"), (str(whole),)):
        CKPT.run("verify", whole, "--seal", *options).want(2)


def is_a_manifest_of_ckpt(folder):
    """Whatever reads manifests reads a seal: convert refuses changed weights."""
    model(folder / "hf")
    CKPT.ok("verify", folder / "hf", "--seal")
    path = folder / "hf/model-00002-of-00002.safetensors"
    content = bytearray(path.read_bytes())
    content[-3] ^= 1
    path.write_bytes(content)
    CKPT.run("convert", folder / "hf", folder / "no", "--to", "torch").want(4)
    shutil.rmtree(folder / "no", ignore_errors=True)


def unlike_copies(folder):
    """Two ranks' files, of which one norm differs, and rules that call it
    replicated."""
    import torch
    from safetensors.torch import save_file

    torch.manual_seed(0)
    state = {"head.weight": torch.randn(4, 8), "norm.weight": torch.ones(8)}
    (folder / "run").mkdir()
    for rank in range(2):
        state["norm.weight"][5] = 1 + rank / 2
        save_file(state, folder / f"run/rank{rank}.safetensors")
    rules = folder / "rules.json"
    rules.write_text(json.dumps({"*": None}))
    return rules


def copies_that_differ(folder):
    """--allow-replica-mismatch is for what a rule calls replicated, and says by
    how much, in the manifest too."""
    import torch

    rules = unlike_copies(folder)
    take = ("--allow-replica-mismatch",)
    for options in ((), take):
        CKPT.run("unshard", folder / "run", folder / "no.pt", *options).want(5)
    ruled = ("--shard-dims", rules)
    CKPT.run("unshard", folder / "run", folder / "no.pt", *ruled).want(4)
    for options in ((), ("--no-manifest",)):
        out = folder / f"out{len(options)}.pt"
        done = CKPT.ok("unshard", folder / "run", out, *ruled, *take, *options)
        check("norm.weight" in done.err + done.out
              and "by at most 0.5 in 1 of 8" in done.err + done.out, str(done))
        check_equal(torch.load(out)["norm.weight"][5].item(), 1, "the first")
    manifest = (folder / ("out0.pt" + MANIFEST)).read_text()
    check("its copies differ, by at most 0.5 in 1 of 8" in manifest, manifest)
    CKPT.run("verify", folder / "out0.pt").want(1)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    suite.add("one string for all formats", one_string)
    suite.add("one string for all topologies", any_topology)
    for kind in ("folder", "file"):
        suite.add(f"a seal finds each bit: {kind}", finds_each_bit, kind)
    suite.add("what is not sealed", refuses)
    suite.add("a seal is a manifest", is_a_manifest_of_ckpt)
    suite.add("copies that differ", copies_that_differ)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
