#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`ckpt diff`: one screen for two steps, and sentences that the bytes prove.

torch makes the changes. diff must name each of them, and claim nothing about a
change that is none of them.
"""

import json
import random
import re
import shutil

import torch
from safetensors.torch import load_file, save_file

from support import Suite, check, check_equal

CKPT = None
LAYERS = 12


def model(seed=1):
    torch.manual_seed(seed)
    state = {"model.embed_tokens.weight": torch.randn(64, 32)}
    for layer in range(LAYERS):
        at = f"model.layers.{layer}."
        for name in ("q_proj", "k_proj", "o_proj"):
            state[f"{at}self_attn.{name}.weight"] = torch.randn(32, 32)
        for name in ("gate_proj", "up_proj"):
            state[f"{at}mlp.{name}.weight"] = torch.randn(48, 32)
        state[f"{at}mlp.down_proj.weight"] = torch.randn(32, 48)
        state[f"{at}input_layernorm.weight"] = torch.ones(32)
    state["model.norm.weight"] = torch.ones(32)
    return state


def save(folder, name, state):
    state = {k: v.clone().contiguous() for k, v in state.items()}
    save_file(state, str(folder / name), {"format": "pt"})
    return folder / name


def differences(a, b):
    return CKPT.run("diff", a, b, "--json").want(1).json()["differences"]


def two_steps(folder):
    """All tensors differ: a line for each pattern, with counts and numbers."""
    one = model()
    two = {k: v + 1e-3 * torch.randn_like(v) for k, v in one.items()}
    a, b = save(folder, "a.safetensors", one), save(folder, "b.safetensors", two)
    result = CKPT.run("diff", a, b).want(1)
    lines = result.out.splitlines()
    check(len(lines) < 15, result.out)
    check_equal(len(differences(a, b)), len(one), "--json lists each")
    gate = next(l for l in lines if "gate_proj" in l)
    check(f"layers.{{0-{LAYERS - 1}}}." in gate and f"×{LAYERS}" in gate, gate)
    names = [f"model.layers.{i}.mlp.gate_proj.weight" for i in range(LAYERS)]
    most = max((one[n] - two[n]).abs().max().item() for n in names)
    check(f"{most:.3g}" in gate, f"{most:.3g} is not in {gate}")
    check(f"{len(one)} differences" in lines[-1], lines[-1])
    # Numbers are aligned: the columns after the names end together.
    check_equal(len({len(l) for l in lines[:-1]}), 1, result.out)


def some_layers(folder):
    """The layers that differ are listed, as ranges."""
    one, two = model(), model()
    for layer in (0, 1, 2, 7):
        two[f"model.layers.{layer}.mlp.up_proj.weight"] += 1
    result = CKPT.run("diff", save(folder, "a.safetensors", one),
                      save(folder, "b.safetensors", two)).want(1)
    check("layers.{0-2,7}.mlp.up_proj.weight" in result.out, result.out)


def only_in_one(folder):
    one, two = model(), model()
    for layer in range(LAYERS):
        del two[f"model.layers.{layer}.mlp.up_proj.weight"]
    two["extra.weight"] = torch.zeros(3)
    result = CKPT.run("diff", save(folder, "a.safetensors", one),
                      save(folder, "b.safetensors", two)).want(1)
    minus = [l for l in result.out.splitlines() if l.startswith("-")]
    plus = [l for l in result.out.splitlines() if l.startswith("+")]
    check(len(minus) == 1 and f"×{LAYERS}" in minus[0], result.out)
    check(len(plus) == 1 and "extra.weight" in plus[0], result.out)


def heads(weight, order):
    rows = weight.view(len(order), weight.shape[0] // len(order), -1)
    return rows[torch.tensor(order)].reshape(weight.shape)


Q = "model.layers.3.self_attn.q_proj.weight"
GATE, UP = ("model.layers.3.mlp.gate_proj.weight",
            "model.layers.3.mlp.up_proj.weight")


def swap(state):
    state[GATE], state[UP] = state[UP], state[GATE]


# What is changed in the second of two, the tensors that differ, the sentence.
SENTENCES = {
    "bf16 cast": (lambda s: s.update({Q: s[Q].bfloat16()}), (Q,),
                  "equal after cast to bf16"),
    "f16 cast": (lambda s: s.update({Q: s[Q].half()}), (Q,),
                 "equal after cast to f16"),
    "rounded": (lambda s: s.update({Q: s[Q].bfloat16().float()}), (Q,),
                "B is A rounded to bf16"),
    "gate and up": (swap, (GATE, UP), "gate and up swapped"),
    "heads": (lambda s: s.update({Q: heads(s[Q], (2, 0, 3, 1))}), (Q,),
              "rows permuted by heads (4 blocks of 8 rows)"),
    "rows": (lambda s: s.update(
        {Q: s[Q][torch.tensor([1, 0, 3, 2, *range(5, 32), 4])]}), (Q,),
        "rows permuted"),
    "transposed": (lambda s: s.update({Q: s[Q].t()}), (Q,), "transposed"),
    "a norm plus one": (lambda s: s.update(
        {"model.norm.weight": s["model.norm.weight"] + 1}),
        ("model.norm.weight",), "B is A plus one: the weights of a norm"),
    "fused halves": (lambda s: s.update(
        {GATE: torch.cat(s[GATE].chunk(2)[::-1])}), (GATE,),
        "gate and up swapped"),
}
# Changes that only look like one of them: nothing may be claimed.
NOT_QUITE = {
    "cast but for one": lambda s: s.update(
        {Q: (s[Q] + (torch.arange(1024).view(32, 32) == 700)).bfloat16()}),
    "heads but for one": lambda s: s.update(
        {Q: heads(s[Q], (2, 0, 3, 1))
         + (torch.arange(1024).view(32, 32) == 1023)}),
    "transposed but for one": lambda s: s.update(
        {Q: s[Q].t() + (torch.arange(1024).view(32, 32) == 1000)}),
    "one way": lambda s: s.update({GATE: s[UP]}),
    "ones": lambda s: s.update(
        {"model.norm.weight": s["model.norm.weight"] + 1e-4}),
    "noise": lambda s: s.update({Q: s[Q] + torch.randn(32, 32)}),
}
def moments(folder):
    """Constant moments, one more each step: no norm's weights."""
    layer = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.LayerNorm(8))
    for step in (1, 2):
        state = {k: {"step": torch.tensor(float(step)),
                     "exp_avg": torch.full(v.shape, float(step - 1)),
                     "exp_avg_sq": torch.full(v.shape, float(step))}
                 for k, v in layer.state_dict().items()}
        for name, kept in (("optimizer", {"state": state, "param_groups": []}),
                           ("plain", state)):
            torch.save(kept, folder / f"{name}{step}.pt")
        flat = {f"optimizer.{k}.{n}": v for k, kept in state.items()
                for n, v in kept.items()}
        save(folder, f"flat{step}.safetensors", flat)
    for kind in ("optimizer{}.pt", "plain{}.pt", "flat{}.safetensors"):
        files = [folder / kind.format(step) for step in (1, 2)]
        for difference in differences(*files):
            said = difference["message"]
            check("norm" not in said and "another order" not in said, said)


CLAIMS = ("plus one", "equal after", "rounded to", "swapped", "permuted", "transposed",
          "padding", "another order")


def sentence(folder, change, names, words):
    one, two = model(), model()
    change(two)
    a, b = save(folder, "a.safetensors", one), save(folder, "b.safetensors", two)
    found = {d["tensor"]: d["message"] for d in differences(a, b)}
    check_equal(sorted(found), sorted(names), "what differs")
    for message in found.values():
        check(words in message, message)
    check(words in CKPT.run("diff", a, b).want(1).out, words)


def no_claim(folder, change):
    one, two = model(), model()
    change(two)
    a, b = save(folder, "a.safetensors", one), save(folder, "b.safetensors", two)
    for difference in differences(a, b):
        said = difference["message"]
        check(not any(claim in said for claim in CLAIMS), said)


def padding(folder):
    """Rows above the vocabulary are reported as such; one below is not."""
    for row, claimed in ((62, True), (60, True), (59, False)):
        for side in ("a", "b"):
            here = folder / f"{row}{side}"
            here.mkdir()
            state = model()
            if side == "b":
                state["model.embed_tokens.weight"][row] += 1
            save(here, "model.safetensors", state)
            (here / "config.json").write_text(json.dumps(
                {"model_type": "llama", "vocab_size": 60,
                 "architectures": ["LlamaForCausalLM"]}))
        said = differences(folder / f"{row}a", folder / f"{row}b")
        check_equal(len(said), 1, str(said))
        check(("only padding differs" in said[0]["message"]) == claimed,
              f"row {row}: {said}")
    padded = folder / "padded"
    shutil.copytree(folder / "60a", padded)
    state = model()
    state["model.embed_tokens.weight"] = torch.cat(
        [state["model.embed_tokens.weight"], torch.zeros(2, 32)])
    save(padded, "model.safetensors", state)
    said = CKPT.ok("verify", folder / "60a", padded).out
    check("padding: " in said and said.splitlines()[-1].startswith("identical: ")
          and said.endswith("no problems found\n"), said)
    shutil.rmtree(folder)
    folder.mkdir()


def verified(folder):
    """verify says as much about two in a line for each pattern, not in one for
    each tensor, and what a cast of the one would make of the other."""
    one = model()
    cast = {k: v.to(torch.bfloat16) for k, v in one.items()}
    off = {k: v + 1 if "gate" in k else v for k, v in cast.items()}
    a = save(folder, "a.safetensors", one)
    said = CKPT.run("verify", a, save(folder, "b.safetensors", cast)).want(1).out
    lines = said.splitlines()
    check(len(lines) <= 12, said)
    check_equal(sum("equal after cast to bf16" in l for l in lines),
                len(lines) - 1, said)
    gate = next(l for l in lines if "gate_proj" in l)
    check(gate.startswith(f"dtype: {folder}/b.safetensors: model.layers."
                          f"{{0-{LAYERS - 1}}}.mlp.gate_proj.weight (×{LAYERS})"),
          gate)
    check(lines[-1].startswith("mismatch: ")
          and lines[-1].endswith(f" {len(one)} problems"), said)
    every = CKPT.run("verify", a, folder / "b.safetensors", "-vv").want(1).out
    check_equal(len(every.splitlines()), len(one) + 1, "lines of -vv")
    said = CKPT.run("verify", a, save(folder, "c.safetensors", off)).want(1).out
    claims = [l for l in said.splitlines() if "equal after cast" in l]
    check(claims and not any("gate" in l for l in claims), said)


def habits(folder):
    """What a container says about itself isn't a difference; all else is."""
    tensors = {"a": torch.ones(3, 2), "b": torch.ones(4)}
    torch.save(tensors, folder / "plain.pt")
    for metadata, differ in (({"format": "pt"}, False),
                             ({"format": "pt", "step": "5"}, True),
                             ({"format": "np"}, True)):
        one = folder / "one.safetensors"
        save_file(tensors, one, metadata)
        result = CKPT.run("diff", one, folder / "plain.pt")
        check_equal(result.code, int(differ), f"{metadata}: {result}")
    for metadata, differ in (({"total_size": 40}, False),
                             ({"total_size": 40, "total_parameters": 10},
                              False),
                             ({"total_size": 40, "step": 5}, True)):
        whole = folder / "whole"
        whole.mkdir(exist_ok=True)
        name = "model-00001-of-00001.safetensors"
        save_file(tensors, whole / name, {"format": "pt"})
        (whole / "model.safetensors.index.json").write_text(json.dumps(
            {"metadata": metadata, "weight_map": dict.fromkeys(tensors, name)}))
        result = CKPT.run("diff", whole, folder / "plain.pt")
        check_equal(result.code, int(differ), f"{metadata}: {result}")


OTHER_NAMES = {
    "model.embed_tokens": "wte", "model.norm": "ln_f", "model.layers": "h",
    "self_attn.q_proj": "attn.w1", "self_attn.k_proj": "attn.w2",
    "self_attn.o_proj": "attn.w3", "mlp.gate_proj": "ff.a",
    "mlp.up_proj": "ff.b", "mlp.down_proj": "ff.c",
    "input_layernorm": "ln_1"}


def other_name(name):
    for own, other in OTHER_NAMES.items():
        name = name.replace(own, other)
    return name


def renamed(folder):
    """Names that share nothing: the hint is followed, and what was trained from
    A meets what it was made from, though shapes alone don't say which is
    which."""
    one = model()
    two = {other_name(k): v + 1e-3 * torch.randn_like(v)
           for k, v in one.items()}
    a, b = save(folder, "a.safetensors", one), save(folder, "b.safetensors", two)
    rules = CKPT.run("diff", a, b, "--json").want(1).json()["rename"]
    text = CKPT.run("diff", a, b).want(1).out
    check(f"{len(one)} tensors of A would have names of B's" in text, text)
    CKPT.ok("convert", a, folder / "out", "--to", "safetensors", "--rename",
            rules)
    met = {k: v for f in (folder / "out").glob("*.safetensors")
           for k, v in load_file(f).items()}
    check_equal(set(met), set(two), "names")
    for name, value in two.items():
        check((met[name] - value).abs().max() < 0.01, f"{name}: another tensor")
    left = differences(folder / "out", b)
    check_equal({d["kind"] for d in left}, {"values"}, "what is left")
    # Of another model, only those are named that no other has the shape of.
    other = {other_name(k): v for k, v in model(seed=2).items()}
    got = CKPT.run("diff", a, save(folder, "c.safetensors", other),
                   "--json").want(1).json().get("rename", "")
    for part in ("q_proj", "k_proj", "o_proj", "gate_proj", "up_proj"):
        check(part not in got, got)


def trained(seed):
    """A model in which no two tensors are equal, norms included."""
    state = model(seed)
    return {k: v + 0.01 * torch.randn_like(v) for k, v in state.items()}


def free_names(state, rng):
    """Names that say nothing, in another order."""
    keys = list(state)
    rng.shuffle(keys)
    return {k: rng.choice(("t{}", "x.{}", "a.{}.b", "{}.w")).format(i)
            for i, k in enumerate(keys)}


def reversed_layers(state, _):
    """The last layer first, in words of another library."""
    last = LAYERS - 1
    return {k: re.sub(r"layers\.(\d+)", lambda m:
                      f"layers.{last - int(m[1])}", other_name(k).replace(
                          "h.", "layers.")) for k in state}


def shuffled_layers(state, rng):
    """Layers in any order, in one library's words."""
    order = rng.sample(range(LAYERS), LAYERS)
    return {k: re.sub(r"layers\.(\d+)", lambda m:
                      f"layers.{order[int(m[1])]}", k.replace(
                          "model.", "decoder.", 1)) for k in state}


def swapped_roles(state, _):
    """Each tensor has the name that means another of its shape."""
    turn = {"q_proj": "k_proj", "k_proj": "o_proj", "o_proj": "q_proj",
            "gate_proj": "up_proj", "up_proj": "gate_proj"}
    return {k: re.sub("|".join(turn), lambda m: turn[m[0]], k).replace(
        "model.", "net.").replace("layers", "blk") for k in state}


def some_frozen(state, _):
    return {k: other_name(k) for k in state}


ANEW = (free_names, reversed_layers, shuffled_layers, swapped_roles,
        some_frozen)


def by_content(folder):
    """Whatever the names are, equal tensors meet, and the rename that is
    printed makes the two equal."""
    for n, names in enumerate(ANEW):
        for seed in range(2):
            rng = random.Random(100 * n + seed)
            one = trained(seed + 1)
            to = names(one, rng)
            two = {to[k]: v for k, v in one.items()}
            if names is some_frozen:  # later layers were trained
                two = {k: v if re.search(r"h\.[0-5]\.", k) else
                       v + 1e-3 * torch.randn_like(v) for k, v in two.items()}
            about = f"{names.__name__} {seed}"
            a = save(folder, "a.safetensors", one)
            b = save(folder, "b.safetensors", two)
            said = CKPT.run("diff", a, b, "--json").want(1).json()
            check("alike" not in said, about)
            text = CKPT.run("diff", a, b).want(1).out
            check(f"{len(one)} tensors of A would have names of B's" in text,
                  f"{about}: {text[-600:]}")
            check(len(text.splitlines()) < 2 * len(one) + 30, about)
            # In a file, as the text says where there are many names.
            rules = said["rename"]
            file = folder / "rename.json"
            file.write_text(rules)
            by_name = "--json | jq -r .rename > " in text
            check_equal(by_name, names in (free_names, reversed_layers), about)
            for given in [rules] + [file] * rules.startswith("{"):
                CKPT.ok("convert", a, folder / "out.safetensors", "--rename",
                        given, "--overwrite", "--dialect", "keep")
                met = load_file(folder / "out.safetensors")
                check_equal(set(met), set(two), about)
                for name, made in met.items():
                    check((made - two[name]).abs().max() < 0.01,
                          f"{about}: {name} is another tensor")
                done = CKPT.run("diff", folder / "out.safetensors", b)
                check_equal(done.code, int(names is some_frozen), about)


def alike(folder):
    """Tensors that are equal to several: nothing tells which is which, and
    nothing is said of them but that. A rule that the others prove is one."""
    rng = random.Random(5)
    one = trained(3)
    norms = [k for k in one if "norm" in k]
    for k in norms:
        one[k] = torch.ones(32)
    one["model.tied.weight"] = one["model.embed_tokens.weight"].clone()
    to = free_names(one, rng)
    two = {to[k]: v for k, v in one.items()}
    a, b = save(folder, "a.safetensors", one), save(folder, "b.safetensors", two)
    said = CKPT.run("diff", a, b, "--json").want(1).json()
    rules = json.loads(said["rename"])
    tied = ["model.embed_tokens.weight", "model.tied.weight"]
    check_equal(rules, {k: v for k, v in to.items() if k not in norms + tied},
                "what is certain")
    found = {tuple(sorted(g["a"])): set(g["b"]) for g in said["alike"]}
    check_equal(found, {tuple(sorted(g)): {to[k] for k in g}
                        for g in (norms, tied)}, "groups")
    text = CKPT.run("diff", a, b).want(1).out
    check(f"{len(norms)} tensors of A equal {len(norms)} of B's" in text
          and "2 tensors of A equal 2 of B's" in text, text)
    # All of them alike: nothing is said but that.
    ones = {k: torch.ones(4) for k in ("x", "y")}
    zeros = {k: torch.ones(4) for k in ("p", "q")}
    said = CKPT.run("diff", save(folder, "c.safetensors", ones),
                    save(folder, "d.safetensors", zeros), "--json").want(1)
    check("rename" not in said.json(), said.out)
    check_equal(said.json()["alike"], [{"a": ["x", "y"], "b": ["p", "q"]}],
                "alike")
    # A prefix that the rest proves says it of those, too.
    two = {k.replace("model.", "net.", 1): v for k, v in one.items()}
    b = save(folder, "b.safetensors", two)
    said = CKPT.run("diff", a, b, "--json").want(1).json()
    check_equal((said["rename"], "alike" in said), ("model.=net.", False),
                "a prefix")
    # Norms of ones between layers in another order: no rule by shape.
    to = reversed_layers(one, rng)
    b = save(folder, "b.safetensors", {to[k]: v for k, v in one.items()})
    said = CKPT.run("diff", a, b, "--json").want(1).json()
    CKPT.ok("convert", a, folder / "out.safetensors", "--rename",
            said["rename"], "--dialect", "keep", "--overwrite")
    met = load_file(folder / "out.safetensors")
    for name, made in load_file(b).items():
        check(name not in met or torch.equal(met[name], made), name)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for case in (two_steps, some_layers, only_in_one, padding, verified,
                 habits, renamed, by_content, alike, moments):
        suite.add(case.__name__, case)
    for name, row in SENTENCES.items():
        suite.add(f"says {name}", sentence, *row)
    for name, change in NOT_QUITE.items():
        suite.add(f"claims nothing: {name}", no_claim, change)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
