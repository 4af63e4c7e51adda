#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Optimizers other than Adam in the folder of a step: named by parameter where
counts and shapes of every state agree, else numbered, and said.

torch's own optimizers make the states over a golden's model in its trainer's
order; transformers' Adafactor and bitsandbytes' optimizers are not here, their
states have the names and shapes that their sources give them.
"""

import json
import shutil

from support import DATA, Suite, check, check_equal, digest

CKPT = None  # set by prepare
CASE = DATA / "runs" / "hf_trainer_qwen2"


def order():
    return json.loads((CASE / "case.json").read_text())["optimizer_order"]


def place(name):
    """Where Qwen2 registers it."""
    modules = ("embed_tokens", "q_proj", "k_proj", "v_proj", "o_proj",
               "gate_proj", "up_proj", "down_proj", "input_layernorm",
               "post_attention_layernorm", "model.norm", "lm_head")
    layer = int(name.split(".")[2]) if ".layers." in name else (
        -1 if "embed" in name else 99)
    which = next(i for i, one in enumerate(modules) if one in name)
    return layer, which, name.endswith(".bias")


def parameters():
    import torch
    from safetensors.torch import load_file

    found = load_file(CASE / "ckpt/checkpoint-10/model.safetensors")
    return {n: torch.nn.Parameter(found[n].float().clone())
            for group in order() for n in group}


def stepped(optimizer):
    import torch

    torch.manual_seed(5)
    for group in optimizer.param_groups:
        for one in group["params"]:
            one.grad = torch.randn_like(one)
    optimizer.step()
    return optimizer.state_dict()


def as_trainer(names, decays=(0.1, 0.0), rates=(1e-3, 1e-3)):
    """Groups as Trainer.create_optimizer makes them."""
    known = parameters()
    return [{"params": [known[n] for n in group], "weight_decay": decay,
             "lr": rate}
            for group, decay, rate in zip(names, decays, rates)]


def by_torch(kind, **options):
    import torch

    return stepped(getattr(torch.optim, kind)(as_trainer(order()), **options))


def made(states_of):
    """A state dict like torch.optim's, with custom states."""
    known, number = parameters(), 0
    states, groups = {}, []
    for group in order():
        numbers = []
        for name in group:
            states[number] = states_of(known[name])
            numbers.append(number)
            number += 1
        groups.append({"params": numbers, "lr": 1e-3})
    return {"state": states, "param_groups": groups}


def adafactor_of_transformers(one):
    """transformers.Adafactor, factored from two dimensions on."""
    import torch

    state = {"step": 1, "RMS": 0.5}
    if one.dim() >= 2:
        state["exp_avg_sq_row"] = torch.rand(one.shape[:-1])
        state["exp_avg_sq_col"] = torch.rand(
            one.shape[:-2] + one.shape[-1:])
    else:
        state["exp_avg_sq"] = torch.rand(one.shape)
    return state


def adam_of_8_bits(one, block=256):
    """bitsandbytes' Optimizer2State, block-wise: codes of the parameter's
    shape, a maximum for each block, a table of 256."""
    import torch

    blocks = -(-one.numel() // block)
    return {"step": 1, **{
        f"{what}{i}": value for i in (1, 2) for what, value in (
            ("state", torch.randint(256, one.shape, dtype=torch.uint8)),
            ("qmap", torch.rand(256)), ("absmax", torch.rand(blocks)))}}


def wrapped(states_of):
    """As Optimizer8bit.state_dict of bitsandbytes 0.50.2 saves them: all but
    the count in a dict that FSDP passes over."""
    def states(one):
        inside = states_of(one)
        return {"step": inside.pop("step"),
                "__bnb_optimizer_quant_state__": inside}
    return states


def ademamix(one, bits=32):
    """bitsandbytes' AdEMAMix: two first moments in one tensor."""
    import torch

    pair = (2, *one.shape)
    if bits == 32:
        return {"step": 1, "state1": torch.rand(pair),
                "state2": torch.rand(one.shape)}
    blocks = -(-one.numel() // 256)
    return {"step": 1,
            "state1": torch.randint(256, pair, dtype=torch.uint8),
            "state2": torch.randint(256, one.shape, dtype=torch.uint8),
            "qmap1": torch.rand(256), "qmap2": torch.rand(256),
            "absmax1": torch.rand(2, blocks), "absmax2": torch.rand(blocks)}


def schedule_free(one):
    """AdamWScheduleFree: z is the parameter before the average."""
    import torch

    return {"z": torch.rand(one.shape), "exp_avg_sq": torch.rand(one.shape)}


MAKERS = {
    "Adafactor of torch": lambda: by_torch("Adafactor"),
    "SGD": lambda: by_torch("SGD", momentum=0.9),
    "RMSprop": lambda: by_torch("RMSprop", momentum=0.9, centered=True),
    "Adagrad": lambda: by_torch("Adagrad"),
    "NAdam": lambda: by_torch("NAdam"),
    "AdamW with amsgrad": lambda: by_torch("AdamW", amsgrad=True),
    "Adafactor of transformers": lambda: made(adafactor_of_transformers),
    "Adam of 8 bits": lambda: made(adam_of_8_bits),
    "Adam of 8 bits, wrapped": lambda: made(wrapped(adam_of_8_bits)),
    "AdEMAMix": lambda: made(wrapped(ademamix)),
    "AdEMAMix of 8 bits": lambda: made(
        wrapped(lambda one: ademamix(one, bits=8))),
    "schedule-free": lambda: made(schedule_free),
}


def save(folder, states):
    import torch

    step = folder / "checkpoint-10"
    shutil.copytree(CASE / "ckpt/checkpoint-10", step)
    torch.save(states, step / "optimizer.pt")
    return step


def tensors_of(states, names):
    import torch

    def inside(state):
        for key, value in state.items():
            yield from value.items() if isinstance(value, dict) else [
                (key, value)]

    return {f"{names[number]}.{key}": value
            for number, state in states["state"].items()
            for key, value in inside(state)
            if isinstance(value, torch.Tensor)}


def check_named(path, states, names, *options):
    found = CKPT.inspect(path, "--digest", *options)
    got = {t["name"]: t for t in found["tensors"] if t["kind"] == "optim"}
    want = tensors_of(states, names)
    check_equal(sorted(got), sorted(want), "names")
    for name, tensor in want.items():
        check_equal((tuple(got[name]["shape"]), got[name]["digest"]),
                    (tuple(tensor.shape),
                     digest(tensor.contiguous().numpy().tobytes())), name)


def check_numbered(path):
    found = CKPT.inspect(path)
    names = [t["name"] for t in found["tensors"] if t["kind"] == "optim"]
    check(names and all(n.startswith("optimizer.state.") for n in names),
          names[:3])
    said = [p for p in found["problems"] if p["kind"] == "numbered_state"]
    check(said, f"{found['problems']}")
    return said[0]["message"]


def test_named(folder, kind):
    states = MAKERS[kind]()
    check_named(save(folder, states), states,
                [n for group in order() for n in group])


# A state of the first parameter with another shape belongs to another model.
WRONG = {
    "Adafactor of torch": ("row_var", lambda t: t[1:]),
    "Adafactor of transformers": ("exp_avg_sq_col", lambda t: t[1:]),
    "Adam of 8 bits": ("absmax1", lambda t: t.repeat(9)),
    "AdEMAMix": ("state1", lambda t: t[:1]),
    "SGD": ("momentum_buffer", lambda t: t.t()),
}


def test_refuted(folder, kind):
    states = MAKERS[kind]()
    key, change = WRONG[kind]
    first = states["state"][0]
    first = first.get("__bnb_optimizer_quant_state__", first)
    first[key] = change(first[key]).contiguous()
    check_numbered(save(folder, states))


def test_half(folder):
    """Rows without columns don't prove a shape."""
    states = MAKERS["Adafactor of torch"]()
    del states["state"][3]["col_var"]
    check("unlike" in check_numbered(save(folder, states)), "message")


def test_muon(folder):
    """Only matrices, in one group, which no Trainer rule produces. A list of
    names replaces the unknown order."""
    import torch

    known = parameters()
    names = [n for group in order() for n in group if known[n].dim() == 2]
    states = stepped(torch.optim.Muon([known[n] for n in names]))
    step = save(folder, states)
    check_numbered(step)
    listing = folder / "order.txt"
    listing.write_text("\n".join(names))
    check_named(step, states, names, "--assume-order", listing)
    listing.write_text("\n".join(reversed(names)))
    CKPT.run("inspect", step, "--assume-order", listing).want(2)


# transformers' versions, and whether the Trainer's older groups are its own.
VERSIONS = {"4.36.2": True, "4.48.3": True, None: True, "4.49.0": False,
            "4.57.1": False, "5.12.0": False}


def test_older_groups(folder, version):
    """Before 4.49 the norms of Qwen2 decayed: their class is neither torch's
    LayerNorm nor one that the Trainer was told of (trainer.py and
    pytorch_utils.py of 4.48)."""
    import torch

    names = [n for group in order() for n in group]
    module = sorted(names, key=place)
    groups = [[n for n in module if "bias" not in n],
              [n for n in module if "bias" in n]]
    states = stepped(torch.optim.AdamW(as_trainer(groups)))
    step = save(folder, states)
    config = json.loads((step / "config.json").read_text())
    config["transformers_version"] = version
    if version is None:
        del config["transformers_version"]
    (step / "config.json").write_text(json.dumps(config))
    if VERSIONS[version]:
        check_named(step, states, [n for group in groups for n in group])
    else:
        check("do not fit" in check_numbered(step), "message")
    # What every version does where the classes had registered.
    now = MAKERS["AdamW with amsgrad"]()
    torch.save(now, step / "optimizer.pt")
    check_named(step, now, names)


def test_both_groups(folder):
    """One parameter of each group trains: the versions' groups both fit."""
    import torch

    groups = [["model.layers.0.self_attn.q_proj.weight"],
              ["model.layers.0.self_attn.q_proj.bias"]]
    states = stepped(torch.optim.AdamW(as_trainer(groups)))
    check_numbered(save(folder, states))


def test_groups_of_others(folder):
    """Two groups with the counts and shapes of the Trainer's, and an option
    that it never gives them: a script made them, in an order of its own."""
    import torch

    for options in ({"decays": (0.1, 0.05)}, {"rates": (1e-3, 1e-4)}):
        states = stepped(torch.optim.AdamW(as_trainer(order(), **options)))
        step = save(folder / next(iter(options)), states)
        said = check_numbered(step)
        check("Trainer's own" in said, said)


# ------------------------------------------- what a pickle's order proves
def by_module():
    return sorted((n for group in order() for n in group), key=place)


def shards_of_hub(names):
    """What huggingface_hub makes of shards smaller than an MLP's matrix: that
    comes out before what still waits for its shard."""
    big = "model.layers.0.mlp.up_proj.weight"
    return [[big], [n for n in names if n != big]]


ORDERS = {
    "of modules": lambda names: [names],
    "of names": lambda names: [sorted(names)],
    "of sizes": lambda names: [sorted(names, key=lambda n: (
        parameters()[n].numel(), n))],
    "of kinds": lambda names: [sorted(names, key=lambda n: n.split(".")[-1])],
    "with a layer at the end": lambda names: [sorted(
        names, key=lambda n: "layers.0.mlp" in n)],
    "of shards": shards_of_hub,
}


def write_pickles(step, shards):
    import torch

    (step / "model.safetensors").unlink()
    known = parameters()
    weights = [{n: known[n].data for n in names} for names in shards]
    if len(weights) == 1:
        torch.save(weights[0], step / "pytorch_model.bin")
        return
    where = {}
    for i, one in enumerate(weights):
        file = f"pytorch_model-{i + 1:05}-of-{len(weights):05}.bin"
        torch.save(one, step / file)
        where.update(dict.fromkeys(one, file))
    (step / "pytorch_model.bin.index.json").write_text(json.dumps(
        {"metadata": {}, "weight_map": dict(sorted(where.items()))}))


def test_order(folder, how, family):
    """A state has its own name or a number, whatever order the file has."""
    states = by_torch("AdamW")
    step = save(folder, states)
    write_pickles(step, ORDERS[how](by_module()))
    if not family:
        (step / "config.json").unlink()
    names = [n for group in order() for n in group]
    if family or how == "of modules":
        check_named(step, states, names)
    else:
        check_numbered(step)
    if how == "of shards":
        lone_shard(step)


def test_layer_norm(folder):
    """A norm of nn.LayerNorm under a name that does not say so, in a pickle:
    its class puts it among what does not decay. (The groups are those that the
    Trainer of transformers 4.57 makes.)"""
    import torch

    shapes = {"emb.weight": (9, 4), "a.weight": (4, 4), "a.bias": (4,),
              "ln.weight": (4,), "ln.bias": (4,), "head.weight": (2, 4),
              "head.bias": (2,)}
    model = {n: torch.nn.Parameter(torch.rand(s)) for n, s in shapes.items()}

    def save_step(name, frozen=()):
        step = folder / name / "checkpoint-2"
        step.mkdir(parents=True)
        groups = [["emb.weight", "a.weight", "head.weight"],
                  [n for n in ("a.bias", "ln.weight", "ln.bias", "head.bias")
                   if n not in frozen]]
        states = stepped(torch.optim.AdamW(
            [{"params": [model[n] for n in group], "weight_decay": decay}
             for group, decay in zip(groups, (0.1, 0.0))]))
        torch.save({n: p.data for n, p in model.items()},
                   step / "pytorch_model.bin")
        torch.save(states, step / "optimizer.pt")
        torch.save({"last_epoch": 1}, step / "scheduler.pt")
        (step / "trainer_state.json").write_text('{"global_step": 2}')
        return step, states, [n for group in groups for n in group]

    check_named(*save_step("all"))
    check("more than one way" in check_numbered(
        save_step("frozen", ["a.bias"])[0]), "message")


def lone_shard(step):
    """The last matrix alone in its shard, in order: shapes prove that, but not
    where some parameters have no state."""
    import torch

    names = by_module()
    for file in step.glob("pytorch_model*"):
        file.unlink()
    (step / "config.json").unlink(missing_ok=True)
    torch.save({}, step / "model.safetensors")
    write_pickles(step, [names[:-1], names[-1:]])
    states = torch.load(step / "optimizer.pt")
    check_named(step, states, [n for group in order() for n in group])
    del states["state"][0]
    torch.save(states, step / "optimizer.pt")
    check_numbered(step)


def test_equal_shapes(folder):
    """Attention without groups: shapes tell none of its matrices from another,
    and sorted they are k, o, q, v."""
    import torch

    class Layer(torch.nn.Module):
        def __init__(self):
            super().__init__()
            for name in "qkvo":
                setattr(self, name, torch.nn.Linear(4, 4, bias=False))

    class Model(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.tokens = torch.nn.Embedding(5, 4)
            self.layers = torch.nn.ModuleList(Layer() for _ in range(2))
            self.head = torch.nn.Linear(4, 5, bias=False)

    torch.manual_seed(1)
    model = Model()
    states = stepped(torch.optim.AdamW(model.parameters()))
    names = [name for name, _ in model.named_parameters()]
    for shown, keys in (("modules", names), ("names", sorted(names)),
                        ("numbers", [names[0], *names[5:9], *names[1:5],
                                     names[9]])):
        step = folder / shown / "checkpoint_1"
        step.mkdir(parents=True)
        torch.save({"step": 0}, step / "random_states_0.pkl")
        torch.save({k: model.state_dict()[k] for k in keys},
                   step / "pytorch_model.bin")
        torch.save(states, step / "optimizer.bin")
        if shown == "modules":
            check_named(step, states, names)
        else:
            check_numbered(step)


def named_case(net, inner, groups):
    """An optimizer that was given named_parameters(), as torch from 2.6 on
    takes them: its states by the names in the file `net` gives them."""
    import torch

    torch.manual_seed(7)
    known = dict(inner.named_parameters())
    optimizer = torch.optim.AdamW([
        {"params": [(n, known[n]) for n in names], "weight_decay": decay}
        for names, decay in groups])
    state = stepped(optimizer)
    full = {id(p): n for n, p in net.named_parameters()}
    order = [p for group in optimizer.param_groups for p in group["params"]]
    return state, [full[id(p)] for p in order]


def test_stated(folder, where):
    """Names in the groups prove the order, and no other rule may overrule them:
    three matrices of one shape, in two groups, against the module's order. The
    groups get the same names."""
    import torch

    inner = torch.nn.Sequential(*(torch.nn.Linear(4, 4, bias=False)
                                  for _ in range(3)))
    net = torch.nn.ModuleDict({"net": inner}) if where else inner
    state, names = named_case(net, inner, [(["2.weight"], 0.0),
                                           (["1.weight", "0.weight"], 0.1)])
    check("param_names" in state["param_groups"][0], "an older torch")
    step = folder / "checkpoint_0"
    step.mkdir()
    torch.save(net.state_dict(), step / "pytorch_model.bin")
    torch.save({"step": 0}, step / "random_states_0.pkl")
    torch.save(state, step / "optimizer.bin")
    lone = folder / "a-step=1.ckpt"
    torch.save({"pytorch-lightning_version": "2.6", "global_step": 1,
                "state_dict": net.state_dict(),
                "optimizer_states": [state]}, lone)
    for path in (step, lone):
        check_named(path, state, names)
        said = [p["kind"] for p in CKPT.inspect(path)["problems"]]
        check("numbered_state" not in said, f"{said}")
    # Each group keeps its own parameters.
    out = folder / "out"
    CKPT.ok("convert", step, out, "--to", "dcp")
    import torch.distributed.checkpoint as dcp

    groups = {f"optimizer.param_groups.{g}.params": None for g in (0, 1)}
    dcp.load(groups, checkpoint_id=str(out), no_dist=True)
    check_equal(list(groups.values()), [names[:1], names[1:]], "groups")


def test_stated_of_another(folder):
    """Names of no model here, or shapes of other parameters: numbered."""
    import torch

    inner = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 4))
    state, _ = named_case(inner, inner, [
        ([n for n, _ in inner.named_parameters()], 0.0)])
    step = folder / "checkpoint_0"
    step.mkdir()
    torch.save(inner.state_dict(), step / "pytorch_model.bin")
    torch.save({"step": 0}, step / "random_states_0.pkl")
    group = state["param_groups"][0]
    names = group["param_names"]
    for changed, word in ((["x." + n for n in names], "not the model's"),
                          (names[::-1], "shape"),
                          ([names[0]] * len(names), "twice")):
        group["param_names"] = changed
        torch.save(state, step / "optimizer.bin")
        said = [p["message"] for p in CKPT.inspect(step)["problems"]
                if p["kind"] == "numbered_state"]
        check(said and word in said[0], f"{changed}: {said}")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for where in ("", "net"):
        suite.add(f"names in the file, {where or 'at the top'}", test_stated,
                  where)
    suite.add("names in the file of another model", test_stated_of_another)
    for kind in MAKERS:
        suite.add(f"{kind}: by name", test_named, kind)
    for kind in WRONG:
        suite.add(f"{kind}: another shape", test_refuted, kind)
    suite.add("norms by class", test_layer_norm)
    suite.add("half of Adafactor's sums", test_half)
    suite.add("Muon", test_muon)
    for version in VERSIONS:
        suite.add(f"groups of transformers {version}", test_older_groups,
                  version)
    suite.add("one parameter of each group", test_both_groups)
    suite.add("two groups of a script's own", test_groups_of_others)
    suite.add("matrices of equal shapes", test_equal_shapes)
    for how in ORDERS:
        for family in (True, False):
            suite.add(f"a pickle in the order {how}, "
                      f"{'the' if family else 'no'} family known",
                      test_order, how, family)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
