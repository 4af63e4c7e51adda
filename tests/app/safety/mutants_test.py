#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A family file with a wrong rule fails its golden: all mutants are caught.

Each rule of each dialect is broken in every way below, one at a time, and the
golden model is converted with the broken file. A mutant is caught if ckpt
refuses it or the result isn't the peer's. Mutants that are equivalent by their
form (two equal sources swapped, say) aren't made.
"""

import copy
import json
import re

from support import DATA, Suite, check, read_safetensors

CKPT = None  # set by prepare
GOLDENS = DATA / "hf"
FAMILIES = DATA.parents[1] / "models/families"
DIALECTS = ("mcore", "meta", "fairseq2", "olmo_core")


def ops_of(rule):
    ops = rule.get("op", [])
    return copy.deepcopy(ops if isinstance(ops, list) else [ops])


def put_ops(rule, ops):
    rule.pop("op", None)
    if ops:
        rule["op"] = ops


def swapped_sources(rule):
    """q for k, gate for up."""
    for i in range(len(rule.get("hf", [])) - 1):
        mutant = copy.deepcopy(rule)
        hf = mutant["hf"]
        hf[i], hf[i + 1] = hf[i + 1], hf[i]
        yield f"sources {i} and {i + 1} swapped", mutant


def lost_source(rule):
    if len(rule.get("hf", [])) > 1:
        mutant = copy.deepcopy(rule)
        mutant["hf"].pop()
        yield "last source lost", mutant


def wrong_ops(rule):
    ops = ops_of(rule)
    for i, op in enumerate(ops):
        name = op if isinstance(op, str) else op["name"]
        if name == "vocab":
            continue  # has no effect on a model that isn't padded
        mutant = copy.deepcopy(rule)
        put_ops(mutant, ops[:i] + ops[i + 1:])
        yield f"{name} left out", mutant
        if name == "qkv":
            mutant = copy.deepcopy(rule)
            put_ops(mutant, ops[:i] + ["cat"] + ops[i + 1:])
            yield "qkv as cat", mutant
        if name == "cat":
            mutant = copy.deepcopy(rule)
            dim = op.get("dim", 0) if isinstance(op, dict) else 0
            put_ops(mutant, ops[:i] + [{"name": "cat", "dim": 1 - dim}] +
                    ops[i + 1:])
            yield "cat along the other dimension", mutant
        if name == "rope_interleave":
            mutant = copy.deepcopy(rule)
            put_ops(mutant, ops[:i] + [dict(op, heads=f"2 * {op['heads']}")] +
                    ops[i + 1:])
            yield "twice the heads", mutant
        if name == "add":
            mutant = copy.deepcopy(rule)
            put_ops(mutant, ops[:i] + [dict(op, value=-op["value"])] +
                    ops[i + 1:])
            yield "subtracted", mutant
        if name == "const":
            mutant = copy.deepcopy(rule)
            put_ops(mutant, ops[:i] + [dict(op, value=1 - op["value"])] +
                    ops[i + 1:])
            yield "another constant", mutant
    if not ops and len(rule.get("hf", [])) == 1 and "proj" in rule["hf"][0]:
        if rule["hf"][0].endswith("weight"):
            mutant = copy.deepcopy(rule)
            put_ops(mutant, ["t"])
            yield "transposed", mutant
            mutant = copy.deepcopy(rule)
            put_ops(mutant, ["deinterleave"])
            yield "rows in another order", mutant


def renamed(rule):
    mutant = copy.deepcopy(rule)
    mutant["to"] += "_"
    yield "renamed", mutant


MUTATIONS = (swapped_sources, lost_source, wrong_ops, renamed)


def mutants(rules):
    """(the change, all rules with it applied)."""
    for i, rule in enumerate(rules):
        for mutation in MUTATIONS:
            for what, broken in mutation(rule):
                yield (f"{rule['to']}: {what}", rules[:i] + [broken] +
                       rules[i + 1:])
        yield f"{rule['to']}: rule lost", rules[:i] + rules[i + 1:]
    # Swaps the sources of two rules with equally many: norms for norms.
    for i, a in enumerate(rules):
        for j in range(i + 1, len(rules)):
            b = rules[j]
            kin = (a.get("op") == b.get("op") and len(a["hf"]) == len(b["hf"])
                   and a.get("when") == b.get("when") and a["hf"] != b["hf"]
                   and a["hf"] and ("{l}" in a["to"]) == ("{l}" in b["to"])
                   and ("{e}" in a["to"]) == ("{e}" in b["to"]))
            if kin:
                first, second = copy.deepcopy(a), copy.deepcopy(b)
                first["hf"], second["hf"] = b["hf"], a["hf"]
                swapped = list(rules)
                swapped[i], swapped[j] = first, second
                yield f"{a['to']} and {b['to']}: sources exchanged", swapped


def family_of(case):
    info = json.loads((GOLDENS / case / "case.json").read_text())
    return FAMILIES / (info["family"] + ".json")


def one_group(case):
    """A single group of heads: grouped q, k, v are q, k, v."""
    config = json.loads((GOLDENS / case / "ckpt/config.json").read_text())
    return config.get("num_key_value_heads") == 1


def other_ends(folder, case, dialect, want):
    """The golden with one matrix for both ends if it has two, or two if it has
    one; and the result expected. These models' dialects keep both in any
    case."""
    from safetensors.torch import load_file, save_file
    from support import from_torch

    embedding, head = {
        "meta": ("tok_embeddings.weight", "output.weight"),
        "fairseq2": ("decoder_frontend.embed.weight", "final_proj.weight"),
        "olmo_core": ("embeddings.weight", "lm_head.w_out.weight"),
    }[dialect]
    state = load_file(str(GOLDENS / case / "expected.safetensors"))
    tie = state.pop("lm_head.weight", None) is not None
    last = want[embedding]
    if not tie:
        flipped = state["model.embed_tokens.weight"].flip(0).contiguous()
        state["lm_head.weight"] = flipped
        last = from_torch(flipped)
    path = folder / f"other_{case}"
    if not path.exists():
        path.mkdir()
        config = json.loads((GOLDENS / case / "ckpt/config.json").read_text())
        config["tie_word_embeddings"] = tie
        (path / "config.json").write_text(json.dumps(config))
        save_file(state, str(path / "model.safetensors"))
    return path, dict(want, **{head: last})


def convert(source, dialect, family, out):
    return CKPT.run("convert", source, out, "--to",
                    "safetensors", "--dialect", dialect, "--family-file",
                    family, "--overwrite", "--no-manifest", "--no-fsync", "-q")


def caught(source, dialect, family, out, want):
    result = convert(source, dialect, family, out)
    check(result.code in (0, 2, 5), f"{result}")
    return result.code != 0 or read_safetensors(out) != want


def test_family(folder, family, cases):
    """cases: (case, dialect), each with a golden. Any of them may catch a
    mutant."""
    original = json.loads(family.read_text())
    mutant, out = folder / "mutant.json", folder / "out.safetensors"
    total, missed = 0, []
    for dialect in sorted({dialect for _, dialect in cases}):
        models = []
        rules = original["dialects"][dialect]["rules"]
        for case in [case for case, d in cases if d == dialect]:
            want = read_safetensors(
                GOLDENS / case / f"expected_{dialect}.safetensors")
            models.append((GOLDENS / case / "ckpt", want))
            if any(rule.get("alias") for rule in rules):
                models.append(other_ends(folder, case, dialect, want))
        for source, want in models:
            check(not caught(source, dialect, family, out, want),
                  f"{source}, {dialect}: the rules as they are fail")
        alive = [r for r in rules if lives(r, models)]
        plain = all(one_group(case) for case, d in cases if d == dialect)
        for what, broken in mutants(alive):
            if plain and what.endswith("qkv as cat"):
                continue
            changed = copy.deepcopy(original)
            rest = [r for r in rules if r not in alive]
            changed["dialects"][dialect]["rules"] = broken + rest
            mutant.write_text(json.dumps(changed))
            total += 1
            if not any(caught(source, dialect, mutant, out, want)
                       for source, want in models):
                missed.append(f"{dialect}: {what}")
    print(f"  {family.stem}: {total - len(missed)} of {total} mutants caught",
          flush=True)
    check(not missed, f"{len(missed)} of {total} mutants live: " +
          "\n  ".join(missed))


def lives(rule, models):
    """Whether some model has a tensor that the rule makes."""
    parts = re.split(r"\{[^}]*\}", rule["to"])
    pattern = re.compile(r"\d+".join(map(re.escape, parts)) + "$")
    return any(pattern.match(name) for _, want in models for name in want)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    by_family = {}
    for case in sorted(p.name for p in GOLDENS.iterdir() if p.is_dir()):
        for dialect in DIALECTS:
            if (GOLDENS / case / f"expected_{dialect}.safetensors").exists():
                by_family.setdefault(family_of(case), []).append(
                    (case, dialect))
    for family, found in by_family.items():
        suite.add(family.stem, test_family, family, found)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
