#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""GaLore and APOLLO in the folder of a step: a projector makes each gradient
smaller, so neither its state nor its own matrix has the parameter's shape.

The states have the names and shapes that galore_torch 1.0 and apollo_torch
1.0.3 give them; their classes are here by name alone.
"""

import sys
import types

import runs_optimizers_test as others
from support import DATA, Suite, check, check_equal, digest

CKPT = None  # set by prepare

# GaLore and APOLLO under the Trainer: the first group is what
# --optim_target_modules does not name (trainer_optimizer.py).
TARGETS = ("self_attn", "mlp")
CLASSES = {"galore": "galore_torch.galore_projector.GaLoreProjector",
           "apollo": "apollo_torch.random_projector.GradientProjector"}


def projector_class(which):
    """A class of the library's name, for pickle alone."""
    module, _, name = CLASSES[which].rpartition(".")
    for one in (module.partition(".")[0], module):
        sys.modules.setdefault(one, types.ModuleType(one))
    if not hasattr(sys.modules[module], name):
        setattr(sys.modules[module], name,
                type(name, (), {"__module__": module}))
    return getattr(sys.modules[module], name)


def projected(one, which, kind, rank):
    """(projector, shape of its gradients), as project() of
    galore_projector.py and random_projector.py makes them."""
    import torch

    rows, columns = one.shape
    right = kind == "right" or (kind == "std" and rows >= columns)
    if kind == "full":
        matrix = [torch.rand(rows, rank), torch.rand(rank, columns)]
        shape = (rank, rank)
    else:
        matrix = torch.rand(*((rank, columns) if right else (rows, rank)))
        shape = (rows, rank) if right else (rank, columns)
    made_one = projector_class(which)()
    made_one.__dict__.update(rank=rank, update_proj_gap=200, scale=0.25,
                             proj_type=kind, ortho_matrix=matrix)
    return made_one, shape


def low_rank_groups():
    """Of modules, split by target."""
    names = others.by_module()

    def named(n):
        return n.endswith(".weight") and any(one in n for one in TARGETS)

    return [[n for n in names if not named(n)], [n for n in names if named(n)]]


def low_rank(which, kind="std", rank=4, factored=False):
    import torch

    known, number = others.parameters(), 0
    states, groups = {}, []
    for target, names in enumerate(low_rank_groups()):
        first = number
        for name in names:
            one, state = known[name], {"step": 3}
            shape = tuple(one.shape)
            if target:
                state["projector"], shape = projected(one, which, kind, rank)
            if which == "apollo":
                state |= {"seed": number + 1, "scaled_grad": torch.rand(())}
            if factored and len(shape) == 2:
                state |= {"exp_avg_sq_row": torch.rand(shape[0]),
                          "exp_avg_sq_col": torch.rand(shape[1])}
            else:
                state |= {"exp_avg": torch.rand(shape),
                          "exp_avg_sq": torch.rand(shape)}
            states[number] = state
            number += 1
        groups.append({"params": list(range(first, number)), "lr": 1e-3,
                       "weight_decay": 0.0,
                       **({"rank": rank} if target else {})})
    return {"state": states, "param_groups": groups}


LOW_RANK = {
    "GaLore": {"which": "galore"},
    "GaLore with Adafactor": {"which": "galore", "factored": True},
    "GaLore, both sides": {"which": "galore", "kind": "full"},
    "GaLore, right": {"which": "galore", "kind": "right"},
    "GaLore, left": {"which": "galore", "kind": "left"},
    "APOLLO": {"which": "apollo"},
    # Matrix and moments fit each other both ways.
    "APOLLO of a higher rank": {"which": "apollo", "rank": 20},
}


def flat(states, names):
    """<parameter>.<state> -> tensor, a projector's own among them."""
    import torch

    found = {}
    for number, state in states["state"].items():
        for key, value in state.items():
            parts = {key: value}
            if key == "projector":
                matrix = value.ortho_matrix
                parts = ({f"{key}.ortho_matrix.{i}": one
                          for i, one in enumerate(matrix)}
                         if isinstance(matrix, list)
                         else {f"{key}.ortho_matrix": matrix})
            found.update({f"{names[number]}.{k}": v for k, v in parts.items()
                          if isinstance(v, torch.Tensor)})
    return found


def test_low_rank(folder, kind):
    import torch

    states = low_rank(**LOW_RANK[kind])
    names = [n for group in low_rank_groups() for n in group]
    step, want = others.save(folder, states), flat(states, names)
    found = CKPT.inspect(step, "--digest")
    got = {t["name"]: (tuple(t["shape"]), t["digest"])
           for t in found["tensors"] if t["kind"] == "optim"}
    check_equal(got, {n: (tuple(t.shape), digest(t.numpy().tobytes()))
                      for n, t in want.items()}, "named")
    # Every tensor and value is in the file, without the class.
    out = folder / "all.pt"
    said = CKPT.ok("convert", step, out, "--to", "torch", "--exclude",
                   "training_args", "--exclude", "rng_state").err
    check(CLASSES[LOW_RANK[kind]["which"]] in said, said)
    loaded = torch.load(out, weights_only=True)
    kept = loaded["optimizer"]["state"]
    check_equal({f"{p}.{k}" for p, one in kept.items() for k in one},
                set(want), "written")
    for param, one in kept.items():
        for key, value in one.items():
            check(torch.equal(value, want[f"{param}.{key}"]), (param, key))
    for number, state in states["state"].items():
        above = f"optimizer.state.{names[number]}."
        check_equal(loaded[above + "step"], 3, above)
        if "projector" in state:
            values = {k: v for k, v in vars(state["projector"]).items()
                      if k != "ortho_matrix"}
            check_equal({k: loaded[f"{above}projector.{k}"] for k in values},
                        values, above)
    check_equal(CKPT.run("verify", step, out).code, 0, "verify")


def test_low_rank_refuted(folder):
    states = low_rank("galore")
    last = states["state"][max(states["state"])]["projector"]
    last.ortho_matrix = last.ortho_matrix[:, :3].contiguous()
    others.check_numbered(others.save(folder, states))


def strided(shape, which, shared):
    """A matrix of that shape as views of other storages have it; `shared` is
    one of them, of several matrices."""
    import torch

    rows, columns = shape
    big = torch.randn(2 * rows + 3, 2 * columns + 5)
    return (lambda: big.t().contiguous().t()[:rows, :columns],  # transposed
            lambda: big[1:rows + 1, 2:columns + 2],             # of a larger
            lambda: big[::2, ::2][:rows, :columns],             # stepped
            lambda: big[:1, :columns].expand(shape),            # broadcast
            lambda: big.T.flatten().as_strided(shape, (1, 1), 3),  # overlaps
            lambda: shared[which:which + rows * columns].view(shape)
            )[which % 6]()


def test_strided(folder):
    """torch.linalg.svd's matrices are views: they are read as torch reads them,
    and for other ranks the file stays as it is."""
    import torch

    states, shared = low_rank("galore"), torch.randn(10000)
    which = 0
    for state in states["state"].values():
        if "projector" in state:
            matrix = state["projector"].ortho_matrix
            state["projector"].ortho_matrix = strided(
                matrix.shape, which, shared)
            which += 1
    check(which > 11, f"two of each: {which}")
    step = others.save(folder, states)
    loaded = torch.load(step / "optimizer.pt", weights_only=False)
    order = [n for group in low_rank_groups() for n in group]
    want = flat(loaded, order)
    check(any(0 in t.stride() for t in want.values() if t.dim()), "strides")
    got = {t["name"]: t["digest"]
           for t in CKPT.inspect(step, "--digest")["tensors"]
           if t["kind"] == "optim"}
    check_equal(got, {n: digest(t.contiguous().numpy().tobytes())
                      for n, t in want.items()}, "as torch.load")
    out = folder / "out"
    said = CKPT.ok("reshard", step, out, "--dp", 2, "--verify", "-v",
                   "--keep-unknown-globals").err
    check("go along as the file's bytes" in said, said)
    written = flat(torch.load(out / "optimizer.pt", weights_only=False), order)
    check_equal(set(written), set(want), "written")
    for name, one in want.items():
        check(torch.equal(written[name], one), name)
        check_equal(written[name].stride(), one.stride(), name)
    CKPT.ok("verify", step, out)
    # GaLore's own class is in the source's file, too.
    for folder in (step, out):
        found = CKPT.run("verify", folder, "--json").want(1).json()
        kinds = {p["kind"] for p in found["problems"]}
        check("executes" in kinds and "unlisted_tensor" not in kinds, kinds)
    # The manifest covers what has no place of its own.
    matrix = next(t.untyped_storage() for n, t in want.items()
                  if "ortho_matrix" in n and not t.is_contiguous())
    raw, whole = bytes(matrix), (out / "optimizer.pt").read_bytes()
    at = whole.index(raw)
    (out / "optimizer.pt").write_bytes(
        whole[:at] + bytes([raw[0] ^ 1]) + whole[at + 1:])
    found = CKPT.run("verify", out, "--json").want(1).json()
    check("file_digest" in {p["kind"] for p in found["problems"]},
          found["problems"])


def test_strided_file(folder):
    """Lightning's file, too, is such a file with any strides."""
    import torch

    golden = DATA / "runs/lightning_ckpt/ckpt/checkpoints/epoch=0-step=16.ckpt"
    state = torch.load(golden, weights_only=False)
    one = next(t for t in state["state_dict"].values() if t.dim() == 2)
    one.data = one.t().contiguous().t()
    source, out = folder / "a.ckpt", folder / "b.ckpt"
    torch.save(state, source)
    CKPT.ok("convert", source, out, "--to", "run", "--verify")
    CKPT.ok("verify", source, out)
    CKPT.ok("verify", out)
    written = torch.load(out, weights_only=False)["state_dict"]
    for name, want in state["state_dict"].items():
        check(torch.equal(written[name], want), name)
        check_equal(written[name].stride(), want.stride(), name)


def test_low_rank_targets(folder):
    """Formats that can't hold it refuse; the model alone goes everywhere."""
    step = others.save(folder, low_rank("galore"))
    ran = CKPT.run("convert", step, folder / "m", "--to",
                   "megatron_torch_dist").want(5)
    check("--model-only" in ran.err, ran.err)
    CKPT.ok("convert", step, folder / "s", "--to", "safetensors",
            "--model-only")


def prepare(suite, ckpt):
    global CKPT
    CKPT = others.CKPT = ckpt
    for kind in LOW_RANK:
        suite.add(f"{kind}: by name, and to torch", test_low_rank, kind)
    suite.add("GaLore: another shape", test_low_rank_refuted)
    suite.add("GaLore: other targets", test_low_rank_targets)
    suite.add("strided", test_strided)
    suite.add("strided, one file", test_strided_file)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
