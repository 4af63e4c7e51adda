#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""--model-only is what the module's load_state_dict(strict=True) takes, from
each source into each target; what else a step holds is named."""


import torch
from safetensors.torch import load_file

from support import DATA, Suite, check, check_equal

CKPT = None
SOURCES = sorted(path.parent for path in DATA.glob("runs/*/expected.safetensors"))
# Their weights have the trainer's own names, or are cut for its ranks.
OWN_NAMES = {"nanotron_tp2"}
TARGETS = ("out.pt", "out.bin", "out.safetensors", "dir:safetensors",
           "dir:torch", "dir:dcp")


def words_for(source, folder, target):
    out = folder / target.replace(":", "_")
    kind = target.split(":")[1:]
    return ["convert", source, out, *(["--to", *kind] if kind else [])], out


def read_dcp(folder):
    from torch.distributed.checkpoint import FileSystemReader, load

    reader = FileSystemReader(str(folder))
    rows = reader.read_metadata().state_dict_metadata
    values = [name for name, row in rows.items()
              if not hasattr(row, "properties")]
    check_equal(values, [], "values beside the tensors")
    state = {name: torch.empty(row.size, dtype=row.properties.dtype)
             for name, row in rows.items()}
    load(state, storage_reader=reader, no_dist=True)
    return state


def read(out):
    """What the peer's plain loader gives: torch's takes tensors alone."""
    if out.is_dir() and (out / ".metadata").exists():
        return read_dcp(out)
    files = [out] if out.is_file() else sorted(
        [*out.glob("*.safetensors"), *out.glob("*_model*.bin")])
    state = {}
    for path in files:
        state |= load_file(path) if path.suffix == ".safetensors" else \
            torch.load(path, weights_only=True, map_location="cpu")
    return state


def expected(source):
    return load_file(source / "expected.safetensors")


def step_of(source):
    """What is opened: the folder that a golden has its checkpoint in."""
    return source / "ckpt"


def test_matrix(folder, source, target):
    words, out = words_for(step_of(source), folder, target)
    done = CKPT.run(*words, "--model-only")
    if done.code == 5:  # refused with a reason is an answer, too
        check("hint: " in done.err and not out.exists(), str(done))
        return
    done.want(0)
    state = read(out)
    check(all(isinstance(value, torch.Tensor) for value in state.values()),
          f"values: {[k for k, v in state.items() if not torch.is_tensor(v)]}")
    want = expected(source)
    bare = {name.rsplit("model.", 1)[-1] for name in want}
    for name in state:
        check(not any(word in name.split(".") for word in
                      ("optimizer", "exp_avg", "exp_avg_sq", "scheduler",
                       "rng", "state_dict", "optim")), f"{name} in {target}")
    if source.name in OWN_NAMES:
        return
    check_equal({name.rsplit("model.", 1)[-1] for name in state}
                - {"lm_head.weight"}, bare - {"lm_head.weight"}, "names")


def nested(folder):
    """A trainer's own file: the state dict behind a key, wrapped or not."""
    torch.manual_seed(1)
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8),
                                torch.nn.Linear(8, 2))
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.randn(3, 4)).sum().backward()
    optimizer.step()
    for at, key in enumerate(("model", "state_dict", "net", "ema.shadow")):
        tree = model.state_dict()
        for part in reversed(key.split(".")):
            tree = {part: tree}
        yield model, folder / f"{at}.pt", tree | {
            "optimizer": optimizer.state_dict(), "epoch": 3,
            "rng": torch.get_rng_state(), "args": {"lr": 1e-3}}


def test_module(folder):
    """The module takes it, strictly."""
    for model, path, tree in nested(folder):
        torch.save(tree, path)
        for target in ("m.pt", "m.safetensors", "d:dcp", "t:torch"):
            words, out = words_for(path, folder, target)
            CKPT.ok(*words, "--model-only", "--overwrite")
            state = read(out)
            fresh = torch.nn.Sequential(
                torch.nn.Linear(4, 8), torch.nn.BatchNorm1d(8),
                torch.nn.Linear(8, 2))
            fresh.load_state_dict(state, strict=True)
            for name, value in model.state_dict().items():
                check(torch.equal(value, fresh.state_dict()[name]), name)


def test_own_structure(folder):
    """A torch file becomes a torch file with all that it had."""
    for _, path, tree in nested(folder):
        torch.save(tree, path)
        CKPT.ok("convert", path, folder / "same.pt", "--overwrite")
        got = torch.load(folder / "same.pt", weights_only=True)
        check_equal(list(got), list(tree), "keys")
        check_equal(got["optimizer"]["param_groups"],
                    tree["optimizer"]["param_groups"], "groups")


def test_one_file(folder):
    """One .safetensors of a step has no optimizer state; --with-optimizer asks
    for it, and a directory holds none."""
    for source in SOURCES:
        if source.name in OWN_NAMES or not load_file(
                source / "expected_optim.safetensors"):
            continue
        step = step_of(source)
        for command in ("convert", "unshard"):
            out = folder / f"{source.name}_{command}.safetensors"
            done = CKPT.run(command, step, out)
            if done.code == 5:
                check("hint: " in done.err, str(done))
                continue
            plain = load_file(out)
            check(not any("exp_avg" in name for name in plain), str(done))
            check("--with-optimizer" in done.err, str(done))
            CKPT.ok(command, step, out, "--with-optimizer", "--overwrite")
            more = load_file(out)
            check(set(plain) <= set(more), "weights")
            check(any("exp_avg" in name for name in more), str(done))
        done = CKPT.run("convert", step, folder / "d", "--to", "safetensors",
                        "--with-optimizer").want(2)
        check("--to dcp" in done.err, str(done))


def test_not_compared(folder):
    """verify A B: what B has no place for is counted, not a mismatch; a weight
    that is gone is one."""
    source = DATA / "runs/hf_trainer_qwen2/ckpt"
    for target in ("out.safetensors", "d:safetensors"):
        words, out = words_for(source, folder, target)
        CKPT.ok(*words)
        done = CKPT.ok("verify", source, out, "--json").json()
        kinds = {one["kind"] for one in done["problems"]}
        check_equal((done["ok"], kinds), (True, {"not_compared"}), target)
        line = CKPT.ok("verify", source, out).out.splitlines()[-1]
        count = len([one for one in done["problems"]
                     if one["kind"] == "not_compared"])
        check_equal(done["not_compared"], count, "the document's count")
        check(line.startswith("identical: ")
              and line.endswith(f"; {count} not compared"), line)
    words, out = words_for(source, folder, "less.safetensors")
    CKPT.ok(*words, "--exclude", "*.layers.1.*")
    CKPT.run("verify", source, out).want(1)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for source in SOURCES:
        for target in TARGETS:
            suite.add(f"{source.name} to {target}", test_matrix, source, target)
    suite.add("a module takes it", test_module)
    suite.add("torch to torch", test_own_structure)
    suite.add("one file of weights", test_one_file)
    suite.add("what has no place", test_not_compared)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
