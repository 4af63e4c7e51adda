#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Main weights that are not their weights. megatron-core 0.19.2 itself saves
fully_reshardable optimizer states of several padded buckets, each after the
first shifted: `verify` finds it in every format that such a checkpoint is
carried into, and writers say so. What it saves in one bucket is sound.

`salvage` moves it back, where the weights prove it: the same model saved in one
bucket says what each element was. megatron-core loads the result."""

import sys
from pathlib import Path

from peer import Peer
from support import Skip, Suite, check, check_equal

CKPT = None
CORE = Path(sys.prefix) / "megatron_core_0.19.2"
PROGRAM = Peer("megatron_peer.py", PYTHONPATH=str(CORE))
MODEL = {"layers": 2, "hidden": 24, "heads": 4, "groups": 2, "ffn": 40,
         "vocab": 96, "seq": 16, "swiglu": True, "bias": True, "tied": False,
         "pos": "rope"}
BUCKET = 3000  # elements; padding to 128 follows each

TARGETS = {
    "torch_dist": ("megatron_torch_dist", "--tp", 2, "--pp", 1, "--dp", 1),
    "zarr": ("megatron_zarr",), "dcp": ("dcp",), "torch": ("torch",),
    "safetensors": ("safetensors",),
    "legacy": ("megatron_legacy", "--tp", 1, "--pp", 1),
}


def save(folder, topology, bucket, name="saved", model=None, **more):
    if not CORE.exists():
        raise Skip("megatron-core 0.19 is not installed")
    path = folder / name
    path.mkdir()
    sizes = {"tp": 1, "pp": 1, **topology}
    job = {"kind": "save", "path": str(path), "expected": [],
           "model": {**MODEL, **(model or {})}, "topology": topology,
           "world": 2 * sizes["tp"] * sizes["pp"], **more}
    if bucket:
        job["bucket"] = bucket
    wrong = PROGRAM.ask(job)
    check(not wrong, f"megatron-core saves: {wrong}")
    return path


def wrong_weights(path, folder):
    """How many main weights do not round to their weights, as torch sees
    them: of all parameters that have such an element, their names."""
    from safetensors.torch import load_file

    plain = folder / "plain.safetensors"
    CKPT.ok("unshard", path, plain, "--no-manifest")
    tensors = load_file(plain)
    prefix = "optimizer.state.param."
    return {name.removeprefix(prefix) for name, main in tensors.items()
            if name.startswith(prefix)
            and (main.bfloat16() != tensors[name.removeprefix(prefix)]).any()}


def named(path, *options):
    report = CKPT.run("verify", path, "--json", *options).want(1).json()
    kinds = {}
    for problem in report["problems"]:
        kinds.setdefault(problem["kind"], []).append(problem)
    return kinds


def test_shifted(folder, topology):
    path = save(folder, topology, BUCKET)
    wrong = wrong_weights(path, folder)
    check(wrong, "megatron-core shifts them")
    kinds = named(path, "--deep")
    check_equal({p["tensor"] for p in kinds["main_weight"]}, wrong, "names")
    (bug,) = kinds["shifted_optimizer"]
    check("0.19.2" in bug["message"] and "5077" in bug["message"],
          f"names the bug and its versions: {bug}")
    check("shifted_optimizer" in named(path), "found without --deep")
    CKPT.ok("verify", path, "--quick")
    CKPT.ok("convert", path, folder / "model", "--to", "megatron_torch_dist",
            "--model-only")
    CKPT.ok("verify", folder / "model", "--deep")


def test_carried(folder):
    path = save(folder, {}, BUCKET)
    for target, options in TARGETS.items():
        result = CKPT.ok("convert", path, folder / target, "--to", *options,
                         "--json")
        check("shifted_optimizer" in {p["kind"] for p in
                                      result.json()["problems"]},
              f"the writer of {target} warns\n{result}")
        kinds = named(folder / target, "--deep")
        check(kinds["main_weight"], f"found in {target}: {kinds}")


def test_sound(folder, topology):
    path = save(folder, topology, None)
    check(not wrong_weights(path, folder), "one bucket is sound")
    result = CKPT.ok("verify", path, "--deep")
    check("no problems found" in result.out, str(result))


def plain(path, folder):
    from safetensors.torch import load_file

    file = folder / f"{path.name}.safetensors"
    CKPT.ok("unshard", path, file, "--no-manifest", "-q")
    return load_file(file), file


def without_gone(tensors, gone):
    """The same with NaN for what is said to be gone."""
    tensors = {name: value.clone() for name, value in tensors.items()}
    lost = {}
    for one in gone:
        box, (begin, end) = one["box"], one["elements"]
        part = tensors[one["tensor"]][tuple(
            slice(at, at + n) for at, n in zip(box["offset"], box["shape"]))]
        flat = part.flatten().clone()
        flat[begin:end] = float("nan")
        part.copy_(flat.reshape(part.shape))
        state = one["tensor"].split(".")[2]
        lost[state] = lost.get(state, 0) + end - begin
    return tensors, lost


def compare_back(back, sound, gone):
    """Each element is the one that the sound save has, or gone by name."""
    import torch

    back, lost = without_gone(back, gone)
    sound, _ = without_gone(sound, gone)
    check_equal(set(back), set(sound), "names")
    wrong = [name for name, value in back.items() if not torch.equal(
        value.nan_to_num(7), sound[name].nan_to_num(7))]
    check(not wrong, f"not what was saved in one bucket: {wrong}")
    return lost


def test_salvage(folder, topology, model, most):
    """At most that share of each state is gone."""
    path = save(folder, topology, BUCKET, model=model)
    truth = save(folder, topology, None, "sound", model=model)
    refused = CKPT.run("salvage", path, folder / "no", "--json").want(5)
    check("can't be undone" not in refused.out, str(refused))
    check(not (folder / "no").exists(), "nothing is written")
    result = CKPT.run("salvage", path, folder / "back", "--partial", "zeros",
                      "--json").want(1).json()
    check(not result["lost"], f"only elements are lost: {result['lost']}")
    kinds = named(folder / "back", "--deep")
    check_equal(set(kinds), {"unproven"}, "verify --deep")
    back, file = plain(folder / "back", folder)
    lost = compare_back(back, plain(truth, folder)[0], result["gone"])
    sizes = {state: sum(value.numel() for name, value in back.items()
                        if name.startswith(f"optimizer.state.{state}."))
             for state in ("param", "exp_avg", "exp_avg_sq")}
    check_equal(len(set(lost.values())), 1, f"alike in all states: {lost}")
    check(0 < lost["param"] <= most * sizes["param"],
          f"{lost['param']} of {sizes['param']} are gone")
    sizes = {"tp": 1, "pp": 1, **topology}
    wrong = PROGRAM.ask({
        "kind": "optim", "path": str(folder / "back"),
        "expected": [str(file)], "model": {**MODEL, **model},
        "topology": topology, "world": 2 * sizes["tp"] * sizes["pp"],
        "main_weight": "param"})
    check(not wrong, f"megatron-core loads it: {wrong}")


def test_tied(folder):
    """A shared embedding has a bucket of its own, even if nothing overlaps."""
    import torch

    path = save(folder, {"pp": 2}, None, model={"tied": True})
    CKPT.run("salvage", path, folder / "back", "--partial", "zeros").want(1)
    back, _ = plain(folder / "back", folder)
    for name, main in back.items():
        if name.startswith("optimizer.state.param."):
            weight = back[name.removeprefix("optimizer.state.param.")]
            check(torch.equal(main.bfloat16(), weight), name)


def test_constant(folder):
    """Norms and biases of ones prove nothing themselves: either what is around
    them does, or nothing is moved."""
    path = save(folder, {}, BUCKET, ones=True)
    truth = save(folder, {}, None, "sound", ones=True)
    result = CKPT.run("salvage", path, folder / "back", "--partial", "zeros",
                      "--json").want(1).json()
    if result["lost"]:
        check("constant parameters" in str(result["lost"]), str(result))
        return
    compare_back(plain(folder / "back", folder)[0], plain(truth, folder)[0],
                 result["gone"])


def test_rounded_otherwise(folder):
    """Nothing proves what is near its weight, but not the same."""
    path = save(folder, {}, BUCKET, noise=0.003)
    result = CKPT.run("salvage", path, folder / "back", "--json").want(5)
    (why,) = [one["what"] for one in result.json()["lost"]
              if "can't be undone" in one["what"]]
    check("stochastic rounding" in why, why)
    check(not (folder / "back").exists(), "nothing is written")


def test_lost_besides(folder):
    """Beside what is lost for another reason nothing is proven."""
    path = save(folder, {}, BUCKET)
    (data,) = path.glob("*.distcp")
    with open(data, "r+b") as file:
        file.truncate(data.stat().st_size * 9 // 10)
    result = CKPT.run("salvage", path, folder / "back", "--json").want(5)
    check("can't be undone" in result.out, str(result))


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for topology in ({}, {"tp": 2}):
        suite.add(f"several buckets at {topology}", test_shifted, topology)
    suite.add("carried into every format", test_carried)
    experts = {"experts": 4}
    for topology, model, most in (
            ({}, {}, 0.03), ({"tp": 2}, {}, 0.06),
            ({"tp": 2, "pp": 2}, {"layers": 4}, 0.03),
            ({"ep": 2}, experts, 0.01),
            ({}, {"norm": "RMSNorm", "bias": False}, 0.03)):
        suite.add(f"moved back at {topology} {model}", test_salvage, topology,
                  model, most)
    for test in (test_tied, test_constant, test_rounded_otherwise,
                 test_lost_besides):
        suite.add(test.__name__.removeprefix("test_"), test)
    for topology in ({}, {"pp": 2}):
        suite.add(f"one bucket at {topology}", test_sound, topology)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
