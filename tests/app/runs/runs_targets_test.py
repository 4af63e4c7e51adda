#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each step of the goldens as a step of each trainer: the second table of "From
one trainer to another" in docs/formats/runs.md.

A cell that says `all` is run: the target has, under the names of the source,
each tensor that the source's live objects had, bit for bit; where names or
arrangement are others (torchtitan's) the way back to Accelerate has. A cell
with a letter is refused, in the words that the letter stands for.

    runs_targets_test.py --write     writes the table anew
"""

import json
import re
import sys
from pathlib import Path

from support import (
    DATA, Ckpt, Failure, Suite, check, check_equal, digest, read_safetensors)

CKPT = None  # set by prepare
GOLDENS = DATA / "runs"
PAGE = Path(__file__).resolve().parents[3] / "docs" / "formats" / "runs.md"
TARGETS = [("hf_trainer", 1), ("hf_trainer", 2), ("accelerate", 1),
           ("accelerate", 2), ("lightning", "file"), ("lightning", 2),
           ("torchtitan", 2), ("verl", 1), ("verl", 2)]
# Keys on the page, and what the refusal says.
REASONS = [
    ("groups", "in one group with"),
    ("order", "order of the model's modules|no module of"),
    ("arch", "gpt_oss are known"),
    ("adapter", "an adapter"),
]


def facts(case):
    return json.loads((GOLDENS / case / "case.json").read_text())


def step_of(case):
    one = facts(case)
    path = GOLDENS / case / "ckpt" / one["newest"] / one.get("newest_file", "")
    return path / "actor" if case == "verl_fsdp2_w2" else path


# For steps without a configuration: that of the golden's model.
SIZES = dict(vocab_size=53, hidden_size=16, intermediate_size=24,
             num_attention_heads=4, num_key_value_heads=2,
             max_position_embeddings=32)
CONFIGS = {
    "accelerate_fsdp2_w2": dict(
        SIZES, model_type="qwen2", num_hidden_layers=1,
        tie_word_embeddings=True),
    "hf_trainer_fsdp2_w2": dict(
        SIZES, model_type="qwen2", num_hidden_layers=1),
    "torchtitan_w2": dict(SIZES, model_type="llama", num_hidden_layers=1,
                          tie_word_embeddings=False),
}


def name_of(ranks):
    return "out.ckpt" if ranks == "file" else "out"


def convert(case, folder, out, trainer, ranks):
    command = ["convert", step_of(case), out, "--to", "run", "--trainer",
               trainer, "--dp", 1 if ranks == "file" else ranks]
    if case in CONFIGS:
        home = folder / "config"
        home.mkdir(exist_ok=True)
        (home / "config.json").write_text(json.dumps(CONFIGS[case]))
        command += ["--config-from", home]
    return CKPT.run(*command)


def wanted(case):
    if case == "verl_fsdp2_w2":  # one of two roles, without its prefix
        return {t["name"]: t["digest"] for t in CKPT.inspect(
            step_of(case), "--digest")["tensors"]}
    return {name: digest(tensor.data)
            for what in ("expected", "expected_optim")
            for name, tensor in read_safetensors(
                GOLDENS / case / f"{what}.safetensors").items()}


def cell(case, folder, trainer, ranks):
    """What the table says: "all", or the key of a reason."""
    source = CKPT.inspect(step_of(case))["trainer"]["name"]
    if source == trainer and step_of(case).is_file() == (ranks == "file"):
        return "own"
    out = folder / name_of(ranks)
    result = convert(case, folder, out, trainer, ranks)
    if result.code == 0:
        return "all"
    check_equal(result.code, 5, f"{result}")
    check("hint" in result.err, f"no next step: {result}")
    check(not out.exists(), "something was written")
    for key, words in REASONS:
        if re.search(words, result.err):
            return key
    raise Failure(f"a reason that the page has not: {result}")


def test_cell(folder, case, trainer, ranks, says):
    check_equal(cell(case, folder, trainer, ranks), says, "the cell")
    if says != "all":
        return
    out = folder / name_of(ranks)
    check_equal(out.is_file(), ranks == "file", "one file")
    moved = case == "torchtitan_w2" or trainer == "torchtitan"
    if case == "torchtitan_w2":  # home again
        home = folder / "home"
        CKPT.ok("convert", out, home, "--to", "run", "--trainer", "torchtitan",
                "--config-from", folder / "config")
        out = home
    elif moved and has_hf_names(case):
        home = folder / "home"
        config = folder / "home_config"
        config.mkdir()
        (config / "config.json").write_text(json.dumps(
            CONFIGS.get(case) or config_of(case)))
        CKPT.ok("convert", out, home, "--to", "run", "--trainer", "accelerate",
                "--dp", 2, "--config-from", config)
        out = home
    got = {t["name"]: t["digest"]
           for t in CKPT.inspect(out, "--digest")["tensors"]}
    fused = case == "hf_trainer_moe_qwen3"
    for name, one in wanted(case).items():
        if fused and ".experts." in name and name not in got:
            continue  # stacked: runs_cross_test checks them
        check_equal(got.get(name), one, name)


def has_hf_names(case):
    return any(".self_attn." in name for name in wanted(case))


def config_of(case):
    for path in (step_of(case) / "huggingface/config.json",
                 step_of(case) / "actor/huggingface/config.json",
                 step_of(case) / "config.json"):
        if path.is_file():
            return json.loads(path.read_text())
    return {}


def test_through_dcp(folder):
    """A Trainer's step becomes Megatron's, DCP and another trainer's: the head
    that is not tied and the states stay what they are."""
    first, mcore, dcp = folder / "first", folder / "mcore", folder / "dcp"
    convert("torchtitan_w2", folder, first, "accelerate", 2).want(0)
    config = ["--config-from", folder / "config"]
    CKPT.ok("convert", first, mcore, "--to", "megatron_torch_dist", *config)
    CKPT.ok("convert", mcore, dcp, "--to", "dcp", "--dialect", "hf", *config)
    CKPT.ok("convert", first, folder / "at once", "--to", "dcp", *config)

    def tensors(path):
        return {(t["name"], t["kind"]): t["digest"]
                for t in CKPT.inspect(path, "--digest")["tensors"]}

    want = tensors(first)
    for source in (dcp, folder / "at once"):
        check_equal(sorted(kind for _, kind in tensors(source)),
                    sorted(kind for _, kind in want), source.name)
        for trainer in ("accelerate", "lightning"):
            out = folder / f"{source.name} {trainer}"
            CKPT.ok("convert", source, out, "--to", "run", "--trainer",
                    trainer, "--dp", 2, *config)
            check_equal(tensors(out), want, out.name)
    back = folder / "back"
    CKPT.ok("convert", dcp, back, "--to", "megatron_torch_dist", *config)
    check_equal(tensors(back), tensors(mcore), "Megatron's again")


def test_weights(folder):
    """torchtitan's step as a directory that transformers loads. The weights
    equal those of its step as a Trainer's, which the way back has proven."""
    from safetensors.torch import load_file

    case = "torchtitan_w2"
    convert(case, folder, folder / "trainer", "hf_trainer", 1).want(0)
    CKPT.ok("convert", step_of(case), folder / "out", "--to", "safetensors",
            "--config-from", folder / "config")
    got, want = (load_file(folder / name / "model.safetensors")
                 for name in ("out", "trainer"))
    check_equal(sorted(got), sorted(want), "names")
    for name, tensor in want.items():
        check((got[name] == tensor).all(), name)
    check((folder / "out/config.json").is_file(), "no config.json")
    said = CKPT.ok("convert", step_of(case), folder / "plain", "--to",
                   "safetensors").err
    check("--config-from" in said, said)


def test_model_only(folder, case):
    """A trainer has no step of a model alone; what the hint says works."""
    step, out = step_of(case), folder / "out.ckpt"
    command = ("convert", step, out, "--to", "run")
    if case == "hf_trainer_lora":  # convert takes no adapter
        out = folder / "out"
        command = ("reshard", step, out, "--dp", 1)
    said = CKPT.run(*command, "--model-only").want(5).err
    more = "--to safetensors --model-only"
    check(more in said, said)
    check(not out.exists(), "something was written")
    CKPT.ok("convert", step, folder / "model", *more.split())
    kinds = {t["kind"] for t in CKPT.inspect(folder / "model")["tensors"]}
    check_equal(kinds, {"model"}, "kinds")


def test_own_file(folder):
    """Lightning's file as its own is the same file, and no part of one."""
    step = step_of("lightning_ckpt")
    own = ("--to", "run")
    for i, more in enumerate(([], ["--trainer", "lightning"])):
        out = folder / f"{i}.ckpt"
        CKPT.ok("convert", step, out, *own, *more, "--verify")
        check_equal(out.read_bytes(), step.read_bytes(), "bytes")
    for name, more, word in (
            ("a.ckpt", ["--dtype", "bf16"], "--dtype"),
            ("a.ckpt", ["--keys", "net.head.*"], "--keys"),
            ("a.ckpt", ["--dp", 2], "--trainer lightning"),
            ("folder", [], ".ckpt")):
        said = CKPT.run("convert", step, folder / name, *own, *more).want(5)
        hint = said.err.split("hint:")[1]
        check(word in hint, f"{more}: {hint}")
        check(not (folder / name).exists(), "something was written")


def test_numbers(folder, case, trainer):
    """The numbers of a model that no family has: the live optimizer's, by the
    names that it had then. Lightning's own values stay."""
    import torch

    ranks = "file" if trainer == "lightning" else 1
    out = folder / name_of(ranks)
    convert(case, folder, out, trainer, ranks).want(0)
    if trainer == "lightning":
        found = torch.load(out, weights_only=False)
        before = torch.load(step_of(case) / "meta.pt", weights_only=False)
        check_equal(sorted(found), sorted([
            *before, "state_dict", "optimizer_states"]), "keys")
        for key in ("loops", "lr_schedulers", "hyper_parameters"):
            check_equal(found[key], before[key], key)
        check_equal(str(found["callbacks"]), str(before["callbacks"]), "state")
        saved = found["optimizer_states"][0]
    else:
        saved = torch.load(out / "optimizer.bin", weights_only=True)
    live = read_safetensors(GOLDENS / case / "expected_optim.safetensors")
    # Both goldens are of one model, with one block or two.
    order = [[name for name in group
              if case == "lightning_ckpt" or "blocks.1." not in name]
             for group in facts("lightning_ckpt")["optimizer_order"]]
    check_equal([len(group["params"]) for group in saved["param_groups"]],
                [len(group) for group in order], "groups")
    names = [name for group in order for name in group]
    for number, name in enumerate(names):
        for state, tensor in saved["state"][number].items():
            check_equal(tensor.numpy().tobytes(),
                        bytes(live[f"{name}.{state}"].data),
                        f"{number}: {name}.{state}")
    # torch takes it, names or not.
    made = [torch.nn.Parameter(torch.zeros_like(saved["state"][n]["exp_avg"]))
            for n in range(len(names))]
    torch.optim.AdamW(made).load_state_dict(saved)


def llama_order():
    """The modules of verl_fsdp1_flat_w2's model, from its live units."""
    units = dict(facts("verl_fsdp1_flat_w2")["optimizer_order"]["actor"][
        "flat_units"])
    first, *last = units.pop("")
    return [first, *(at + name for at, unit in units.items() for name in unit),
            *last]


def saved_by_number(out):
    import torch

    if out.is_dir():
        return torch.load(out / "optimizer.bin", weights_only=True)
    return torch.load(out, weights_only=False)["optimizer_states"][0]


def check_numbers(out, order):
    """Each group's numbers are its parameters' in this order."""
    live = read_safetensors(
        GOLDENS / "verl_fsdp1_flat_w2/expected_optim.safetensors")
    name_of_bytes = {bytes(live[f"{n}.exp_avg"].data): n for n in order}
    saved = saved_by_number(out)
    found = [[name_of_bytes[saved["state"][n]["exp_avg"].numpy().tobytes()]
              for n in group["params"]] for group in saved["param_groups"]]
    check_equal(found, [[n for n in order if n in group] for group in found],
                "numbers")
    check_equal(sorted(sum(found, [])), sorted(order), "parameters")


def test_numbers_of_names(folder, via):
    """Steps whose writer had the states by name and no numbers: what is
    numbered after them counts as the modules do."""
    step, between = step_of("verl_fsdp1_flat_w2"), folder / "between"
    if via == "megatron":
        CKPT.ok("convert", step, folder / "mcore", "--to",
                "megatron_torch_dist", "--tp", 2)
        CKPT.ok("convert", folder / "mcore", between, "--to", "dcp",
                "--dialect", "hf")
    else:
        CKPT.ok("convert", step, between, "--to", "run", "--trainer", via,
                "--dp", 2)
    config = ["--config-from", step / "actor/huggingface"]
    for trainer, name in (("accelerate", "out"), ("lightning", "out.ckpt")):
        if trainer == via == "accelerate":
            continue  # stays a folder of DCP
        out = folder / name
        CKPT.ok("convert", between, out, "--to", "run", "--trainer", trainer,
                "--dp", 1, *config)
        check_numbers(out, llama_order())
        got = {t["name"]: t["digest"]
               for t in CKPT.inspect(out, "--digest")["tensors"]}
        check_equal(got, wanted("verl_fsdp1_flat_w2"), f"{name} read back")


def test_numbers_of_a_script(folder):
    """A script that gave its optimizer the parameters in an order of its own:
    the numbers are in that, and named, since no model shows it."""
    from torch.distributed import checkpoint
    from torch.distributed.checkpoint.default_planner import (
        _EmptyStateDictLoadPlanner as Planner)
    from torch.distributed.checkpoint.state_dict_loader import (
        _load_state_dict)

    step, between = step_of("verl_fsdp1_flat_w2"), folder / "between"
    CKPT.ok("convert", step, between, "--to", "run", "--trainer", "lightning",
            "--dp", 2)
    value, home = {}, str(between)
    _load_state_dict(value, storage_reader=checkpoint.FileSystemReader(home),
                     planner=Planner(), no_dist=True)
    value["optimizer_0"]["param_groups"][0]["params"].reverse()
    checkpoint.save(value, checkpoint_id=home, no_dist=True)
    for trainer, name in (("accelerate", "out"), ("lightning", "out.ckpt")):
        out = folder / name
        CKPT.ok("convert", between, out, "--to", "run", "--trainer", trainer,
                "--dp", 1, "--config-from", step / "actor/huggingface")
        order = llama_order()[::-1]
        check_numbers(out, order)
        check_equal(saved_by_number(out)["param_groups"][0]["param_names"],
                    order, "names")
        got = {t["name"]: t["digest"]
               for t in CKPT.inspect(out, "--digest")["tensors"]}
        check_equal(got, wanted("verl_fsdp1_flat_w2"), f"{name} read back")


def test_numbers_of_nothing(folder):
    """Names that no family has, in an order that nothing showed: by name they
    go on, by number they are refused, the second time, too."""
    between = folder / "between"
    CKPT.ok("convert", step_of("torchtitan_w2"), between, "--to", "run",
            "--trainer", "lightning", "--dp", 2)
    CKPT.run("convert", between, folder / "out", "--to", "run", "--trainer",
             "accelerate", "--dp", 1).want(5)


def test_prefix(folder):
    """self.model = LlamaForCausalLM: its names behind a module's, and home."""
    rules = folder / "rules.json"
    rules.write_text('{"*": "model.*"}')
    out = folder / "out.ckpt"
    CKPT.ok("convert", step_of("hf_trainer_qwen2"), out, "--to", "run",
            "--trainer", "lightning", "--rename", rules)
    got = {t["name"]: t["digest"]
           for t in CKPT.inspect(out, "--digest")["tensors"]}
    want = {"model." + name: one
            for name, one in wanted("hf_trainer_qwen2").items()}
    check_equal(got, want, "tensors")
    rules.write_text('{"model.*": "*"}')
    CKPT.ok("convert", out, folder / "home", "--to", "run", "--trainer",
            "hf_trainer", "--dp", 1, "--rename", rules)
    got = {t["name"]: t["digest"] for t in CKPT.inspect(
        folder / "home", "--digest")["tensors"]}
    check_equal(got, wanted("hf_trainer_qwen2"), "home")


def test_scheduler(folder):
    """Rates that are tensors (capturable) stay tensors in the scheduler."""
    import shutil

    import torch

    step = folder / "checkpoint-10"
    shutil.copytree(step_of("hf_trainer_qwen2"), step)
    value = torch.load(step / "scheduler.pt", weights_only=False)
    value["_last_lr"] = [torch.tensor(0.25) for _ in value["_last_lr"]]
    torch.save(value, step / "scheduler.pt")
    for trainer, at in (("accelerate", "out/scheduler.bin"),
                        ("lightning", "a.ckpt")):
        out = folder / Path(at).parts[0]
        CKPT.ok("convert", step, out, "--to", "run", "--trainer", trainer,
                "--dp", 1)
        found = torch.load(folder / at, weights_only=False)
        found = found["lr_schedulers"][0] if out.is_file() else found
        check_equal(found, value, trainer)


def test_pickled_order(folder, ranks):
    """A model that no family has, all of whose tensors are parameters: the
    order of Lightning's pickle is that of its modules."""
    import torch
    from torch import nn

    torch.manual_seed(1)
    module = nn.ModuleDict({"z": nn.Linear(4, 4), "m": nn.Linear(4, 4),
                            "a": nn.Linear(4, 3), "k": nn.Linear(3, 4)})
    optimizer = torch.optim.AdamW(module.parameters(), 0.1)
    for one in module.parameters():
        one.grad = torch.randn_like(one)
    optimizer.step()
    file = folder / "last.ckpt"
    torch.save({"epoch": 0, "global_step": 1, "loops": {},
                "pytorch-lightning_version": "2.6.6", "callbacks": {},
                "state_dict": module.state_dict(), "lr_schedulers": [],
                "optimizer_states": [optimizer.state_dict()]}, file)
    out = folder / "out"
    command = ["convert", file, out, "--to", "run", "--trainer"]
    CKPT.ok(*command, "verl", "--dp", ranks)
    CKPT.ok("verify", file, out)
    if ranks == 1:
        saved = torch.load(out / "optim_world_size_1_rank_0.pt",
                           weights_only=False)
        for number, state in optimizer.state_dict()["state"].items():
            check(torch.equal(saved["state"][number]["exp_avg"],
                              state["exp_avg"]), number)
    # What decays is up to the classes of modules, which no file tells.
    said = CKPT.run(*command[:2], folder / "other", *command[3:],
                    "hf_trainer").want(5)
    check("modules" in said.err, said.err)


def table():
    rows = {}
    for line in PAGE.read_text().splitlines():
        found = re.match(r"\| `(\w+)` +\|(.*)\|$", line)
        if found and (GOLDENS / found[1]).is_dir():
            cells = [c.strip(" `") for c in found[2].split("|")]
            if len(cells) == len(TARGETS):
                rows[found[1]] = cells
    return rows


def write(folder):
    lines = []
    for case in sorted(p.name for p in GOLDENS.iterdir()):
        cells = []
        for trainer, ranks in TARGETS:
            here = folder / f"{case}_{trainer}_{ranks}"
            here.mkdir()
            cells.append(cell(case, here, trainer, ranks))
        lines.append(f"| `{case}` | " + " | ".join(cells) + " |")
    print("\n".join(lines))


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    rows = table()
    check_equal(sorted(rows), sorted(p.name for p in GOLDENS.iterdir()),
                "rows of the table")
    suite.add("through Megatron and DCP", test_through_dcp)
    suite.add("Lightning's file as its own", test_own_file)
    suite.add("a scheduler with tensors", test_scheduler)
    suite.add("names behind a LightningModule's attribute", test_prefix)
    for case, trainer in (("lightning_ckpt", "accelerate"),
                          ("lightning_mp_w2", "accelerate"),
                          ("lightning_mp_w2", "lightning")):
        suite.add(f"{case} as {trainer}: numbers", test_numbers, case, trainer)
    for via in ("accelerate", "lightning", "torchtitan", "megatron"):
        suite.add(f"by name as {via}: numbers", test_numbers_of_names, via)
    suite.add("a script's own order: numbers", test_numbers_of_a_script)
    suite.add("an order that nothing shows", test_numbers_of_nothing)
    for ranks in (1, 2):
        suite.add(f"a pickle's order as verl of {ranks}", test_pickled_order,
                  ranks)
    for case in rows:
        suite.add(f"{case}: the model alone", test_model_only, case)
    suite.add("torchtitan's weights for transformers", test_weights)
    for case, cells in rows.items():
        for (trainer, ranks), says in zip(TARGETS, cells):
            suite.add(f"{case} as {trainer} of {ranks}: {says}", test_cell,
                      case, trainer, ranks, says)


if __name__ == "__main__":
    if "--write" in sys.argv:
        import tempfile

        CKPT = Ckpt(sys.argv[sys.argv.index("--ckpt") + 1])
        with tempfile.TemporaryDirectory() as temporary:
            write(Path(temporary))
    else:
        Suite(__doc__).main(prepare)
