#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What is asked for is done or refused: names, layers, parts, dtypes; and state
of training arrives or is named."""

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file

from support import DATA, Suite, check, check_equal

CKPT = None
LLAMA = DATA / "hf/llama/ckpt"
GPT2 = DATA / "hf/gpt2_f32/ckpt"


def weights(folder):
    state = {}
    for path in sorted(Path(folder).glob("*.safetensors")):
        state |= load_file(path)
    return state


def test_rename(folder):
    """Each prefix that a rule could take off again; each way to write rules."""
    before = weights(GPT2)
    for word in ("model.", "module.", "app.", "state_dict.", "_orig_mod.",
                 "net."):
        rules = {"*": word + "*"}
        (folder / "rules.json").write_text(json.dumps(rules))
        for form in (folder / "rules.json", json.dumps(rules), "=" + word):
            out = folder / "out"
            CKPT.ok("convert", GPT2, out, "--to", "safetensors", "--rename",
                    form, "--overwrite")
            got = weights(out)
            check_equal(sorted(got), sorted(word + name for name in before),
                        f"{word} {form}")
            for name, value in before.items():
                check(torch.equal(got[word + name], value), name)
            # No loader takes the configuration for that of these names.
            check((out / "hf_config.json").exists()
                  and not (out / "config.json").exists(), word)
            # Put back, it is found to be of other names.
            (out / "hf_config.json").rename(out / "config.json")
            done = CKPT.run("verify", out).want(1)
            check(done.out.splitlines()[-1].startswith("mismatch: "), str(done))


def test_rename_one_layer(folder):
    """Names of the dialect, and not of the model."""
    out = folder / "out"
    done = CKPT.ok("convert", LLAMA, out, "--to", "safetensors", "--rename",
                   '{"model.layers.0.*": "model.layers.9.*"}')
    check("hf_config.json" in done.err, done.err)
    check(not (out / "config.json").exists(), "config.json stands there")


def test_rename_kept(folder):
    """Names that the configuration has a place for keep it."""
    CKPT.ok("convert", LLAMA, folder / "there", "--to", "safetensors",
            "--rename", "=app.")
    shutil.move(folder / "there/hf_config.json", folder / "there/config.json")
    CKPT.ok("convert", folder / "there", folder / "back", "--to", "safetensors",
            "--rename", "app.=")
    check((folder / "back/config.json").exists(), "config.json is set aside")
    CKPT.ok("verify", LLAMA, folder / "back")


def test_rename_undone(folder):
    """Where the target's rules would make other names of them: refused."""
    done = CKPT.run("convert", GPT2, folder / "out", "--to", "safetensors",
                    "--family", "gpt2", "--dialect", "hf", "--rename",
                    "=model.")
    if done.code == 0:
        check(all(name.startswith("model.") for name in
                  weights(folder / "out")), "names")
    else:
        check(done.code == 5 and "--" in done.err, str(done))
        check(not (folder / "out").exists(), "something was written")


def test_rename_mistakes(folder):
    rows = (("nothing.=x.", 5, "nothing."), ("{not json", 2, "--rename"),
            ('{"a": 1}', 2, "not a string"), ("a.*=b.*", 2, "OLD=NEW"),
            (folder / "absent.json", 3, "absent.json"))
    for rules, code, word in rows:
        done = CKPT.run("unshard", LLAMA, folder / "out.pt", "--rename", rules)
        check_equal(done.code, code, str(done))
        check(word in done.err and "hint: " in done.err, str(done))


def test_prefixes(folder):
    """Several at once."""
    CKPT.ok("unshard", LLAMA, folder / "out.pt", "--rename",
            "model.=decoder.,lm_head.=output.", "--dtype", "f32")
    got = torch.load(folder / "out.pt", weights_only=True)
    want = {name.replace("model.", "decoder.", 1).replace(
        "lm_head.", "output.", 1) for name in weights(LLAMA)}
    check_equal(set(got), want, "names")


def test_config_from(folder):
    """Written with the weights, whatever they came in."""
    import torch.distributed.checkpoint as dcp

    state = weights(LLAMA)
    torch.save(state, folder / "plain.pt")
    torch.save({"epoch": 1, "model": state}, folder / "wrapped.pt")
    dcp.save({"state": {"model": state}}, checkpoint_id=folder / "dcp",
             no_dist=True)
    CKPT.ok("unshard", LLAMA, folder / "one.safetensors")
    for source in ("plain.pt", "wrapped.pt", "dcp", "one.safetensors"):
        for target in ("safetensors", "torch", "dcp"):
            out = folder / f"{source} to {target}"
            CKPT.ok("convert", folder / source, out, "--to", target,
                    "--config-from", LLAMA)
            check((out / "config.json").exists(), f"{source} to {target}")
            CKPT.ok("verify", LLAMA, out)


def layers_of(state):
    return sorted({int(name.split(".")[2]) for name in state
                   if name.startswith("model.layers.")})


def test_last_layers(folder):
    before = weights(LLAMA)
    held = layers_of(before)
    for count in range(1, len(held) + 1):
        out = folder / str(count)
        done = CKPT.ok("convert", LLAMA, out, "--to", "safetensors",
                       "--layers", f"last:{count}", "--json").json()
        check_equal(done["part_of_model"], False, f"last:{count}")
        got = weights(out)
        check_equal(layers_of(got), list(range(count)), "layers")
        config = json.loads((out / "config.json").read_text())
        check_equal(config["num_hidden_layers"], count, "the configuration")
        first = len(held) - count
        for name, value in got.items():
            parts = name.split(".")
            if name.startswith("model.layers."):
                parts[2] = str(int(parts[2]) + first)
            check(torch.equal(value, before[".".join(parts)]), name)
    for wrong in ("last:0", "last:", "last:x", "last:-1"):
        CKPT.run("convert", LLAMA, folder / "no", "--to", "safetensors",
                 "--layers", wrong).want(2)


def test_part(folder):
    rows = ((["--keys", "*.self_attn.*"], True), (["--layers", "1"], True),
            (["--exclude", "lm_head.*"], True), (["--layers", "0"], False),
            (["--keys", "*"], False), ([], False))
    for at, (words, part) in enumerate(rows):
        out = folder / str(at)
        done = CKPT.ok("convert", LLAMA, out, "--to", "safetensors", *words)
        check_equal("a part of the model" in done.err.splitlines()[-1], part,
                    str(done))
        done = CKPT.ok("convert", LLAMA, out, "--to", "safetensors", *words,
                       "--overwrite", "--json").json()
        check_equal(done["part_of_model"], part, str(words))


def test_fp8_cast(folder):
    """Codes without scales are refused, in each spelling."""
    for spelling in ("f8_e4m3", "fp8", "float8_e4m3fn", "e5m2", "f8_e5m2",
                     "torch.float8_e5m2"):
        done = CKPT.run("convert", LLAMA, folder / "o", "--to", "safetensors",
                        "--dtype", spelling).want(2)
        check("--quantize fp8-block" in done.err, str(done))
    CKPT.ok("convert", LLAMA, folder / "o", "--to", "safetensors",
            "--quantize", "fp8-block")


def test_losses(folder):
    """What became zero is said without -v if it is more than 1 in 1,000."""
    for zeros, said in ((0, False), (1, False), (3, True), (1000, True)):
        values = torch.ones(1000, 2)
        values.view(-1)[:2 * zeros] = 1e-20
        save_file({"a": values, "b": torch.ones(4)}, folder / "in.safetensors")
        done = CKPT.ok("convert", folder / "in.safetensors",
                       folder / "out.safetensors", "--dtype", "f16",
                       "--overwrite")
        made = load_file(folder / "out.safetensors")["a"]
        check_equal((made == 0).sum().item(), 2 * zeros, "zeros")
        check_equal("became 0 in f16" in done.err, said, str(done))


def megatron_run(folder):
    source = next(path for path in sorted(
        (DATA / "megatron_torch_dist").iterdir())
        if (path / "ckpt/latest_checkpointed_iteration.txt").exists())
    run = folder / "run"
    shutil.copytree(source / "ckpt", run)
    return run, next(run.glob("iter_*"))


def dcp_at(folder):
    import torch.distributed.checkpoint as dcp

    folder.mkdir()
    dcp.save({"amax": torch.arange(8.)},
             storage_writer=dcp.FileSystemWriter(str(folder)), no_dist=True)
    torch.save({"modelopt_version": "0.25"}, folder / "common.pt")
    (folder / "metadata.json").write_text(
        '{"sharded_backend": "torch_dist", "sharded_backend_version": 1}')


def test_nested(folder):
    """A checkpoint in a checkpoint goes whole, and loads, or is named whole."""
    from torch.distributed.checkpoint import FileSystemReader

    run, step = megatron_run(folder)
    dcp_at(step / "modelopt_state")
    names = {path.name for path in (step / "modelopt_state").iterdir()}
    CKPT.ok("reshard", run, folder / "same", "--tp", "1")
    there = next((folder / "same").rglob("modelopt_state"))
    check_equal({path.name for path in there.iterdir()}, names, "files")
    for name in names:
        check_equal((there / name).read_bytes(),
                    (step / "modelopt_state" / name).read_bytes(), name)
    FileSystemReader(str(there)).read_metadata()
    CKPT.ok("verify", run, folder / "same")
    done = CKPT.ok("convert", run, folder / "hf.safetensors", "--dialect",
                   "keep", "--json").json()
    fates = {Path(one["path"]).name: one for one in done["files"]
             if "modelopt_state" in one["path"]}
    check_equal(set(fates), names, "files that are named")
    check_equal({one["fate"] for one in fates.values()}, {"left_out"}, "fates")


def test_root_state(folder):
    """Each file of step and root is there afterwards, was read, or is named."""
    source = next(path for path in sorted((DATA / "megatron_legacy").iterdir())
                  if (path / "ckpt/latest_checkpointed_iteration.txt").exists())
    run = folder / "run"
    shutil.copytree(source / "ckpt", run)
    for rank in range(2):
        torch.save({"state": torch.ones(3)},
                   run / f"layer_wise_optimizer_{rank}.pt")
    done = CKPT.ok("reshard", run, folder / "out", "--tp", "1")
    check("layer_wise_optimizer_0.pt" in done.err
          or list((folder / "out").rglob("layer_wise_optimizer_0.pt")),
          str(done))
    listed = CKPT.ok("reshard", run, folder / "out", "--tp", "1", "--json",
                     "--overwrite").json()["files"]
    fates = {one["path"]: one["fate"] for one in listed}
    for path in run.rglob("*"):
        if path.is_file():
            check(str(path.relative_to(run)) in fates, f"{path} is not listed")
    check(fates["layer_wise_optimizer_0.pt"] != "converted", "its fate")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    suite.add("--rename: prefixes", test_rename)
    suite.add("--rename: one layer", test_rename_one_layer)
    suite.add("--rename: names that fit", test_rename_kept)
    suite.add("--rename: a family's own names", test_rename_undone)
    suite.add("--rename: mistakes", test_rename_mistakes)
    suite.add("--rename: several prefixes", test_prefixes)
    suite.add("--config-from", test_config_from)
    suite.add("--layers last:N", test_last_layers)
    suite.add("a part of the model", test_part)
    suite.add("--dtype f8", test_fp8_cast)
    suite.add("--dtype: zeros", test_losses)
    suite.add("a checkpoint in a checkpoint", test_nested)
    suite.add("state in the root", test_root_state)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
