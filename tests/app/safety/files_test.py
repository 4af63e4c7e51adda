#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Files beside the tensors: each file of an opened checkpoint is listed, and
each is carried, converted, or left out with a reason."""

import os
import shutil

from support import DATA, Suite, check, check_equal

CKPT = None  # set by prepare

PARTS = {"model", "optim", "scheduler", "rng", "trainer", "config",
         "tokenizer", "dataloader", "other"}


def cases():
    """The checkpoints of all directory formats, one of each kind of layout."""
    for case in sorted(DATA.glob("*/*/case.json")):
        if (case.parent / "ckpt").is_dir() and case.parts[-3] != "bad":
            yield case.parent / "ckpt"


def walk(folder):
    """path -> bytes of each file, by the operating system."""
    return {os.path.relpath(os.path.join(top, name), folder):
            os.stat(os.path.join(top, name)).st_size
            for top, _, names in os.walk(folder) for name in names
            if not name.endswith(".ckpt-manifest.json")}


def document(path):
    """The JSON of inspect; None for what ckpt opens file by file."""
    done = CKPT.run("inspect", path, "--json")
    return done.json() if done.code == 0 else None


def test_all_are_listed(folder):
    """inspect --json lists each file of a directory, with its size."""
    formats = set()
    for path in cases():
        got = document(path)
        if got is None:
            continue
        formats.add(got["format"])
        listed = {row["path"]: row["bytes"] for row in got["file_list"]}
        check_equal(listed, walk(path), path)
        check(all(row["part"] in PARTS for row in got["file_list"]), path)
    check(len(formats) == 13, f"formats with a directory: {sorted(formats)}")


def test_part_by_tensors(folder):
    """A file is the model's or the optimizer's according to its tensors."""
    for path in cases():
        got = CKPT.run("inspect", path, "--json", "--shards")
        if got.code:
            continue
        kinds = {}
        for tensor in got.json()["tensors"]:
            for piece in tensor["shards"]:
                kinds.setdefault(os.path.normpath(piece["file"]),
                                 set()).add(tensor["kind"])
        for row in got.json()["file_list"]:
            kind = kinds.get(os.path.normpath(path / row["path"]), set())
            if "model" in kind:
                check_equal(row["part"], "model", row["path"])
            elif "optim" in kind:
                check_equal(row["part"], "optim", row["path"])


def test_part_by_name(folder):
    """The rest is decided by the names that trainers give."""
    source = folder / "run"
    source.mkdir()
    whole = DATA / "hf" / "llama" / "ckpt"
    for file in whole.iterdir() if whole.is_dir() else ():
        (source / file.name).write_bytes(file.read_bytes())
    if not (source / "model.safetensors").exists():
        (source / "model.safetensors").write_bytes(
            (2).to_bytes(8, "little") + b"{}")
    names = {"optimizer.pt": "optim", "scheduler.pt": "scheduler",
             "rng_state_0.pth": "rng", "random_states_0.pkl": "rng",
             "training_args.bin": "trainer",
             "config.json": "config", "generation_config.json": "config",
             "tokenizer.json": "tokenizer", "merges.txt": "tokenizer",
             "chat_template.jinja": "tokenizer",
             "chat_templates/tools.jinja": "tokenizer",
             "vocab.json": "tokenizer", "README.md": "other",
             "dataloader.pt": "dataloader", "sub/deep/notes": "other"}
    for name in names:
        path = source / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not path.exists():
            path.write_bytes(b"{}")
    got = {row["path"]: row["part"] for row in document(source)["file_list"]}
    check_equal({name: got.get(name) for name in names}, names, "parts")


def test_one_file(folder):
    """A file that is opened is the only one listed."""
    path = folder / "a.safetensors"
    path.write_bytes((2).to_bytes(8, "little") + b"{}")
    (folder / "other.json").write_text("{}")
    for given, cwd in ((path, None), ("a.safetensors", folder),
                       ("./a.safetensors", folder)):
        got = CKPT.ok("inspect", given, "--json", cwd=cwd).json()["file_list"]
        check_equal(got, [{"path": "a.safetensors", "bytes": 10,
                           "part": "model"}], given)


def test_links_to_directories(folder):
    """A link to a directory is listed but not followed; nor is a cycle."""
    source = folder / "run"
    (source / "sub").mkdir(parents=True)
    (source / "model.safetensors").write_bytes(
        (2).to_bytes(8, "little") + b"{}")
    (source / "sub" / "up").symlink_to(source)
    (source / "out").symlink_to("/")
    got = [row["path"] for row in document(source)["file_list"]]
    check_equal(got, ["model.safetensors", "out", "sub/up"], "listed")


# One directory of each format: files beside it must not be lost.
ONE_OF_EACH = {
    "safetensors": "safetensors/hf_sharded", "torch": "torch_pt/sharded_bin",
    "fairseq2": "fairseq2_native/llama_tp2dp2_fsdp2",
    "megatron_torch_dist": "megatron_torch_dist/gpt_tp2_pp2_v0161",
    "megatron_zarr": "megatron_zarr/gpt_zarr_tp2_pp2_v0090",
    "megatron_legacy": "megatron_legacy/llama_te_tp2_pp2",
    "dcp": "dcp/fsdp2_w2_adamw", "olmo_core": "olmo_core_dcp/hf_llama",
    "olmo_core_v1": "olmo_core_v1/fsdp_torch_w4", "meta": "meta/llama",
    "modelopt": "modelopt/sharded_llama_tied_w2", "vllm": "vllm/tp2",
    "deepspeed": "deepspeed/zero1_dp2"}

STRAYS = ["notes.txt", "tokenizer.json", "chat_templates/tools.jinja",
          "generation_config.json", "preprocessor_config.json", "LICENSE",
          "modeling_own.py", "original/params.json",
          "original/consolidated.00.pth", "adapter_model.safetensors",
          "adapter_config.json", ".gitattributes", ".git/HEAD",
          "deep/er/notes.dat"]

# Weights by name: never mixed with what is written.
NEVER_CARRIED = {"original/consolidated.00.pth", ".git/HEAD"}


def with_strays(case, target):
    shutil.copytree(DATA / case / "ckpt", target)
    added = {}
    for name in STRAYS:
        path = target / name
        if path.exists():
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        stray = f"stray {name}"
        path.write_text(f'["{stray}"]' if name.endswith(".json") else stray)
        added[name] = path.read_bytes()
    return added


def test_each_file_has_a_fate(folder, case, to):
    """Every file of the source has a fate; carried ones are there byte for
    byte."""
    source, out = folder / "run", folder / "out"
    strays = with_strays(case, source)
    done = CKPT.ok("convert", source, out, "--to", to, "--json",
                   "--ignore-checksums")
    rows = done.json()["files"]
    check_equal(sorted(row["path"] for row in rows), sorted(walk(source)),
                "paths")
    fates = {row["path"]: row for row in rows}
    for row in rows:
        check(row["fate"] in ("carried", "converted", "left_out"), row)
        check(row["reason"] or row["fate"] != "left_out", row)
    written = [path for path in out.rglob("*") if path.is_file()]
    left = []
    for name, content in strays.items():
        row = fates[name]
        check(row["fate"] != "converted", row)
        check(name not in NEVER_CARRIED or row["fate"] == "left_out", row)
        if row["fate"] == "carried":
            check(any(str(path).endswith("/" + name)
                      and path.read_bytes() == content for path in written),
                  f"{name} is carried, and not in {out}")
        elif not name.startswith(".git/"):
            left.append(name)
    for name in ("notes.txt", "tokenizer.json", "LICENSE", ".gitattributes",
                 "chat_templates/tools.jinja", "deep/er/notes.dat"):
        # A folder beside a step may be another checkpoint.
        beside = fates[name]["reason"].startswith("it lies beside")
        check(name not in strays or fates[name]["fate"] == "carried" or
              ("/" in name and beside), fates[name])
    if left:
        check("left out" in done.err, done.err)
    CKPT.ok("verify", out)


def test_single_file(folder):
    """A single file can't hold the others: each is named."""
    source, out = folder / "run", folder / "out.safetensors"
    strays = with_strays("safetensors/hf_sharded", source)
    done = CKPT.ok("convert", source, out, "--to", "safetensors", "--json", "-v")
    fates = {row["path"]: row for row in done.json()["files"]}
    for name in strays:
        check_equal(fates[name]["fate"], "left_out", name)
        check(fates[name]["reason"] == "the target is one file" or
              name.startswith("adapter_model"), fates[name])
        check(name in done.err, f"-v names {name}")
    brief = CKPT.ok("convert", source, out, "--to", "safetensors",
                    "--overwrite").err
    check_equal(brief.count("left out"), 1, "lines of the warning")


def test_names_of_the_target(folder):
    """A stray file never replaces one of the target's own."""
    source, out = folder / "run", folder / "out"
    shutil.copytree(DATA / "dcp" / "fsdp2_w2_adamw" / "ckpt", source)
    (source / "model.safetensors").write_bytes(b"not what is written")
    (source / "other.safetensors").write_bytes(b"nor this")
    done = CKPT.ok("convert", source, out, "--to", "safetensors", "--json")
    fates = {row["path"]: row["fate"] for row in done.json()["files"]}
    check_equal(fates["model.safetensors"], "left_out", "fate")
    check_equal(fates["other.safetensors"], "left_out", "fate")
    CKPT.ok("verify", source, out)


def hf(folder):
    source = folder / "run"
    shutil.copytree(DATA / "safetensors" / "hf_sharded" / "ckpt", source)
    return source


def test_links_out_of_the_source(folder):
    """A link to a file elsewhere is refused; one inside is carried."""
    secret = folder / "secret"
    secret.write_text("key")
    for name in ("tokenizer.json", "sub/notes", "config.json"):
        shutil.rmtree(folder / "run", ignore_errors=True)
        source = hf(folder)
        path = source / name
        path.parent.mkdir(exist_ok=True)
        path.unlink(missing_ok=True)
        path.symlink_to(secret)
        if name == "config.json":
            secret.write_text("{}")
        done = CKPT.run("convert", source, folder / "out", "--to",
                        "safetensors")
        check_equal(done.code, 8, f"{name}: {done.err}")
        check(name in done.err and "hint:" in done.err, done.err)
        check(not (folder / "out").exists(), "a target was made")
        CKPT.ok("inspect", source)
    shutil.rmtree(folder / "run")
    source = hf(folder)
    (source / "notes").write_text("inside")
    (source / "tokenizer.json").unlink(missing_ok=True)
    (source / "tokenizer.json").symlink_to("notes")
    CKPT.ok("convert", source, folder / "out", "--to", "safetensors")
    check_equal((folder / "out" / "tokenizer.json").read_text(), "inside",
                "content")
    check(not (folder / "out" / "tokenizer.json").is_symlink(), "a copy")


def hub(folder):
    """A model in the cache of huggingface_hub: links into its blobs."""
    snapshot = folder / "models--o--m" / "snapshots" / "abc"
    blobs = folder / "models--o--m" / "blobs"
    snapshot.mkdir(parents=True)
    blobs.mkdir()
    for i, file in enumerate(sorted(
            (DATA / "safetensors" / "hf_sharded" / "ckpt").iterdir())):
        shutil.copy(file, blobs / str(i))
        (snapshot / file.name).symlink_to(f"../../blobs/{i}")
    (blobs / "t").write_text("tokens")
    (snapshot / "tokenizer.json").symlink_to("../../blobs/t")
    return snapshot, blobs


def test_links_into_the_hub(folder):
    """The hub's links to its own blobs are carried."""
    snapshot, _ = hub(folder)
    CKPT.ok("convert", snapshot, folder / "out", "--to", "safetensors")
    check_equal((folder / "out" / "tokenizer.json").read_text(), "tokens",
                "content")
    other = folder / "models--o--other" / "blobs"
    other.mkdir(parents=True)
    (other / "t").write_text("another's")
    (snapshot / "notes").symlink_to("../../../models--o--other/blobs/t")
    done = CKPT.run("convert", snapshot, folder / "out2", "--to", "safetensors")
    check_equal(done.code, 8, done.err)


def test_half_deleted_hub(folder):
    """A blob that is gone isn't a file that never existed."""
    for name in ("config.json", "tokenizer.json"):
        shutil.rmtree(folder / "models--o--m", ignore_errors=True)
        snapshot, _ = hub(folder)
        (snapshot / name).resolve().unlink()
        done = CKPT.run("convert", snapshot, folder / "out", "--to",
                        "safetensors")
        check_equal(done.code, 3, f"{name}: {done.err}")
        check(name in done.err and "broken symlink" in done.err, done.err)
        check(not (folder / "out").exists(), "a target was made")


def test_without_permission(folder):
    """What may not be examined isn't absent."""
    if os.geteuid() != 0:
        return
    source = hf(folder)
    hidden = folder / "hidden"
    hidden.mkdir()
    (source / "config.json").rename(hidden / "config.json")
    (source / "config.json").symlink_to(hidden / "config.json")
    hidden.chmod(0o700)
    for top in (folder, folder.parent, source):
        top.chmod(0o755)
    done = CKPT.run("inspect", source, user="nobody")
    check_equal(done.code, 6, done.err)
    check("config.json" in done.err and "Permission denied" in done.err,
          done.err)


def test_root_of_a_file_system(folder, case):
    """mkfs makes lost+found there, for root alone: it isn't part of
    anything."""
    if os.geteuid() != 0:
        return
    source = folder / "root"
    shutil.copytree(DATA / case / "ckpt", source)
    (source / "lost+found").mkdir(0o700)
    free = folder / "free"
    free.mkdir()
    free.chmod(0o777)
    for top in (folder, folder.parent, source):
        top.chmod(0o755)
    for words in (("inspect", source), ("verify", source),
                  ("ls", source, "-l"), ("scan", source),
                  ("salvage", source, free / "out", "-n")):
        plain = CKPT.run(*(DATA / case / "ckpt" if word == source else word
                           for word in words))
        done = CKPT.run(*words, user="nobody")
        check_equal(done.code, plain.code, f"{words[0]}: {done.err}")
        check("lost+found" not in done.out + done.err, str(done))


def test_cut_documents(folder):
    """JSON that is cut is copied as it is, and said; the tensors are whole."""
    run = "runs/hf_trainer_qwen2/ckpt/checkpoint-10"
    text = '{"model": {"type": "BPE", "vocab": {"a": 0}}}'
    names = ["tokenizer.json", "tokenizer_config.json", "vocab.json",
             "special_tokens_map.json", "added_tokens.json",
             "generation_config.json", "preprocessor_config.json",
             "notes.json", "more/deep.json"]
    for case, command in (
            ("safetensors/hf_sharded/ckpt", ("convert", "--to", "torch")),
            ("safetensors/hf_sharded/ckpt", ("convert", "--to", "dcp")),
            (run, ("reshard",)), (run, ("convert", "--to", "safetensors"))):
        source, out = folder / "run", folder / "out"
        for path in (source, out):
            shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(DATA / case, source)
        for name in names:
            (source / name).parent.mkdir(exist_ok=True)
            (source / name).write_text(text[:len(text) // 2])
        (source / "whole.json").write_text('{"a": [NaN, -Infinity]}')
        done = CKPT.ok(command[0], source, out, *command[1:], "-vv")
        for name in names:
            said = [line for line in done.err.splitlines()
                    if f"/{name}: " in line and line.startswith("warning")]
            check(len(said) == 1 and "byte" in said[0],
                  f"{command} {name}: {done.err}")
            check_equal((out / name).read_text(), text[:len(text) // 2], name)
        check("whole.json" not in done.err, done.err)


def main():
    suite = Suite(__doc__)
    for test in (test_single_file, test_names_of_the_target,
                 test_links_out_of_the_source, test_links_into_the_hub,
                 test_half_deleted_hub, test_without_permission,
                 test_all_are_listed, test_part_by_tensors, test_part_by_name,
                 test_one_file, test_links_to_directories):
        suite.add(test.__name__.removeprefix("test_"), test)
    suite.add("cut documents", test_cut_documents)
    for name, case in ONE_OF_EACH.items():
        suite.add(f"root of a file system: {name}",
                  test_root_of_a_file_system, case)
        for to in ("safetensors", "dcp"):
            suite.add(f"fates: {name} to {to}", test_each_file_has_a_fate,
                      case, to)

    def prepare(_, ckpt):
        global CKPT
        CKPT = ckpt
    suite.main(prepare)


if __name__ == "__main__":
    main()
