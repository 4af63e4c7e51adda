#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An optimizer by number, beside a model that proves no order: the state stays
numbered, and a warning says so and how to go on.

Trainers and their containers are those of trainers.json: a new one is tried,
too. Each folder has what its record asks for, and no more.
"""

import json

from support import DATA, Suite, check, check_equal

CKPT = None  # set by prepare
TRAINERS = DATA.parents[1] / "formats/runs/trainers.json"
# A module is left and entered again, which no pickle of modules does, and all
# parameters have one shape.
NAMES = ("a.0.weight", "b.weight", "a.1.weight")
# What has states by name only, or has formats of its own.
NEVER = ("deepspeed", "nanotron")
CONTENTS = {
    "trainer_state.json": '{"global_step": 3}', "training_info.json":
    '{"step": 3}', "composer_metadata.json": "{}",
    "random_states_{r}.pkl": {"step": 0}, "meta.pt": {"global_step": 3},
    "recipe_state.pt": {"seed": 1}, "train.pt": {"global_step": 3},
    "config.yaml": "model:\n  d_model: 4\n",
}


def plain(pattern):
    for key, value in (("{N}", "3"), ("{E}", "0"), ("{V}", "0"), ("{r}", "0"),
                       ("{i}", "0"), ("{_i}", ""), ("{W}", "1"), ("{*}", "")):
        pattern = pattern.replace(key, value)
    return pattern.split("|")[0]


def cases():
    """Trainer, and the container that has the optimizer."""
    for trainer in json.loads(TRAINERS.read_text())["trainers"]:
        if "pickled" in trainer:
            yield trainer, "pickled", {"read": "torch", "file": ""}
        for kind in ("models", "optimizers"):
            for source in trainer.get(kind, ()):
                inside = kind == "optimizers" or source.get("optimizers")
                if inside and source["read"] not in NEVER:
                    yield trainer, kind, source


def states():
    import torch

    return {"state": {number: {"exp_avg": torch.full((3, 3), number + 1.0),
                               "step": torch.tensor(2.0)}
                      for number in range(len(NAMES))},
            "param_groups": [{"lr": 0.1, "params": list(range(len(NAMES)))}]}


def nested(path, value):
    for key in reversed([key for key in path.split(".") if key]):
        value = {key: value}
    return value


def write(path, value):
    import torch

    path.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(value, str):
        path.write_text(value)
    elif path.suffix == ".safetensors":
        from safetensors.torch import save_file

        save_file(value, str(path), metadata={"format": "pt"})
    else:
        torch.save(value, path)


def save_dcp(value, path):
    import torch.distributed.checkpoint as dcp

    path.mkdir(parents=True, exist_ok=True)
    dcp.save(value, checkpoint_id=str(path), no_dist=True)


def model_beside(trainer, source):
    """The model's container: of the optimizer's kind, if there is one."""
    usable = [s for s in trainer["models"] if s["read"] not in NEVER
              and not s["file"].endswith((".index.json"))
              and "{s}" not in s["file"] and "adapter" not in s["file"]]
    same = [s for s in usable if s["read"] == source["read"]]
    return (same or [s for s in usable if s["read"] != "dcp"] or usable)[0]


def by_number(source, whole):
    """Keys of a DCP; each trainer's own are in its record."""
    keys = {f"{source.get('prefixes', [''])[0]}{n}": t
            for n, t in weights().items()} if whole else {}
    if source.get("optimizers"):
        prefix = source["optimizers"][0].replace("{*}", "AdamW").replace(
            "{i}", "0")
        for number, state in states()["state"].items():
            keys.update({f"{prefix}{number}.{k}": t for k, t in state.items()})
    return keys


def weights():
    import torch

    return {name: torch.full((3, 3), 0.5) for name in NAMES}


def build(root, trainer, kind, source):
    step = root / plain(trainer.get("steps", ["step"])[0])
    if kind == "pickled":
        pickled = trainer["pickled"]
        step = root / "mine.ckpt"
        optimizers = pickled["optimizers"]
        value = nested(pickled["model"], weights())
        held = [states()] if "." not in optimizers else {"AdamW": states()}
        for more in (nested(optimizers, held),
                     nested(pickled["sign"].split("|")[0], "2.0")):
            merge(value, more)
        write(step, value)
        return step
    role = trainer.get("roles", [""])[0]
    folder = step / role if role else step
    model = model_beside(trainer, source) if kind == "optimizers" else source
    for one, whole in ((model, True), (source, kind == "models")):
        at = folder / plain(one["at"] if "at" in one else one["file"])
        if one["read"] == "dcp":
            keys = by_number(one, whole)
            for sign in trainer.get("objects", ()) if whole else ():
                keys[sign.split("|")[0].rstrip(".")
                     + (".step" if sign.endswith(".") else "")] = 3
            save_dcp(keys, at)
        elif whole:
            path = at if at.suffix else folder / plain(one["file"])
            write(path, weights())
        else:
            value = states()
            write(at, nested(source["key"], value) if "key" in source
                  else value)
    of_roles = trainer.get("role_signature", ())
    signs = [(step if of_roles else folder, s) for s in trainer["signature"]]
    signs += [(folder, s) for s in of_roles]
    for where, sign in signs:
        first = sign.split("|")[0]
        if any((where / plain(s)).exists() for s in sign.split("|")):
            continue
        if first.endswith("/"):
            (where / plain(first)).mkdir()
        else:
            write(where / plain(first), CONTENTS[first])
    return step


def merge(into, more):
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            merge(into[key], value)
        else:
            into[key] = value


def test_numbered(folder, trainer, kind, source):
    step = build(folder, trainer, kind, source)
    found = CKPT.inspect(step)
    check_equal(found["trainer"]["name"], trainer["name"], "trainer")
    held = [t for t in found["tensors"] if t["kind"] == "optim"]
    check_equal(len(held), 2 * len(NAMES), "states")
    for tensor in held:
        check(".state." in tensor["name"], f"{tensor['name']}: not numbered")
    said = [p for p in found["problems"] if p["kind"] == "numbered_state"]
    check_equal([p["severity"] for p in said], ["warning"], "said")
    other = "lightning" if trainer["name"] == "accelerate" else "accelerate"
    result = CKPT.run("convert", step, folder / "out", "--to", "run",
                      "--trainer", other)
    check(result.code == 5 and not (folder / "out").exists(), f"{result}")
    # Where a list of names would do, it is said, and it does.
    listing = folder / "order.txt"
    listing.write_text("\n".join(NAMES))
    named = CKPT.inspect(step, "--assume-order", listing)
    names = {t["name"] for t in named["tensors"] if t["kind"] == "optim"}
    is_named = names == {f"{n}.{k}" for n in NAMES for k in ("exp_avg", "step")}
    check_equal("--assume-order" in said[0]["message"], is_named,
                f"said how to go on: {said[0]['message']}; {names}")
    check(is_named or source["read"] == "dcp" or trainer["name"] == "torchtune",
          f"{names}")


def test_without_parameter(folder, trainer, kind, source):
    """A state that its file puts under no parameter."""
    if source["read"] != "dcp":
        return
    step = build(folder, trainer, kind, source)
    name = step / (trainer.get("roles", [""])[0]) / plain(source["at"])
    keys = by_number(source, kind == "models")
    prefix = source["optimizers"][0].replace("{*}", "AdamW").replace("{i}", "0")
    keys = {k: v for k, v in keys.items() if not k.startswith(prefix)}
    keys[prefix + "whose"] = states()["state"][0]["exp_avg"]
    if kind == "models":
        for sign in trainer.get("objects", ()):
            keys[sign.split("|")[0].rstrip(".")
                 + (".step" if sign.endswith(".") else "")] = 3
    save_dcp(keys, name)
    said = CKPT.inspect(step)["problems"]
    check([p for p in said if p["kind"] == "numbered_state"], f"{said}")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    tried = set()
    for trainer, kind, source in cases():
        what = source["file"] or "one file"
        tried.add(trainer["name"])
        suite.add(f"{trainer['name']}: {what}", test_numbered, trainer, kind,
                  source)
        suite.add(f"{trainer['name']}: {what}, of no parameter",
                  test_without_parameter, trainer, kind, source)
    check(len(tried) > 10, f"{tried}")


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
