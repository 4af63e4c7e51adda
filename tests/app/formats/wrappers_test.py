#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""A module's state dict where scripts put it: behind the keys of one or more
dicts, under torch's own wrappers, beside optimizers and numbers; in a file of
torch.save's and in a DCP. What ckpt writes is what the module's own strict
load_state_dict takes. Of several models in one file none is chosen: --part
takes each.
"""

from json_test import faults, schema_of
from support import Suite, check, check_equal

CKPT = None  # set by prepare
# The keys above the state dict, as public scripts have them.
PLACES = {
    "top": (), "model": ("model",), "state_dict": ("state_dict",),
    "module": ("module",), "model_state_dict": ("model_state_dict",),
    "net": ("net",), "network": ("network",), "params": ("params",),
    "weights": ("weights",), "app.model": ("app", "model"),
    "checkpoint.state_dict": ("checkpoint", "state_dict"),
    "a list": ("models", 0),
    "a key of one's own": ("run 7", "the model")}
PAIRS = {"model and ema": ("model", "ema"),
         "state_dict and state_dict_ema": ("state_dict", "state_dict_ema"),
         "policy and ref": ("policy", "ref"),
         "student and teacher": ("student", "teacher"),
         "params and params_ema": ("params", "params_ema"),
         "generator and discriminator": ("generator", "discriminator"),
         "below a key": ("models.actor", "models.critic"),
         "the top and ema": (".", "ema")}


def module(seed=0):
    """Names of no known model."""
    import torch
    from torch import nn

    torch.manual_seed(seed)
    return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4),
                         nn.Sequential(nn.Flatten(), nn.Linear(16, 5)))


def wrappers():
    import torch
    from torch import nn

    return {"plain": lambda one: one,
            "DataParallel": nn.DataParallel,
            "compiled": torch.compile,
            "DataParallel, compiled": lambda one: torch.compile(
                nn.DataParallel(one)),
            "inner compiled": inner_compiled}


def inner_compiled(one):
    import torch

    one[2] = torch.compile(one[2])
    return one


def placed(keys, value):
    for key in reversed(keys):
        value = [value] if key == 0 else {key: value}
    return value


def loads(path, wanted, what):
    """The module's own loader, and the same numbers."""
    from safetensors.torch import load_file

    one, found = module(seed=9), load_file(path)
    one.load_state_dict(found, strict=True)
    for name, tensor in wanted.state_dict().items():
        name = name.replace("_orig_mod.", "")
        check((found[name] == tensor).all(), f"{what}: {name}")


def convert(source, out, *words):
    done = CKPT.run("convert", source, out, *words)
    done.want(0)
    CKPT.ok("verify", source, out, *words)
    return done


def test_file(folder, place, wrapper):
    """A training loop's file."""
    import torch

    one = module()
    wrapped = wrappers()[wrapper](one)
    adam = torch.optim.AdamW(one.parameters())
    for parameter in one.parameters():
        parameter.grad = torch.ones_like(parameter)
    adam.step()
    beside = {"optimizer": adam.state_dict(), "epoch": 3,
              "best_loss": torch.tensor(0.5)} if PLACES[place] else {}
    source = folder / "model.pt"
    torch.save({**placed(PLACES[place], wrapped.state_dict()), **beside},
               source)
    done = convert(source, folder / "out.safetensors")
    loads(folder / "out.safetensors", one, place)
    if PLACES[place]:
        check(f'the model is at "{place_name(place)}"' in done.err, str(done))
        check("optimizer" in done.err, f"its optimizer is not named\n{done}")
    kept = folder / "kept.pt"
    CKPT.ok("convert", source, kept)
    check_equal(sorted(torch.load(kept)), sorted(torch.load(source)),
                "a torch file's own structure")


def place_name(place):
    return ".".join(map(str, PLACES[place]))


def test_dcp(folder, place, wrapper):
    import torch.distributed.checkpoint as dcp

    one = module()
    state = placed(PLACES[place], wrappers()[wrapper](one).state_dict())
    dcp.save(state, checkpoint_id=folder / "dcp", no_dist=True)
    convert(folder / "dcp", folder / "out.safetensors")
    loads(folder / "out.safetensors", one, place)


def pair(names):
    two = {name: module(seed) for seed, name in enumerate(names)}
    state = {}
    for name, one in two.items():
        if name == ".":
            state.update(one.state_dict())
            continue
        *above, last = name.split(".")
        at = state
        for key in above:
            at = at.setdefault(key, {})
        at[last] = one.state_dict()
    return two, state


def test_pair(folder, names, container):
    """Never one of them unasked, never both as one."""
    import torch
    import torch.distributed.checkpoint as dcp

    two, state = pair(PAIRS[names])
    source = folder / "source.pt"
    if container == "dcp":
        source = folder / "source"
        dcp.save(state, checkpoint_id=source, no_dist=True)
    else:
        torch.save({**state, "epoch": 3}, source)
    out = folder / "out.safetensors"
    done = CKPT.run("convert", source, out).want(5)
    check(not out.exists(), "written")
    for name in two:
        check(name in done.err, str(done))
    document = CKPT.ok("inspect", source, "--json").json()
    check_equal(faults(document, schema_of("inspect")), [], "JSON")
    shown = document["models"]
    parameters = sum(t.numel() for t in module().state_dict().values())
    size = sum(t.nbytes for t in module().state_dict().values())
    check_equal(sorted((m["name"], m["parameters"], m["bytes"])
                       for m in shown),
                sorted((name, parameters, size) for name in two), "models")
    for name, one in two.items():
        for i, word in enumerate({name, name.split(".")[-1] or name}):
            path = folder / f"{name.strip('.')}{i}.safetensors"
            convert(source, path, "--part", word)
            loads(path, one, name)
    CKPT.run("convert", source, folder / "none.pt", "--part", "nobody").want(5)


def test_head(folder):
    """Weights beside the model's state dict are not dropped unsaid."""
    import torch

    one = module()
    torch.save({"model": one.state_dict(), "epoch": torch.tensor(3),
                "head": {"weight": torch.ones(2, 5)}}, folder / "model.pt")
    done = convert(folder / "model.pt", folder / "out.safetensors")
    loads(folder / "out.safetensors", one, "head")
    check("warning" in done.err and "head.weight" in done.err, str(done))
    check("epoch" not in done.err.split("left out")[1].split("\n")[0],
          f"a number is no loss\n{done}")


def test_whole_module(folder):
    """A pickled module is its state dict: attributes and buffers that are not
    persistent are values beside it."""
    import torch

    def whole(seed):
        one = module(seed)
        one.register_buffer("passing", torch.ones(3), persistent=False)
        one.stride = torch.arange(2.0)
        one.others = [one[0].weight]
        return one

    one, ema = whole(0), whole(1)
    for i, saved in enumerate((one, {"model": one, "ema": None, "epoch": 3})):
        torch.save(saved, folder / f"{i}.pt")
        convert(folder / f"{i}.pt", folder / f"{i}.safetensors")
        loads(folder / f"{i}.safetensors", one, "a pickled module")
        kept = folder / f"kept{i}.pt"
        CKPT.ok("convert", folder / f"{i}.pt", kept, "--keep-unknown-globals")
        again = torch.load(kept, weights_only=False)
        again = again["model"] if i else again
        check_equal((again.stride.tolist(), again.passing.tolist(),
                     again.others[0] is again[0].weight),
                    ([0.0, 1.0], [1.0] * 3, True), "what is beside")
    torch.save({"model": one, "ema": ema}, folder / "two.pt")
    CKPT.run("convert", folder / "two.pt", folder / "two.safetensors").want(5)
    convert(folder / "two.pt", folder / "two.safetensors", "--part", "ema")
    loads(folder / "two.safetensors", ema, "ema")


def test_lists(folder):
    """A place in a list or tuple is a key like that of a dict."""
    import torch

    one, other = module(), module(1)
    state = one.state_dict()
    for i, (nested, place) in enumerate(
            (([state], "0"), ((3, state), "1"), ({"nets": [state]}, "nets.0"),
             ({"a": ({"b": state},)}, "a.0.b"))):
        torch.save(nested, folder / f"{i}.pt")
        done = convert(folder / f"{i}.pt", folder / f"{i}.safetensors")
        loads(folder / f"{i}.safetensors", one, place)
        check(f'the model is at "{place}"' in done.err, str(done))
    torch.save([state, other.state_dict()], folder / "two.pt")
    done = CKPT.run("convert", folder / "two.pt", folder / "two.safetensors")
    check("--part" in done.want(5).err, str(done))
    convert(folder / "two.pt", folder / "two.safetensors", "--part", "1")
    loads(folder / "two.safetensors", other, "1")


def test_many(folder):
    """A dict for each tensor: no message lists them all, none takes for ever."""
    import torch

    torch.save({f"k{i}": {"a.b": torch.zeros(1)} for i in range(20_000)},
               folder / "many.pt")
    shown = CKPT.ok("inspect", folder / "many.pt")
    done = CKPT.run("convert", folder / "many.pt", folder / "x.safetensors")
    done.want(5)
    for text in (shown.out.split("\nModel")[0], done.err):
        check("20000 models" in text or "19996 more" in text, text)
        check(len(text) < 2000, f"{len(text)} characters")


def test_torch_dcp(folder):
    """Megatron's --ckpt-format torch_dcp: its loader of torch_dist asks for
    names without "model."."""
    import torch
    import torch.distributed.checkpoint as dcp

    names = ("embedding.word_embeddings.weight",
             "decoder.layers.0.self_attention.linear_proj.weight")
    dcp.save({"model": {name: torch.rand(4, 4) for name in names},
              "optimizer": {"state": {name: {"exp_avg": torch.rand(4, 4)}
                                      for name in names},
                            "param_groups": [{"lr": 1.0,
                                              "params": list(names)}]},
              "iteration": 3}, checkpoint_id=folder / "dcp", no_dist=True)
    for words in ((), ("--family", "llama")):
        done = CKPT.run("convert", folder / "dcp", folder / "out", "--to",
                        "megatron_torch_dist", *words).want(5)
        check("--model-only" in done.err, str(done))


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for place in PLACES:
        for wrapper in ("plain", "DataParallel", "compiled",
                        "DataParallel, compiled", "inner compiled"):
            suite.add(f"file {place}, {wrapper}", test_file, place, wrapper)
            suite.add(f"dcp {place}, {wrapper}", test_dcp, place, wrapper)
    for names in PAIRS:
        for container in ("torch", "dcp"):
            suite.add(f"{container} {names}", test_pair, names, container)
    suite.add("a head beside", test_head)
    suite.add("many", test_many)
    suite.add("lists", test_lists)
    suite.add("a whole module", test_whole_module)
    suite.add("torch_dcp", test_torch_dcp)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
