#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The ranks' files that ckpt writes are those that Megatron-LM wrote.

Each golden case holds a checkpoint and, under other/, the same model written by
Megatron-LM at other topologies. What ckpt makes from the first is compared with
the second, file by file: directories, keys and their order, shapes, values, the
optimizer's groups, numbers and flat buffers.
"""

import itertools
import json
import pickle
import re
import shutil

from support import DATA, Failure, Suite, check, check_equal

CKPT = None
ROOT = DATA / "megatron_legacy"
SIZES = {"tp": "tensor_model_parallel_size",
         "pp": "pipeline_model_parallel_size",
         "ep": "expert_model_parallel_size", "dp": "data_parallel_size"}
# What came from the command line or the machine, not the topology.
INCIDENTAL = {
    "no_save_optim", "no_load_optim", "no_load_rng", "no_save_rng",
    "local_rank", "overlap_p2p_comm", "align_param_gather",
    "inprocess_active_world_size", "attention_backend", "model_type",
    "inference_cuda_graph_scope"}


class Opaque:
    """Stands in for Megatron's own classes."""

    def __init__(self, *values):
        self.values = values

    def __setstate__(self, state):
        self.state = state


class Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        if module.split(".")[0] in ("megatron", "transformer_engine"):
            return Opaque
        return super().find_class(module, name)


class Lenient:
    __name__ = "lenient"
    Unpickler = Unpickler
    load = staticmethod(lambda f, **k: Unpickler(f, **k).load())
    loads = staticmethod(pickle.loads)


def load(path):
    import torch

    return torch.load(path, map_location="cpu", weights_only=False,
                      pickle_module=Lenient)


def step_of(root):
    return next(p for p in root.iterdir() if p.is_dir())


def flatten(value, path=()):
    """(path, leaf) in order; lists count their elements."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from flatten(item, (*path, key))
    elif isinstance(value, (list, tuple)) and len(value) < 1000:
        for i, item in enumerate(value):
            yield from flatten(item, (*path, i))
    else:
        yield path, value


def is_vocabulary(path):
    return re.search(r"(word_embeddings(_for_head)?|output_layer)\.weight$",
                     ".".join(map(str, path)))


def check_leaf(got, want, path, rows):
    import torch

    where = "/".join(map(str, path))
    if not torch.is_tensor(want):
        if type(want).__name__ in ("BytesIO", "Opaque"):
            check_equal(type(got).__name__, type(want).__name__, where)
        else:
            check_equal(got, want, where)
        return
    check(torch.is_tensor(got), f"{where}: no tensor")
    check_equal((got.dtype, got.shape), (want.dtype, want.shape), where)
    if is_vocabulary(path):
        got, want = got[:rows], want[:rows]
    if not torch.equal(got, want):
        raise Failure(f"{where}: the values differ")


def compare_trees(got, want, rows, what):
    got, want = list(flatten(got)), list(flatten(want))
    names = [p for p, _ in want]
    if [p for p, _ in got] != names:
        odd = set(names) ^ {p for p, _ in got}
        raise Failure(f"{what}: keys differ, or their order: "
                      f"{sorted(map(str, odd))[:6]}")
    for (path, value), (_, expected) in zip(got, want):
        check_leaf(value, expected, (what, *path), rows)


def compare_args(got, want, incidental):
    got, want = vars(got), vars(want)
    check_equal(list(got), list(want), "args' names and order")
    for key, value in want.items():
        if key not in incidental:
            check_equal(got[key], value, f"args.{key}")


def rows_here(info, args, directory):
    """Real rows of the vocabulary in a rank's part."""
    t = int(directory.split("_")[2])
    part = args.padded_vocab_size // args.tensor_model_parallel_size
    return max(0, min(part, info["vocab_size"] - t * part))


def compare_rank(got_dir, want_dir, info, incidental=frozenset(INCIDENTAL)):
    got = load(got_dir / "model_optim_rng.pt")
    want = load(want_dir / "model_optim_rng.pt")
    compare_args(got["args"], want["args"], incidental)
    rows = rows_here(info, want["args"], want_dir.name)
    compare_trees(got["model"], want["model"], rows, "model")
    keys = [k for k in want if k not in ("rng_state", "args", "model")]
    check_equal([k for k in got if k in keys], keys, "keys and their order")
    for key in keys:
        compare_trees({key: got[key]}, {key: want[key]}, rows, want_dir.name)
    flat = "distrib_optim.pt"
    if "optimizer" not in want:
        return
    check_equal((got_dir / flat).exists(), (want_dir / flat).exists(), flat)
    if (want_dir / flat).exists():
        compare_trees(load(got_dir / flat), load(want_dir / flat), rows, flat)


def options_of(args):
    return [part for name, key in SIZES.items()
            for part in (f"--{name}", getattr(args, key, 1) or 1)]


def test_other(folder, case, other):
    info = json.loads((case / "case.json").read_text())
    theirs = step_of(other)
    ranks = sorted(theirs.iterdir())
    args = load(ranks[0] / "model_optim_rng.pt")["args"]
    out = folder / "out"
    CKPT.ok("reshard", case / "ckpt", out, *options_of(args), "--verify")
    ours = step_of(out)
    check_equal(ours.name, theirs.name, "the step's directory")
    check_equal(sorted(p.name for p in ours.iterdir()),
                [p.name for p in ranks], "directories")
    tracker = "latest_checkpointed_iteration.txt"
    check_equal((out / tracker).read_text(), (other / tracker).read_text(),
                tracker)
    # An interleaved pipeline stays interleaved; Megatron-LM wrote a plain one.
    if "model0" in load(ours / ranks[0].name / "model_optim_rng.pt"):
        return compare_whole(folder, out, other)
    for rank in ranks:
        compare_rank(ours / rank.name, rank, info)


def compare_whole(folder, ours, theirs):
    import torch

    tensors = []
    for name, path in ("ours", ours), ("theirs", theirs):
        CKPT.ok("unshard", path, folder / f"{name}.pt", "--model-only")
        tensors.append(torch.load(folder / f"{name}.pt"))
    compare_trees(*(dict(sorted(t.items())) for t in tensors), None, "whole")


def test_back(folder, case, options):
    """To another topology and back: the files' tensors are as they were."""
    CKPT.ok("reshard", case / "ckpt", folder / "there", *options)
    args = load(next(step_of(case / "ckpt").iterdir())
                / "model_optim_rng.pt")["args"]
    CKPT.ok("reshard", folder / "there", folder / "back", *options_of(args))
    info = json.loads((case / "case.json").read_text())
    ours, theirs = step_of(folder / "back"), step_of(case / "ckpt")
    uneven = getattr(args, "decoder_first_pipeline_num_layers", None)
    vpp = getattr(args, "virtual_pipeline_model_parallel_size", None)
    if uneven or vpp:
        return compare_whole(folder, folder / "back", case / "ckpt")
    # With tp=1 it is switched off, as in training, and stays off.
    incidental = INCIDENTAL | {"sequence_parallel"}
    for rank in sorted(theirs.iterdir()):
        compare_rank(ours / rank.name, rank, info, incidental)


def of_optimizers(path):
    """What training resumes from: weights, the optimizer's values and numbers,
    flat buffers. (Keys don't hold scaling factors or random states.)"""
    state = load(path / "model_optim_rng.pt")
    model = {k: v for k, v in flatten(state["model"])
             if not str(k[-1]).endswith("_extra_state")}
    flat = path / "distrib_optim.pt"
    return model, state["optimizer"], load(flat) if flat.exists() else None


def test_by_keys(folder, case):
    """Through sharded keys and back: ranks' optimizers as Megatron-LM wrote
    them, each group, number and place in a flat buffer."""
    CKPT.ok("convert", case / "ckpt", folder / "keys", "--to",
            "megatron_torch_dist")
    theirs = step_of(case / "ckpt")
    args = load(next(theirs.iterdir()) / "model_optim_rng.pt")["args"]
    CKPT.ok("convert", folder / "keys", folder / "back", "--to",
            "megatron_legacy", *options_of(args))
    CKPT.ok("verify", case / "ckpt", folder / "back")
    info = json.loads((case / "case.json").read_text())
    ours = step_of(folder / "back")
    for rank in sorted(theirs.iterdir()):
        rows = rows_here(info, args, rank.name)
        for got, want in zip(of_optimizers(ours / rank.name),
                             of_optimizers(rank)):
            compare_leaves(got, want, rows, rank.name)


def compare_leaves(got, want, rows, what):
    """Like compare_trees, ignoring the order of dicts."""
    got, want = dict(flatten(got)), dict(flatten(want))
    check_equal(sorted(map(str, got)), sorted(map(str, want)), what)
    for path, expected in want.items():
        check_leaf(got[path], expected, (what, *path), rows)


def copy_of(case, folder):
    shutil.copytree(case / "ckpt", folder / "ckpt")
    return folder / "ckpt"


def test_missing_rank(folder, case):
    path = copy_of(case, folder)
    shutil.rmtree(step_of(path) / "mp_rank_01_001")
    result = CKPT.run("inspect", path).want(3)
    check("mp_rank_01_001" in result.err, f"names the directory\n{result}")


HOLES = ("llama_te_tp2_pp2", "llama_te_tp2_dp2_distopt",
         "gpt_te_tied_pp2_distopt_buckets", "lm_gpt_tp2_fp16",
         "moe_te_tp2_ep2")


def test_holes(folder, case):
    """Any lost directory or optimizer is damage to verify, which names it;
    nothing is written without it."""
    path = copy_of(case, folder)
    aside, holes = folder / "aside", sorted(step_of(path).glob("mp_rank_*"))
    holes += sorted(step_of(path).rglob("distrib_optim.pt"))
    for hole in holes:
        hole.rename(aside)
        result = CKPT.run("verify", path, "--json").want(1)
        problems = [p for p in result.json()["problems"]
                    if p["kind"] == "missing_file"]
        check(len(problems) == 1, f"one problem for {hole}\n{result}")
        said = problems[0]["file"] + problems[0]["message"]
        named = (hole.name if hole.is_dir() or aside.is_dir() else
                 f"{hole.parent.name}/{hole.name}")
        if case.name.startswith("moe"):  # of tensor rank 0, any expert's
            named = named[:len("mp_rank_00")]
        check(named in said, f"names {named}\n{result}")
        for command, *to in (("reshard",), ("unshard",),
                             ("convert", "--to", "megatron_torch_dist")):
            result = CKPT.run(command, path, folder / "out", *to)
            check(result.code in (3, 4), f"without {hole}\n{result}")
            check(not (folder / "out").exists(), f"{result}\nwrote it")
        aside.rename(hole)
    CKPT.ok("verify", path)


def test_truncated(folder, case):
    path = copy_of(case, folder)
    file = step_of(path) / "mp_rank_01_001" / "model_optim_rng.pt"
    file.write_bytes(file.read_bytes()[:-100])
    result = CKPT.run("inspect", path).want(4)
    check("mp_rank_01_001" in result.err, f"names the file\n{result}")


def change(file, edit):
    """Rewrites a torch.save file with another value."""
    import torch

    value = load(file)
    edit(value)
    torch.save(value, file)


def test_wrong_numel(folder, case):
    def edit(value):
        buffer, = value[0].values()
        for name in "param", "exp_avg", "exp_avg_sq":
            buffer[name] = buffer[name][:-64].clone()
        buffer["numel_unpadded"] -= 64

    path = copy_of(case, folder)
    change(step_of(path) / "mp_rank_01" / "distrib_optim.pt", edit)
    result = CKPT.run("inspect", path).want(4)
    check("numel_unpadded" in result.err, f"says both numbers\n{result}")


def test_swapped(folder, case):
    """Two swapped main weights are found before writing."""
    def edit(value):
        mains = value["optimizer"]["fp32_from_fp16_params"][0]
        same = [i for i, t in enumerate(mains) if t.shape == mains[0].shape]
        mains[same[0]], mains[same[1]] = mains[same[1]], mains[same[0]]
        for key, item in list(vars(value["args"]).items()):
            if isinstance(item, (Opaque, list)):
                delattr(value["args"], key)

    path = copy_of(case, folder)
    for file in step_of(path).glob("*/model_optim_rng.pt"):
        change(file, edit)
    result = CKPT.run("reshard", path, folder / "out", "--pp", 1).want(5)
    check("word_embeddings" in result.err or "linear" in result.err,
          f"names the parameter\n{result}")


def test_places(folder, case):
    """Each two folders of ranks, exchanged, are found, and putting them back
    mends it."""
    path = copy_of(case, folder)
    step = step_of(path)
    names = sorted(p.name for p in step.iterdir())
    for first, second in itertools.combinations(names, 2):
        def exchange(a, b):
            (step / a).rename(folder / "aside")
            (step / b).rename(step / a)
            (folder / "aside").rename(step / b)

        exchange(first, second)
        result = CKPT.run("verify", path).want(1)
        check("each other's places" in result.out, f"{first}: {result}")
        CKPT.run("reshard", path, folder / "out", "--pp", 1).want(4)
        exchange(first, second)
        CKPT.ok("verify", path)


def test_sizes(folder, source):
    """The sizes that a refusal names are accepted."""
    def convert(tp):
        return CKPT.run("convert", source, folder / f"tp{tp}", "--to",
                        "megatron_legacy", "--tp", tp)

    result = convert(64).want(5)
    found = re.search(r"and the heads: ([\d, ]+)", result.err)
    check(found, f"names the sizes\n{result}")
    taken = [tp for tp in range(1, 17) if convert(tp).code == 0]
    check_equal([int(n) for n in found[1].split(", ")], taken, "sizes")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for case in sorted(p.parent for p in ROOT.glob("*/case.json")):
        others = case / "other"
        for other in sorted(others.iterdir()) if others.exists() else []:
            suite.add(f"{case.name}: like the peer's {other.name}", test_other,
                      case, other)
    for name, options in (
            ("llama_te_tp2_dp2_distopt", ("--tp", 1, "--pp", 2)),
            ("llama_te_tp2_pp2", ("--tp", 4, "--pp", 3)),
            ("gpt_te_tied_pp2_distopt_buckets", ("--tp", 2, "--pp", 1)),
            ("gpt_local_tied_pp2_vpp2", ("--tp", 2, "--pp", 1)),
            ("moe_te_tp2_ep2", ("--tp", 2, "--ep", 4, "--dp", 4)),
            ("moe_te_tp2_ep2", ("--tp", 2, "--pp", 2, "--ep", 1)),
            ("moe_seq_pp2_ep2_release", ("--tp", 2, "--pp", 1)),
            ("lm_gpt_tp2_fp16", ("--tp", 4, "--pp", 2))):
        suite.add(f"{name}: {' '.join(map(str, options))} and back",
                  test_back, ROOT / name, options)
    for name in ("llama_te_tp2_pp2", "llama_te_tp2_dp2_distopt",
                 "gpt_te_tied_pp2_distopt_buckets", "moe_te_tp2_ep2",
                 "moe_te_bias_ep2_distopt"):
        suite.add(f"{name}: by sharded keys and back", test_by_keys,
                  ROOT / name)
    for name in ("olmo2_tp2dp1", "qwen25_tp4dp1_mixed"):
        suite.add(f"{name}: sizes that a refusal names", test_sizes,
                  DATA / "fairseq2_native" / name / "other/hf")
    for case in sorted(p.parent for p in ROOT.glob("*/case.json")):
        suite.add(f"{case.name}: ranks exchanged", test_places, case)
    case = ROOT / "llama_te_tp2_pp2"
    suite.add("a rank is missing", test_missing_rank, case)
    for name in HOLES:
        suite.add(f"{name}: holes", test_holes,
                  DATA / "megatron_legacy" / name)
    suite.add("a file is cut short", test_truncated, case)
    suite.add("main weights changed places", test_swapped,
              ROOT / "llama_te_tp2_pp2")
    suite.add("a flat buffer is too short", test_wrong_numel,
              ROOT / "llama_te_tp2_dp2_distopt")


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
