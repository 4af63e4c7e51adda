#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What `ckpt salvage` takes besides the damaged files: an index that a killed
save had no time to rename, another rank's names, checksums that others left.
And what it must not call whole: a model without its configuration."""

import hashlib
import json
import shutil

from support import Skip, DATA, Suite, check, check_equal

CKPT = None  # set by prepare
MANIFEST = ".ckpt-manifest.json"


def copy(case, to):
    shutil.copytree(DATA / case / "ckpt", to)
    return to


def files_of(folder):
    return {str(p.relative_to(folder)): p.read_bytes()
            for p in sorted(folder.rglob("*")) if p.is_file()
            and p.name != MANIFEST}


def salvage(source, out, code, *more):
    done = CKPT.run("salvage", source, out, "--json", "--no-fsync", *more)
    check_equal(done.code, code, str(done))
    return json.loads(done.out) if done.out else {}


# ------------------------------------------------------------- killed saves
def test_unrenamed(folder, case):
    """The index of a save that was killed before its last step is its index; a
    part of one is not, and neither is one beside its successor."""
    for whole in (True, False):
        source = copy(case, folder / f"in{whole}")
        want = files_of(source)
        index = next(source.rglob(".metadata"))
        draft = index.with_name(".metadata.tmp")
        index.rename(draft)
        if whole:
            report = salvage(source, folder / "out", 0)
            check(report["whole"] and report["rebuilt"], report)
            check(all(note["inferred"] for note in report["rebuilt"]), report)
            check_equal(files_of(folder / "out"), want, "files")
            CKPT.ok("verify", folder / "out")
            continue
        data = draft.read_bytes()
        for part in (0, len(data) // 2, len(data) - 1):
            draft.write_bytes(data[:part])
            salvage(source, folder / "none", 4)
            check(not (folder / "none").exists(), "something was written")
        index.write_bytes(data)
        draft.write_bytes(b"of another save")
        salvage(source, folder / "both", 0)
        check_equal((folder / "both" / index.relative_to(source)).read_bytes(),
                    data, "index")


def test_items_of_unrenamed(folder):
    """It is no proof of what it names: a lost part is still lost."""
    source = copy("dcp/fsdp2_w2_adamw", folder / "in")
    (source / ".metadata").rename(source / ".metadata.tmp")
    file = next(source.glob("*.distcp"))
    file.write_bytes(file.read_bytes()[:-9000])
    report = salvage(source, folder / "out", 5)
    check(report["gone"] or report["lost"], report)


# --------------------------------------------------------------- ZeRO 3
ZERO = "runs/hf_trainer_zero3_w2"


def test_one_rank(folder, rank):
    """Each rank's partition is there, names and shapes are of one rank alone:
    torch.save's name in the file is the lost one's."""
    source = copy(ZERO, folder / "in")
    want = {t["name"]: t.get("digest") for t in CKPT.inspect(
        source, "--digest")["tensors"]}
    lost = next(source.rglob(f"zero_pp_rank_{rank}_*_model_states.pt"))
    lost.unlink()
    report = salvage(source, folder / "out", 0)
    note, = report["rebuilt"]
    check(note["inferred"] and note["file"].endswith(lost.name), note)
    made = folder / "out" / lost.relative_to(source)
    check(lost.stem.encode() in made.read_bytes(), "its name")
    got = {t["name"]: t.get("digest") for t in CKPT.inspect(
        folder / "out", "--digest")["tensors"]}
    check_equal(got, want, "tensors")


def test_frozen_parts(folder, case):
    """Frozen parameters are in pieces: no other rank has a lost one's."""
    source = copy("deepspeed/" + case, folder / "in")
    next(source.rglob("zero_pp_rank_1_*_model_states.pt")).unlink()
    salvage(source, folder / "out", 4)
    check(not (folder / "out").exists(), "something was written")


# ------------------------------------------------------------ configurations
def configured():
    """(case, its configuration), of formats whose framework always has one."""
    found = []
    for format, name in (("fairseq2_native", "model.yaml"),
                         ("meta", "params.json"), ("hf", "config.json")):
        for path in sorted((DATA / format).glob(f"*/ckpt/{name}")):
            if format != "hf" or \
                    path.with_name("generation_config.json").exists():
                found.append((f"{format}/{path.parts[-3]}", name))
    return found


def test_configuration(folder, case, name):
    """Tensors without their configuration are another model's, or nobody's."""
    source = copy(case, folder / "in")
    sound = CKPT.run("salvage", source, folder / "sound", "-n")
    if sound.code != 0:
        raise Skip(f"salvage takes nothing of it: {sound.err[:80]}")
    (source / name).unlink()
    done = CKPT.run("salvage", source, folder / "out", "--json")
    check(done.code in (4, 5), str(done))
    check(not (folder / "out").exists(), "something was written")
    if done.code == 5:
        lost = json.loads(done.out)["lost"]
        check(any(name in note["file"] + note["what"] for note in lost), lost)
    # Another step of the run has it.
    report = salvage(source, folder / "like", 0, "--like", DATA / case / "ckpt")
    check(report["whole"], report)
    check_equal((folder / "like" / name).read_bytes(),
                (DATA / case / "ckpt" / name).read_bytes(), name)


# ------------------------------------------------------------------ checksums
def flipped(path):
    data = bytearray(path.read_bytes())
    data[-7] ^= 4
    path.write_bytes(data)


def in_list(name, algorithm):
    def lay(folder):
        file = folder / "m" / "model.safetensors"
        digits = hashlib.new(algorithm, file.read_bytes()).hexdigest()
        (folder / "m" / name).write_text(f"{digits}  model.safetensors\n")
        return file
    return lay


def in_cache(below):
    """Of a download into a directory: beside the files, or above them."""
    def lay(folder):
        file = folder / "m" / "model.safetensors"
        root = folder if below else folder / "m"
        metadata = root / ".cache/huggingface/download" / (
            ("m/" if below else "") + "model.safetensors.metadata")
        metadata.parent.mkdir(parents=True)
        digits = hashlib.sha256(file.read_bytes()).hexdigest()
        metadata.write_text(f"c\n{digits}\n1.0\n")
        return file
    return lay


def in_hub(folder):
    """A blob whose name is its sum."""
    place = folder / "models--o--m"
    blobs, shot = place / "blobs", place / "snapshots/abc"
    blobs.mkdir(parents=True)
    shot.mkdir(parents=True)
    for file in (folder / "m").iterdir():
        digits = hashlib.sha256(file.read_bytes()).hexdigest()
        file.rename(blobs / digits)
        (shot / file.name).symlink_to(f"../../blobs/{digits}")
    (folder / "m").rmdir()
    (folder / "m").symlink_to(shot)
    return folder / "m" / "model.safetensors"


SUMS = {
    "SHA256SUMS": in_list("SHA256SUMS", "sha256"),
    "own .sha256": in_list("model.safetensors.sha256", "sha256"),
    "own .md5": in_list("model.safetensors.md5", "md5"),
    "checklist.chk": in_list("checklist.chk", "md5"),
    "local directory": in_cache(False), "directory above": in_cache(True),
    "hub cache": in_hub,
}


def test_sums(folder, kind, single):
    """Where a checksum lies beside the source, nothing that fails it is whole:
    of a directory, of one file, above it, in a name."""
    copy("hf/llama", folder / "m")
    file = SUMS[kind](folder)
    source = file if single else folder / "m"
    ending = ".safetensors" if single else ""
    report = salvage(source, folder / f"sound{ending}", 0)
    check(report["whole"], report)
    flipped(file.resolve())
    out = folder / f"rotten{ending}"
    report = salvage(source, out, 5)
    check(not out.exists(), "something was written")
    check(any("has " in n["what"] and ".ckpt-salvage" not in str(n)
              for n in report["lost"]), report)
    report = salvage(source, out, 1, "--partial", "zeros")
    done = CKPT.run("verify", out)
    check(done.code != 0 or not done.out.strip().startswith("ok:"), str(done))


# ------------------------------------------------------------------ leftovers
def test_left_over(folder):
    """What a killed salvage left for a target goes with whatever is written
    there next, and not while another one runs."""
    source = DATA / "safetensors/hf_sharded/ckpt"
    for number, argv in enumerate((
            ("convert", source, "{out}", "--to", "dcp"),
            ("reshard", DATA / "dcp/fsdp2_w2_adamw/ckpt", "{out}"),
            ("salvage", source, "{out}"))):
        out = folder / f"out{number}"
        left = folder / f".out{number}.ckpt-salvage"
        (left / "deep").mkdir(parents=True)
        (left / "deep/model.pt").write_bytes(b"of a killed run")
        (left / "link").symlink_to(source)
        CKPT.ok(*(word.format(out=out) if isinstance(word, str) else word
                  for word in argv))
        check_equal([p.name for p in folder.iterdir()
                     if "ckpt-salvage" in p.name], [], argv[0])
        check(source.exists(), "the link was followed")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for case in ("dcp/fsdp2_w2_adamw",
                 "megatron_torch_dist/gpt_tp2_pp2_v0161"):
        suite.add("unrenamed " + case, test_unrenamed, case)
    for rank in (0, 1):
        suite.add(f"lost rank {rank}", test_one_rank, rank)
    for case in ("zero3_dp2", "zero3_dp4_subgroups"):
        suite.add("frozen " + case, test_frozen_parts, case)
    for case, name in configured():
        suite.add(f"without {name}: {case}", test_configuration, case, name)
    for kind in SUMS:
        for single in (False, True):
            suite.add(f"{kind} {'file' if single else 'directory'}", test_sums,
                      kind, single)
    for test in (test_items_of_unrenamed, test_left_over):
        suite.add(test.__name__[5:], test)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
