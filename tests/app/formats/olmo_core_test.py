#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""ckpt over OLMo-core's checkpoints: its own unsharded files, the files beside
the tensors, training runs, and OLMo-core itself loading what ckpt wrote.

What all formats of many ranks have in common is in golden_test, dist_test and
broken_test.
"""

import importlib.util
import json
import shutil

from dist_readers import items, read_dcp, read_index
from golden_test import plain
from peer import Peer
from support import (
    DATA, Skip, Suite, check, check_equal, compare, load_pt,
    read_safetensors)

CKPT = None  # set by prepare
PEER = importlib.util.find_spec("olmo_core")  # before stand-ins replace it
PROGRAM = Peer("olmo_core_peer.py")
GOLDENS = DATA / "olmo_core_dcp"
FLATTENED = ("trainer_fsdp_w2", "trainer_fsdptp_w4", "state_threads_w2")


def data_of(path):
    below = path / "model_and_optim"
    return below if below.exists() else path


def with_optimizer():
    return sorted(p.parent.name
                  for p in GOLDENS.glob("*/expected_optim.safetensors")
                  if "direct" not in p.parent.name)


# -------------------------------------------------------------------- average
def test_average(folder, case, more):
    """Of two and of three checkpoints, as OLMo-core's loader and sums have it."""
    if PEER is None:
        raise Skip("no OLMo-core")
    source = GOLDENS / case / "ckpt"
    paths = [folder / f"step{i}" for i in range(3)]
    for path, by in zip(paths, (1.0, 1.5, 0.75)):
        shutil.copytree(source, path, ignore=lambda at, names: [
            name for name in names if data_of(source).samefile(at)])
        wrong = PROGRAM.ask({"kind": "scale", "source": str(data_of(source)),
                             "out": str(data_of(path)), "by": by})
        check_equal(wrong, None, "scaled")
    for count, off in ((2, 0), (3, 3e-7)):
        out = folder / f"mean{count}"
        CKPT.ok("merge", *paths[:count], out, *more)
        CKPT.ok("verify", out)
        wrong = PROGRAM.ask({"kind": "average", "off": off, "merged": str(
            data_of(out)), "sources": [str(data_of(p)) for p in paths[:count]]})
        check_equal(wrong, None, f"{count} of {case}")


# ------------------------------------------------------------------ unsharded
def test_like_one_file(folder, case):
    """model.safetensors, model.pt and optim.pt as the peer writes them."""
    source, peer = GOLDENS / case / "ckpt", GOLDENS / case / "unsharded"
    out = folder / "model.safetensors"
    CKPT.ok("unshard", source, out, "--model-only")
    compare(read_safetensors(out),
            read_safetensors(peer / "safetensors/model.safetensors"), "model")
    for part in ("model", "optim"):
        want = peer / "pt" / f"{part}.pt"
        if not want.exists():
            continue
        out = folder / f"{part}.pt"
        CKPT.ok("unshard", source, out, f"--{part}-only")
        check_equal(plain(load_pt(out)), plain(load_pt(want)), out.name)


def test_like_parts(folder, case):
    """Same contents as the peer's chunks, and as its files of one tensor
    each."""
    out = folder / "model.safetensors"
    CKPT.ok("unshard", GOLDENS / case / "ckpt", out, "--model-only")
    got = read_safetensors(out)
    for way in ("chunks", "per_tensor"):
        want = {}
        for path in (GOLDENS / case / "unsharded" / way / "model").iterdir():
            want |= read_safetensors(path)
        compare(got, want, way)


def test_peer_unshards_alike(folder, case):
    """The peer's own optim.pt and model.pt of the golden, and of ckpt's output
    for another topology."""
    source = GOLDENS / case / "ckpt"
    copy = folder / "copy"
    CKPT.ok("reshard", source, copy, "--dp", 3)
    trees = []
    for name, path in (("golden", source), ("ours", copy)):
        out = folder / name
        ask_peer({"kind": "unshard", "path": str(data_of(path)),
                  "out": str(out)})
        trees.append({p.name: plain(load_pt(p)) for p in out.iterdir()})
    check_equal(trees[1], trees[0], "what the peer unshards")
    for name, want in trees[0].items():
        out = folder / name
        CKPT.ok("unshard", source, out, f"--{name.removesuffix('.pt')}-only")
        check_equal(plain(load_pt(out)), want, f"ckpt's {name}")
    out = folder / "both"
    CKPT.ok("unshard", source, out, "--to", "torch")
    check_equal({p.name: plain(load_pt(p)) for p in out.glob("*.pt")}, trees[0],
                "ckpt's directory")


# ---------------------------------------------------------------------- peer
def ask_peer(job):
    if PEER is None:
        raise Skip("ai2-olmo-core is not installed")
    wrong = PROGRAM.ask(job)
    check(not wrong, f"the peer fails: {wrong}")


def test_peer_loads(folder, case, options, world):
    """OLMo-core loads it in another world size, bit for bit."""
    out = folder / "out"
    CKPT.ok("reshard", GOLDENS / case / "ckpt", out, *options)
    expected = GOLDENS.joinpath(case).glob("expected*.safetensors")
    ask_peer({"kind": "load", "path": str(data_of(out)),
              "world": world, "flattened": case in FLATTENED,
              "expected": sorted(map(str, expected))})


# ---------------------------------------------------------------------- files
def test_index(folder, case):
    """Keys, their order and their nested paths stay; all classes are ones that
    torch knows without OLMo-core."""
    source, out = GOLDENS / case / "ckpt", folder / "out"
    CKPT.ok("reshard", source, out, "--dp", 3, "--tp", 1)
    want = read_index(data_of(source) / ".metadata")
    got = read_index(data_of(out) / ".metadata")
    check_equal(got.planner_data, want.planner_data, "planner_data")
    tensors = [n for n, m in want.state_dict_metadata.items()
               if hasattr(m, "chunks")]
    check_equal([n for n in got.state_dict_metadata if n in tensors], tensors,
                "order of the tensors")
    modules = {type(info).__module__ for info in got.storage_data.values()}
    check_equal(modules, {"torch.distributed.checkpoint.filesystem"},
                "modules of _StorageInfo")
    check_equal(sorted(p.name for p in data_of(out).glob("*.distcp")),
                [f"__{r}_0.distcp" for r in range(3)], "files of the ranks")
    check_equal(read_dcp(data_of(out))[1], read_dcp(data_of(source))[1],
                "objects")


def test_same_places(folder, case, options):
    """From one rank and back: each box is in the file of the rank where the
    peer had it."""
    source, one, out = GOLDENS / case / "ckpt", folder / "one", folder / "out"
    CKPT.ok("reshard", source, one, "--dp", 1, "--tp", 1)
    CKPT.ok("reshard", one, out, *options)

    def places(path):
        return sorted((i.tensor, i.offsets, i.sizes, i.file)
                      for i in items(data_of(path)))

    check_equal(places(out), places(source), "places of the boxes")


def test_torch_reads(folder, case):
    """Stock torch can't read the peer's files, but can read ckpt's."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    source, out = GOLDENS / case / "ckpt", folder / "out"
    CKPT.ok("reshard", source, out, "--dp", 3)
    dcp_to_torch_save(data_of(out), folder / "all.pt")
    tree = plain(load_pt(folder / "all.pt"))
    want = read_safetensors(GOLDENS / case / "expected.safetensors")
    check_equal({n: (t.dtype, t.shape, t.data) for n, t in want.items()},
                tree["model"], "model")


def files_below(path):
    return {str(p.relative_to(path)): p.read_bytes()
            for p in path.rglob("*") if p.is_file()
            and "model_and_optim" not in p.parts
            and p.name != ".ckpt-manifest.json"}


def test_from_other_names(folder, to):
    """--tp cuts models that come with Hugging Face's names; it was once
    ignored."""
    source = DATA / "hf/llama/ckpt"
    CKPT.ok("convert", source, folder / "out", "--to", to, "--tp", 2)
    document = CKPT.inspect(folder / "out")
    check_equal(document["topology"]["tp"], 2, "tp")
    for tensor in document["tensors"]:
        cut = len(tensor["shape"]) > 1
        check_equal(tensor["pieces"], 2 if cut else 1, tensor["name"])
    CKPT.ok("verify", source, folder / "out")


def test_companions(folder):
    """The trainer's files: all of them for the same world size, only rank 0's
    state for another."""
    source = GOLDENS / "trainer_fsdp_w2/ckpt"
    want = files_below(source)
    check("train/rank1.pt" in want, "the golden has no train/rank1.pt")
    for dp in (2, 3):
        out = folder / f"dp{dp}"
        result = CKPT.ok("reshard", source, out, "--dp", dp)
        if dp == 3:
            del want["train/rank1.pt"]
            check("train/rank0.pt" in result.err, f"nothing is said: {result}")
        check_equal(files_below(out), want, f"files for dp {dp}")
        check_equal(CKPT.inspect(out)["format"], "olmo_core", "format")


def test_bare_folder(folder):
    """Without a trainer's folders, .metadata.json tells whose checkpoint it
    is."""
    out = folder / "out"
    CKPT.ok("reshard", GOLDENS / "state_unflat_w2/ckpt", out, "--dp", 3)
    check(json.loads((out / ".metadata.json").read_text())["version"],
          "no version")
    document = CKPT.inspect(out)
    check_equal((document["format"], document["topology"]["dp"]),
                ("olmo_core", 3), "format, dp")
    moved = folder / "moved"
    shutil.copytree(out, moved, ignore=lambda *_: [".metadata.json"])
    check_equal(CKPT.inspect(moved)["format"], "dcp", "format without it")


def training_run(folder):
    run = folder / "run"
    for name in ("step5", "step40", "step100-tmp"):
        shutil.copytree(GOLDENS / "trainer_fsdp_w2/ckpt", run / name)
    (run / "step100-tmp/model_and_optim/.metadata").unlink()
    return run


def test_training_run(folder):
    """The newest complete step is read, and its folder is kept."""
    run = training_run(folder)
    result = CKPT.ok("inspect", run)
    check("step100-tmp" in result.err, f"nothing is said: {result}")
    out = folder / "out"
    CKPT.ok("reshard", run, out, "--dp", 3)
    check((out / "step40/model_and_optim/.metadata").exists()
          and (out / "step40/config.json").exists()
          and not (out / "step5").exists(), "not step40 alone was written")
    CKPT.ok("verify", run / "step40", out)
    CKPT.ok("verify", out)
    shutil.rmtree(run / "step5")
    (run / "step40/model_and_optim/.metadata").unlink()
    result = CKPT.run("inspect", run).want(4)
    check("incomplete save" in result.err, f"{result}")


def test_refusals(folder):
    def refused(case, code, why, *options):
        out = folder / "out"
        result = CKPT.run("reshard", GOLDENS / case / "ckpt", out, *options)
        result.want(code)
        check(why in result.err and "hint:" in result.err, f"{result}")
        check(not out.exists(), f"a target was written\n{result}")

    refused("trainer_fsdp_w2", 5, "pp=2", "--pp", 2)
    refused("trainer_fsdp_w2", 5, "ep=2", "--ep", 2)
    refused("trainer_fsdp_w2", 2, "--max-shard-size", "--max-shard-size",
            "1MB")
    refused("direct_flat_w4", 5, "flat", "--tp", 2)
    refused("old_170_mixed_w2", 5, "blocks.", "--tp", 2)


# -------------------------------------------------------------------- convert
def test_convert(folder, case):
    """To plain DCP and back, and from unsharded weights."""
    source = GOLDENS / case / "ckpt"
    CKPT.ok("convert", source, folder / "dcp", "--to", "dcp")
    CKPT.ok("convert", folder / "dcp", folder / "back", "--to", "olmo_core",
            "--dp", 3)
    CKPT.ok("verify", source, folder / "back")
    want = read_dcp(data_of(source))
    check_equal(set(read_dcp(folder / "back/model_and_optim")[0]),
                set(want[0]), "keys")
    whole, out = folder / "model.safetensors", folder / "model"
    CKPT.ok("unshard", source, whole, "--model-only")
    CKPT.ok("convert", whole, out, "--to", "olmo_core", "--dp", 2, "--tp", 2)
    compare(read_dcp(out / "model_and_optim")[0],
            {n: t for n, t in want[0].items() if n.startswith("model.")},
            "from model.safetensors")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for case in ("state_unflat_w2", "model_only_w1"):
        suite.add(f"{case}: one file like the peer's", test_like_one_file,
                  case)
        suite.add(f"{case}: the peer's chunks and single tensors",
                  test_like_parts, case)
    for case in ("trainer_fsdp_w2", "state_unflat_w2"):
        suite.add(f"{case}: the peer unshards", test_peer_unshards_alike, case)
        suite.add(f"{case}: converted", test_convert, case)
    for case, options, world in (
            ("trainer_fsdp_w2", ("--dp", 3), 2),
            ("trainer_fsdptp_w4", ("--dp", 3, "--tp", 1), 2),
            ("trainer_fsdp_w2", ("--dp", 2, "--tp", 2), 3),
            ("state_unflat_w2", ("--dp", 1), 3),
            ("state_threads_w2", ("--dp", 5), 2)):
        name = " ".join(map(str, options))
        suite.add(f"{case}: {name}, loaded by {world} ranks", test_peer_loads,
                  case, options, world)
    for case in sorted(p.name for p in GOLDENS.iterdir()):
        suite.add(f"{case}: the index", test_index, case)
    for case in with_optimizer():
        if not case.startswith("old_"):  # has sharded and whole modules
            suite.add(f"{case}: stock torch reads", test_torch_reads, case)
    for case, options in (
            ("trainer_fsdp_w2", ("--dp", 2)), ("state_hsdp_w4", ("--dp", 2)),
            ("trainer_fsdptp_w4", ("--dp", 2, "--tp", 2)),
            ("hf_flex_olmo", ("--dp", 2)), ("hf_qwen3", ("--dp", 2))):
        suite.add(f"{case}: places", test_same_places, case, options)
    for to in ("olmo_core", "olmo_core_v1"):
        suite.add(f"from other names: {to}", test_from_other_names, to)
    for case in ("model_only_w1", "trainer_fsdp_w2", "trainer_fsdptp_w4"):
        for more in ((), ("--with-optimizer",)):
            suite.add(f"{case}: the mean {' '.join(more)}", test_average, case,
                      more)
    suite.add("the trainer's files", test_companions)
    suite.add("a folder without a trainer", test_bare_folder)
    suite.add("a training run", test_training_run)
    suite.add("refusals", test_refusals)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
