#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ckpt over DCP and Megatron checkpoints: objects, topologies, damage.

What all formats have in common (listing, unshard, digests) is in
golden_test.py; this file tests what only checkpoints of many ranks have.
"""

import re
import shutil

from breakages import biggest_item, biggest_tensor, data_files
from dist_cases import (
    dist_units, object_difference, plain, sizes_of, topology_options)
from dist_readers import boxes, payload, read_dcp, read_zarr
from golden_test import flip, plain as plain_tree
from support import (
    DATA, Suite, Tensor, check, check_equal, compare, load_pt, read_header,
    read_safetensors)

CKPT = None  # set by prepare

# What the names of optimizer state mean, per format.
OPTIM_NAMES = {
    "dcp": r"(?:\w+\.)?state\.(?P<param>.+)\.(?P<state>\w+)",
    "megatron_torch_dist":
        r"(?:chained_\d+\.)?optimizer\.state\.(?P<state>\w+)\.(?P<param>.+)",
    "megatron_legacy": r"(?P<state>\w+?)\.(?P<param>.+)",
}
# Keys of OLMoDDPTrainModule have no "state."
OPTIM_NAMES["olmo_core"] = r"(?:state\.)?(?P<param>.+)\.(?P<state>\w+)"
OPTIM_NAMES["megatron_zarr"] = OPTIM_NAMES["megatron_torch_dist"]

# `opt` is this trainer's word for an optimizer; its tensors are expected
# among the model's.
ANY_KIND = {"opt.state.0.m"}


# ------------------------------------------------------------------ inspect
def test_kinds(folder, unit):
    document = CKPT.inspect(unit.path)
    rows = {row["name"]: row for row in document["tensors"]}
    names = {row["name"].removeprefix("model.")
             for row in document["tensors"]}
    for name in set(unit.model) - ANY_KIND:
        check(rows[name]["kind"] != "optim", f"{name} is not an optimizer state")
    for name in unit.optim:
        row = rows[name]
        check_equal(row["kind"], "optim", f"kind of {name}")
        said = re.fullmatch(OPTIM_NAMES[unit.format], name)
        check_equal(row["state"], said["state"], f"state of {name}")
        param = row["param"].removeprefix("model.")
        check_equal(param, said["param"], f"param of {name}")
        check(param in names or f"{param}.main" in names, f"{name} belongs to no tensor: {param}")


def test_topology(folder, unit):
    got = CKPT.inspect(unit.path)["topology"]
    for key, size in unit.info["topology"].items():
        if key in got:
            check_equal(got[key], size, f"{key} of {got}")
    if len(unit.info["topology"].get("mesh", ())) == 1:
        check_equal(got["dp"], unit.info["topology"]["ranks"], f"dp of {got}")


def test_objects(folder, unit):
    document = CKPT.inspect(unit.path, "--objects")
    got = {o["name"]: o["value"] for o in document["objects"]}
    check_equal(len(got), len(document["objects"]), "distinct object names")
    tensors = {row["name"] for row in document["tensors"]}
    for name, want in unit.objects.items():
        if name not in got:
            below = [t for t in tensors if t.startswith(name + ".")]
            check(below, f"no object {name!r}: {sorted(got)}")
            continue
        found = object_difference(plain(got[name]), want, name)
        check(not found, f"object {found}")
    extra = [name for name in got if name not in unit.objects
             and name.split(".")[0] not in unit.objects]
    check(not extra, f"objects that the peer doesn't have: {sorted(extra)}")


# ------------------------------------------------------------ whole tensors
def test_model_and_optim_only(folder, unit):
    model, optim = folder / "model.safetensors", folder / "optim.safetensors"
    CKPT.ok("unshard", unit.path, model, "--model-only")
    # What the module takes: not the key under which its state dict lies, nor
    # what lies beside it.
    key = "model."
    want = unit.model
    if unit.format == "dcp" and any(name.startswith(key) for name in want):
        want = {name.removeprefix(key): tensor for name, tensor in want.items()
                if name.startswith(key)}
    compare(read_safetensors(model), want, "--model-only",
            [r["name"] for r in CKPT.inspect(unit.path)["tensors"]
             if r["kind"] == "other"])
    CKPT.ok("unshard", unit.path, optim, "--optim-only")
    compare(read_safetensors(optim), unit.optim, "--optim-only")


def test_nested_like_torch(folder, unit, peer):
    """OUT.pt nests as torch's dcp_to_torch_save does."""
    out = folder / "out.pt"
    CKPT.ok("unshard", unit.path, out)
    check_equal(plain_tree(load_pt(out, weights_only=False)),
                plain_tree(load_pt(peer, weights_only=False)), "the tree")


def test_consolidated(folder, unit, peer):
    """Hugging Face's consolidation of the same shards, except the scalar that
    it writes as zero."""
    out = folder / "out.safetensors"
    CKPT.ok("unshard", unit.path, out)
    got = read_safetensors(out)
    want = {}
    for path in sorted(peer.glob("*.safetensors")):
        want |= read_safetensors(path)
    for name, tensor in want.items():
        if tensor.shape:
            check_equal(got[name], tensor, name)
    check_equal(set(got), set(want), "names")


def test_from_torch_save(folder, unit, source):
    """--to dcp makes what torch_save_to_dcp makes."""
    out = folder / "out"
    CKPT.ok("convert", source, out, "--to", "dcp")
    want, want_objects = read_dcp(unit.path)
    got, objects = read_dcp(out)
    compare(got, want, "tensors")
    check_equal(objects, want_objects, "objects")
    CKPT.ok("verify", out, unit.path)


# ------------------------------------------------------------------ reshard
def peer_folder(path):
    """The checkpoint below a training root."""
    below = [p for p in sorted(path.iterdir())
             if p.name.startswith("iter_")
             or p.name in ("release", "model_and_optim")]
    return below[0] if below else path


def trimmed(tensors, unit):
    """Without the rows that pad a vocabulary: they depend on the topology."""
    vocab = vocabulary(unit)
    out = {}
    for name, t in tensors.items():
        padded = re.search(r"(word_embeddings|output_layer)\.weight$", name)
        if vocab and padded and len(t.shape) == 2 and t.shape[0] > vocab:
            size = len(t.data) // t.shape[0] * vocab
            t = Tensor(t.dtype, (vocab, *t.shape[1:]), t.data[:size])
        out[name] = t
    return out


def vocabulary(unit):
    if "vocab_size" in unit.info:
        return unit.info["vocab_size"]
    vocab = (unit.info.get("model") or {}).get("vocab")
    return vocab - 1 if vocab else None  # the generator's args say so


READERS = {"dcp": lambda path: read_dcp(path)[0],
           "megatron_torch_dist": lambda path: read_dcp(path)[0],
           "olmo_core": lambda path: read_dcp(path)[0],
           "megatron_zarr": read_zarr}


def test_reshard_like_peer(folder, unit, other, options):
    out = folder / "out"
    CKPT.ok("reshard", unit.path, out, *options)
    whole = folder / "out.safetensors"
    CKPT.ok("unshard", out, whole)
    compare(trimmed(read_safetensors(whole), unit), trimmed(unit.all, unit),
            "what ckpt reads of its own", others(whole, unit))
    peer = folder / "peer.safetensors"
    CKPT.ok("unshard", other, peer)
    got = trimmed(without_private(read_safetensors(whole)), unit)
    want = trimmed(without_private(read_safetensors(peer)), unit)
    if not set(want) & set(unit.optim):  # the peer wrote weights only
        got = {n: t for n, t in got.items() if n not in unit.optim}
    compare(got, want, "against the peer's", others(whole, unit))
    if unit.format in READERS:
        check_independently(unit, out, other)
    CKPT.ok("verify", out)
    # Zero rows that pad a vocabulary are reported, and aren't a difference.
    CKPT.ok("verify", unit.path, out)
    sizes = sizes_of(other.name)
    topology = CKPT.inspect(out)["topology"]
    for key, size in sizes.items():
        check_equal(topology[key], size, f"{key} of what was written")


def without_private(tensors):
    """Without each rank's private tensors: the peer ran with other ranks."""
    return {n: t for n, t in tensors.items() if not re.match(r"rng\.rank", n)}


def others(path, unit):
    return set(read_safetensors(path)) - set(unit.all)


def buckets(name):
    return ".gbuf_idx_" in name


def check_independently(unit, out, other):
    """The peer's files and ours, read by the same reader, which isn't
    ckpt's."""
    read = READERS[unit.format]
    got = without_private(read(peer_folder(out)))
    want = without_private(read(peer_folder(other)))
    if any(map(buckets, want)):
        # Ours has the same state in the model's shapes.
        check(not any(map(buckets, got)), "buckets of another topology")
        want = {n: t for n, t in want.items() if not buckets(n)} | unit.optim
    compare(trimmed(got, unit), trimmed(want, unit), "files")
    if unit.format != "megatron_zarr" and not any(map(buckets, want)):
        check_boxes(unit, peer_folder(out), peer_folder(other))


def check_boxes(unit, out, other):
    """The same cuts, where the topology says how tensors are cut."""
    if "handmade" in unit.name:
        return
    got, want = boxes(out), without_private(boxes(other))
    for name in want:
        if not buckets(name):
            check_equal(got[name], want[name], f"boxes of {name}")


def test_removed(folder, unit, other):
    """remove_sharded_tensors("optimizer"), by leaving the optimizer out."""
    out = folder / "out"
    CKPT.ok("reshard", unit.path, out, "--model-only")
    compare(read_dcp(out)[0], read_dcp(other)[0], "files")


# ------------------------------------------------------------------- damage
def damage(unit, path):
    """Flips a byte of a tensor's elements: (file, tensor or None)."""
    root = peer_folder(path)
    if (root / ".metadata").exists():
        item = biggest_item(root)
        begin, size = (item.offset, item.length) if item.packed else payload(
            root, item)
        flip(root / item.file, begin + size // 2)
        name = item.tensor
        if unit.format == "olmo_core":  # keys: model.<name>, optim.<name>
            name = re.sub(r"^(model|optim)\.", "", name)
        return item.file, None if buckets(name) else name
    if unit.format == "megatron_legacy":
        file = max(root.glob("mp_rank_*/model_optim_rng.pt"))
        begin, size = biggest_tensor(file)
        flip(file, begin + size // 2)
        return file.name, None
    file = data_files(root)[0]
    flip(file, file.stat().st_size - 2)
    return file.name, None


def leave(unit):
    return [o for name in unit.unreadable for o in ("--exclude", name)]


def formless(unit):
    """Megatron's zarr has no 0-d or empty arrays; other writers' do."""
    if unit.format != "megatron_zarr":
        return []
    return [o for name, t in unit.all.items()
            if not t.shape or 0 in t.shape for o in ("--exclude", name)]


def test_flip(folder, unit):
    """One flipped bit of payload is found and located."""
    copy = folder / "copy"
    shutil.copytree(unit.path, copy)
    file, tensor = damage(unit, copy)
    if unit.format in ("dcp", "megatron_torch_dist", "megatron_legacy",
                       "olmo_core") and (
            peer_folder(copy) / ".metadata").exists() or (
            unit.format == "megatron_legacy"):
        result = CKPT.run("verify", copy)
        check(result.code in (1, 4), f"not found\n{result}")
        check((tensor or file) in result.out + result.err,
              f"neither {tensor} nor {file} is named\n{result}")
    # Without checksums (zarr, safetensors) only another copy can tell.
    result = CKPT.run("verify", unit.path, copy, *leave(unit))
    check(result.code in (1, 4), f"not found\n{result}")


def test_flip_after_reshard(folder, unit):
    """What ckpt wrote has a manifest, whatever the format."""
    out = folder / "out"
    CKPT.ok("reshard", unit.path, out, *leave(unit), *formless(unit))
    CKPT.ok("verify", out)
    file, tensor = damage(unit, out)
    result = CKPT.run("verify", out)
    check(result.code in (1, 4), f"not found\n{result}")
    check((tensor or file) in result.out + result.err or not tensor,
          f"neither {tensor} nor {file} is named\n{result}")


# ------------------------------------------------------------- single cases
GPT = DATA / "megatron_torch_dist/gpt_tp2_pp2_v0161"
LEGACY = DATA / "megatron_legacy/lm_gpt_tp2_fp16/ckpt"


def test_padding(folder):
    """Zero rows at the end of a vocabulary, and rows that are not zero."""
    out = folder / "tp4"
    CKPT.ok("reshard", LEGACY, out, "--tp", 4)
    result = CKPT.ok("verify", LEGACY, out)
    check("the first 40 rows are equal, the other 8 are zero" in result.out,
          f"{result}")
    document = CKPT.run("diff", LEGACY, out, "--json").want(1).json()
    kinds = {d["kind"] for d in document["differences"]}
    check("padding" in kinds and "shape" not in kinds, f"kinds: {kinds}")
    whole = folder / "whole.safetensors"
    CKPT.ok("unshard", out, whole)
    header, base = read_header(whole)
    row = header["language_model.embedding.word_embeddings.weight"]
    flip(whole, base + row["data_offsets"][0] + 45 * 16 * 2)
    result = CKPT.run("verify", LEGACY, whole).want(1)
    check("the first 40 rows are equal, the others are not zero" in result.out,
          f"{result}")


def test_layers(folder):
    """--layers of stacked layers are rows of the peer's tensors."""
    out = folder / "out.safetensors"
    result = CKPT.ok("unshard", GPT / "ckpt", out, "--layers", "1,3")
    check("layer 1 as row 0, layer 3 as row 1" in result.err, f"{result}")
    want = {}
    for name, t in read_safetensors(GPT / "expected.safetensors").items():
        if name.startswith("decoder.layers."):
            row = len(t.data) // t.shape[0]
            t = Tensor(t.dtype, (2, *t.shape[1:]),
                       t.data[row:2 * row] + t.data[3 * row:4 * row])
        want[name] = t
    compare(read_safetensors(out), want, "layers 1 and 3")
    part = folder / "part"
    CKPT.ok("reshard", GPT / "ckpt", part, "--layers", "2-3", "--pp", 1)
    CKPT.ok("verify", part)
    names = {o["name"] for o in CKPT.inspect(part, "--objects")["objects"]}
    grids = {n.split("/")[1] for n in names if "_extra_state" in n}
    check_equal(grids, {"shard_0_2", "shard_1_2"}, "grids of _extra_state")
    # The target's manifest has all rows; having only some isn't damage.
    CKPT.ok("verify", part, "--layers", 1)
    CKPT.ok("unshard", part, folder / "one.safetensors", "--layers", 1)
    refused = CKPT.run("unshard", GPT / "ckpt", out, "--overwrite", "--layers",
                       "3-4").want(5)
    check("there is no layer 4; the source has 4 layers, 0 to 3" in
          refused.err, f"{refused}")


def test_exclude_objects(folder):
    out = folder / "out"
    CKPT.ok("reshard", GPT / "ckpt", out, "--exclude", "rng_state/*",
            "--exclude", "*_extra_state*")
    names = {o["name"] for o in CKPT.inspect(out, "--objects")["objects"]}
    check(not [n for n in names if n.startswith("rng_state")], f"{names}")
    refused = CKPT.run("reshard", GPT / "ckpt", folder / "no", "--exclude",
                       "rgn_state/*").want(5)
    check("none of the 12 tensors and 2" in refused.err, f"{refused}")


def test_tp_of_dcp(folder):
    """2-D boxes as the peer cuts them, once the split is known."""
    case = DATA / "dcp/tp2_fsdp2_w4"
    rules = folder / "rules.json"
    rules.write_text('{"*.emb.weight": 0, "*.w1.weight": 0, "*.w2.weight": 1,'
                     ' "*.out.weight": 0, "*": null}')
    out = folder / "out"
    CKPT.ok("reshard", case / "ckpt", out, "--tp", 4, "--dp", 1,
            "--shard-dims", rules)
    got, want = boxes(out), boxes(case / "other/tp4")
    for name in got:
        check_equal(got[name], want[name], f"boxes of {name}")
    tensors, _ = read_dcp(out)
    compare(tensors, read_dcp(case / "other/tp4")[0], "tensors",
            [n for n in tensors if n.startswith("rng.")])


CONVERTED = (
    "dcp/fsdp2_w2_adamw", "megatron_torch_dist/gpt_tp2_pp2_v0161",
    "megatron_torch_dist/gpt_optim_dp_reshardable_v0161",
    "megatron_torch_dist/moe_tp1_ep2_pp2_v0161",
    "megatron_zarr/gpt_zarr_optim_bucket_space_v0090",
    "megatron_zarr/gpt_zarr_tp2_pp2_v0090",
)
TARGETS = ("dcp", "megatron_torch_dist", "megatron_zarr", "safetensors",
           "torch")


def test_convert(folder, unit, to):
    """Between formats with the same names: the same contents."""
    scalars = {n for n, t in unit.all.items() if not t.shape}
    gone = scalars if to == "megatron_zarr" else set()
    without = [o for name in sorted(gone) for o in ("--exclude", name)]
    out = folder / "out"
    CKPT.ok("convert", unit.path, out, "--to", to, *without, "--dialect",
            "keep")
    CKPT.ok("verify", out)
    CKPT.ok("verify", unit.path, out, *without)
    if to in READERS:
        got = READERS[to](peer_folder(out))
        want = {n: t for n, t in unit.all.items() if n not in gone}
        compare(got, want, f"as {to}", set(got) - set(want))


# ---------------------------------------------------------------- the table
def add_others(suite, unit):
    for other in sorted((unit.case / "other").glob("*")):
        name = f"{unit.name}: other/{other.name}"
        if other.name in ("torch_save", "dcp_to_torch_save"):
            file = next(other.glob("*.pt"))
            suite.add(name, test_nested_like_torch, unit, file)
        elif other.name == "consolidated_by_peer":
            suite.add(name, test_consolidated, unit, other)
        elif other.name == "source":
            suite.add(name, test_from_torch_save, unit, other / "model.pt")
        elif other.name == "removed_optimizer":
            suite.add(name, test_removed, unit, other)
        elif other.name == "torch_save_per_rank":
            pass  # the trainer's own files, without their names and shapes
        elif re.fullmatch(r"w\d+", other.name):
            suite.add(name, test_reshard_like_peer, unit, other,
                      ["--dp", other.name[1:]])
        elif unit.format == "olmo_core":
            # Replicas (ddp) have one writer. hf_*: named differently.
            if found := re.fullmatch(r"(\w+)_w(\d+)", other.name):
                dp = 1 if found[1] == "ddp" else found[2]
                suite.add(name, test_reshard_like_peer, unit, other,
                          ["--dp", dp])
        elif unit.format != "dcp":
            suite.add(name, test_reshard_like_peer, unit, other,
                      topology_options(
                          {"tp": 1, "pp": 1, "dp": 1, "ep": 1}
                          | sizes_of(other.name)))


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for unit in dist_units():
        suite.add(f"{unit.name}: kinds", test_kinds, unit)
        suite.add(f"{unit.name}: topology", test_topology, unit)
        if unit.objects is not None:
            suite.add(f"{unit.name}: objects", test_objects, unit)
        if unit.optim:
            suite.add(f"{unit.name}: --model-only, --optim-only",
                      test_model_and_optim_only, unit)
        suite.add(f"{unit.name}: a flipped bit", test_flip, unit)
        if unit.format not in ("safetensors",):
            suite.add(f"{unit.name}: a flipped bit in what ckpt wrote",
                      test_flip_after_reshard, unit)
        add_others(suite, unit)
        if unit.name in CONVERTED:
            for to in TARGETS:
                suite.add(f"{unit.name}: convert to {to}", test_convert, unit,
                          to)
    suite.add("vocabulary padding", test_padding)
    suite.add("--layers of stacked layers", test_layers)
    suite.add("--exclude of objects", test_exclude_objects)
    suite.add("--tp of dcp", test_tp_of_dcp)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
