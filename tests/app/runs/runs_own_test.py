#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A trainer that a user adds: --trainer-file, CKPT_TRAINER_PATH.

Steps of ckpt's own trainers are written as that trainer's, torch reads what
came out, and the way back has the source's model and optimizer. Each field of
ckpt's records is then misspelt, and given a value of another kind: refused, at
its line and column.
"""

import copy
import json
import os
import re
import sys
from pathlib import Path

from support import (
    DATA, Suite, check, check_equal, load_pt, read_safetensors)

CKPT = None  # set by prepare
GOLDENS = DATA / "runs"
RECORDS = (Path(__file__).resolve().parents[3] / "formats" / "runs" /
           "trainers.json")
SOURCES = {
    "hf_trainer_qwen2": ("checkpoint-10", 10),
    "hf_trainer_fsdp2_w2": ("checkpoint-3", 3),
    "verl_fsdp2_w2": ("global_step_10/actor", 10),
}
ACME = {
    "name": "acme",
    "what": "Acme's trainer",
    "signature": ["progress.json", "adam.pt"],
    "steps": ["step_{N}"],
    "step": {"file": "progress.json", "key": "done.steps"},
    "models": [{"file": "model.safetensors", "at": "", "read": "safetensors"}],
    "optimizers": [{"file": "adam.pt", "at": "adam.pt", "read": "torch",
                    "order": "names"}],
    "parts": [
        {"file": "schedule.pt", "part": "scheduler", "count": "last_epoch"},
        {"file": "rng_{r}.pt", "part": "rng"},
    ],
    "writes": {
        "groups": "source",
        "scheduler": "kept",
        "forms": [{"as": "files", "optimizer": "adam.pt"}],
        "values": [
            {"file": "progress.json",
             "value": {"done": {"steps": "$step", "position": "$position?"},
                       "ranks": "$ranks", "list": [1, 2.5, None, True, "x"]}},
            {"file": "schedule.pt", "value": "$scheduler?"},
            {"file": "rng_{r}.pt", "value": {"seed": 0, "ranks": "$ranks"}},
        ],
        "says": [{"kind": "seed", "text": "step {step}: set the seed"}],
    },
}
SHARDED = {
    "name": "acme_dcp",
    "what": "Acme's trainer of many ranks",
    "signature": ["state/.metadata", "READY.json"],
    "steps": ["at_{N}"],
    "step_in_name": True,
    "models": [{"file": "state/.metadata", "at": "state", "read": "dcp",
                "prefixes": ["app.model."],
                "optimizers": ["app.optim.state."],
                "others": ["app.optim.param_groups."]}],
    "writes": {
        "groups": "source",
        "forms": [{"as": "dcp", "model": "state", "model_key": "app.model",
                   "optimizer": "state", "optimizer_key": "app.optim"}],
        "values": [
            {"value": {"progress": {"steps": "$step", "unknown": None}}},
            {"file": "READY.json", "value": {"ranks": "$ranks"}},
        ],
    },
}


def write_file(folder, *records):
    path = folder / "mine.json"
    path.write_text(json.dumps(
        {"schema": "ckpt-trainers/1", "trainers": list(records)}, indent=1))
    return path


def step_of(case):
    return GOLDENS / case / "ckpt" / SOURCES[case][0]


def tensors_of(path, *options):
    """Model and optimizer, by the parameters' names."""
    return {one["name"]: one["digest"] for one in CKPT.inspect(
        path, "--digest", *options)["tensors"]}


def test_there_and_home(folder, case):
    step, count = step_of(case), SOURCES[case][1]
    mine = write_file(folder, ACME)
    out = folder / f"step_{count}"
    said = CKPT.run("convert", step, out, "--to", "run", "--trainer", "acme",
                    "--dp", 1, "--trainer-file", mine, "--verify")
    said.want(0)
    check(f"step {count}: set the seed" in said.err, said.err)
    progress = json.loads((out / "progress.json").read_text())
    check_equal(progress["done"]["steps"], count, "progress.json: steps")
    check_equal(progress["ranks"], 1, "progress.json: ranks")
    check_equal(progress["list"], [1, 2.5, None, True, "x"], "a list")
    check_equal(load_pt(out / "rng_0.pt"), {"seed": 0, "ranks": 1}, "rng_0.pt")
    if case != "verl_fsdp2_w2":
        position = load_pt(out / "schedule.pt")["last_epoch"]
        check_equal(position, progress["done"]["position"], "schedule.pt")
    state = load_pt(out / "adam.pt")
    weights = read_safetensors(out / "model.safetensors")
    check(0 < len(state["state"]) <= len(weights), "states of adam.pt")
    for one in state["param_groups"]:
        check("lr" in one and one["params"], f"a group {one}")

    # Read by a process that knows the trainer by the path alone.
    env = dict(os.environ, CKPT_TRAINER_PATH=str(folder))
    facts = CKPT.run("inspect", folder, "--json", env=env).json()
    check_equal(facts["trainer"], {"name": "acme", "step": count}, "inspect")
    listed = CKPT.run("ls", folder, env=env).want(0).out
    check(f"step_{count}" in listed, listed)
    check("acme" not in CKPT.run("inspect", out).out, "known without a file")

    home = folder / "home"
    CKPT.ok("convert", out, home, "--to", "run", "--trainer", "accelerate",
            "--trainer-file", mine)
    check_equal(tensors_of(home), tensors_of(step), "the way home")


def test_sharded(folder, case):
    step, count = step_of(case), SOURCES[case][1]
    mine = write_file(folder, ACME, SHARDED)
    out = folder / f"at_{count}"
    CKPT.run("convert", step, out, "--to", "run", "--trainer", "acme_dcp",
             "--trainer-file", mine, "--dp", 3, "--verify").want(0)
    check_equal(json.loads((out / "READY.json").read_text()), {"ranks": 3},
                "READY.json")
    values = CKPT.inspect(out / "state", "--objects")
    check("progress.steps" in json.dumps(values), values)
    facts = CKPT.inspect(out, "--trainer-file", mine)
    check_equal(facts["trainer"], {"name": "acme_dcp", "step": count},
                "inspect")
    again = folder / "at_0"
    CKPT.ok("reshard", out, again, "--dp", 2, "--trainer-file", mine)
    home = folder / "home"
    CKPT.ok("convert", again, home, "--to", "run", "--trainer", "acme",
            "--trainer-file", mine)
    check_equal(tensors_of(home, "--trainer-file", mine), tensors_of(step),
                "the way home")


def test_first(folder):
    record = dict(ACME, signature=["trainer_state.json"])
    del record["writes"], record["step"]
    mine = write_file(folder, record)
    facts = CKPT.inspect(step_of("hf_trainer_qwen2"), "--trainer-file", mine,
                         "--from", "run")
    check_equal(facts["trainer"]["name"], "acme", "the user's signature")


def test_not_its_own(folder):
    """What a record writes, it reads: else nothing is written."""
    values = ACME["writes"]["values"]
    for change, words in (
            ({"signature": ["progress.json", "other|name"]}, "no other.name"),
            ({"models": [{"file": "weights.bin", "at": "", "read": "torch"}]},
             "weights.bin"),
            ({"writes": {**ACME["writes"], "values": values[1:]}},
             "no progress.json")):
        mine = write_file(folder, {**ACME, **change})
        out = folder / "step_10"
        said = CKPT.run("convert", step_of("hf_trainer_qwen2"), out, "--to",
                        "run", "--trainer", "acme", "--trainer-file", mine)
        said.want(5)
        check(re.search(words, said.err), said.err)
        check(not out.exists(), "nothing is written")


def test_page(folder):
    """The example of the page, as it stands there."""
    page = (RECORDS.parents[2] / "docs" / "trainers.md").read_text()
    text = page[page.index('    {\n      "schema"'):page.index("The records of")]
    mine = folder / "mine.json"
    mine.write_text(text)
    out = folder / "step_10"
    CKPT.ok("convert", step_of("hf_trainer_qwen2"), out, "--to", "run",
            "--trainer", "acme", "--trainer-file", mine)
    check_equal(tensors_of(out, "--trainer-file", mine),
                tensors_of(step_of("hf_trainer_qwen2")), "the page's example")


def refused(folder, text, words):
    path = folder / "mine.json"
    path.write_text(text)
    said = CKPT.run("inspect", step_of("hf_trainer_qwen2"), "--trainer-file",
                    path)
    check(said.code in (2, 4), said)
    for word in words:
        check(re.search(word, said.err), f"no {word!r} in {said.err}")


def test_refused(folder):
    def of(**changes):
        record = {**copy.deepcopy(ACME), **changes}
        return json.dumps(
            {"schema": "ckpt-trainers/1", "trainers": [record]}, indent=1)

    def writes(**changes):
        return of(writes={**copy.deepcopy(ACME["writes"]), **changes})

    refused(folder, "{", ["mine.json:1:"])
    refused(folder, "[]", ["mine.json:1:1", "an object"])
    refused(folder, "{}", ["mine.json:1:1", "schema"])
    refused(folder, of().replace("trainers/1", "trainers/2"),
            [r"mine.json:2:\d+", "expected .ckpt-trainers/1"])
    for name in ("verl", "none"):
        refused(folder, of(name=name), [r"mine.json:5:\d+", "already", "name"])
    refused(folder, json.dumps({"schema": "ckpt-trainers/1",
                                "trainers": [ACME, ACME]}), ["already"])
    refused(folder, of(models=[{"file": "x", "read": "safetensor"}]),
            ["no format is called", "did you mean 'safetensors'"])
    refused(folder, of(models=[{"file": "x"}]), ["\"read\" is missing"])
    refused(folder, writes(groups="decays"), ["did you mean 'decay'"])
    refused(folder, writes(forms=[{"as": "files"}]), ["optimizer"])
    refused(folder, writes(forms=[{"as": "ranks", "optimizer": "x"}]),
            ["model"])
    refused(folder, writes(values=[{"file": "x", "value": "$steps"}]),
            ["stands for nothing", "did you mean '.step'"])
    refused(folder, writes(values=[{"file": "x.json", "value": "$scheduler"}]),
            ["JSON can.t hold"])
    refused(folder, writes(values=[{"value": {"a": 1}}]), ["\"file\""])
    refused(folder, of(steps="x" * (2 << 20)), ["mine.json", "bytes|large"])
    said = CKPT.run("ls", folder, "--trainer-file", folder / "absent.json")
    check(said.code in (2, 3), said)


def paths(value, path=()):
    if isinstance(value, dict):
        for key, one in value.items():
            yield (*path, key)
            yield from paths(one, (*path, key))
    elif isinstance(value, list):
        for i, one in enumerate(value):
            yield from paths(one, (*path, i))


def at(value, path):
    for key in path:
        value = value[key]
    return value


def fields():
    """One record for each field that any of ckpt's records has."""
    found = {}
    for record in json.loads(RECORDS.read_text())["trainers"]:
        for path in paths(record):
            kind = tuple("N" if isinstance(key, int) else key for key in path)
            # A value's own keys are the user's.
            if kind[:4] != ("writes", "values", "N", "value"):
                found.setdefault(kind, (record, path))
    check(len(found) > 90, f"{len(found)} fields")
    return sorted(found.items())


def test_fields(folder, kind, record, path):
    def text(change):
        one = copy.deepcopy(record)
        one["name"] = "acme"
        change(at(one, path[:-1]))
        return json.dumps({"schema": "ckpt-trainers/1", "trainers": [one]},
                          indent=1)

    def misspell(parent):
        parent[path[-1] + "x"] = parent.pop(path[-1])

    def other_kind(parent):
        parent[path[-1]] = 7 if not isinstance(parent[path[-1]], int) or \
            isinstance(parent[path[-1]], bool) else "7"

    refused(folder, text(misspell), [r"mine\.json:\d+:\d+", "field|missing"])
    refused(folder, text(other_kind), [r"mine\.json:\d+:\d+", "expected"])


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for case in SOURCES:
        suite.add(f"{case} as a trainer of one's own", test_there_and_home,
                  case)
        suite.add(f"{case} as one of many ranks", test_sharded, case)
    suite.add("one's own signature comes first", test_first)
    suite.add("a record that doesn't read what it writes", test_not_its_own)
    suite.add("the page's example", test_page)
    suite.add("refused", test_refused)
    for kind, (record, path) in fields():
        suite.add("field " + ".".join(kind), test_fields, kind, record, path)


if __name__ == "__main__":
    sys.exit(Suite(__doc__).main(prepare))
