#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Each malformed or malicious file has the outcome that EXPECT.tsv requires.

Besides the outcome: no crash, no run-away time or memory, nothing executed,
nothing written. (This test imports neither torch nor numpy, because the peak
memory that the system reports for a child includes its parent's at the fork.)
"""

import json
import os
import re
import shutil
import struct
import zipfile

from support import (
    DATA, Failure, Suite, check, check_equal, read_safetensors)

CKPT = None
BAD = DATA / "bad"

SECONDS = 10  # of processor
MEMORY = 200 << 20
# missing, damaged, not faithful, a bound is too small, unsafe
REFUSALS = {3, 4, 5, 7, 8}

# What the message must contain, where EXPECT.tsv asks for more than a refusal.
MESSAGES = {
    "safetensors/git_lfs_pointer.safetensors": "git-lfs",
    "safetensors/overlap.safetensors": "begins at byte",
    "safetensors/unknown_dtype.safetensors": "F128",
    "index/missing_shard/": "model-00002-of-00002.safetensors",
    "index/tensor_not_in_shard/": "ghost",
    "index/incomplete_set_no_index/": "00002-of-00003|shard 2|2 of 3",
    "index/bin_index_missing/": r"pytorch_model-0000.-of-0000.\.bin",
    "torch_pt/version_99.pt": "99",
    "torch_pt/byteorder_unknown.pt": "middle",
    "torch_pt/method_bzip2.pt": "12|bzip2",
    "torch_pt/encrypted_flag.pt": "encrypted",
    "torch_pt/missing_storage.pt": "data/0",
    "dcp/metadata_tmp_only/": "incomplete save",
    "dcp/missing_distcp/": "__1_0.distcp",
    "dcp/gap/": "model.w",
    "dcp/overlap/": "model.w",
    "dcp/dtype_mismatch/": "model.w",
    "dcp/unknown_transform/": "stream.rot13",
    "dcp/unknown_transform_version/": "stream.zstd/2",
    "dcp/relative_path_parent/": "outside_secret",
    "dcp/relative_path_absolute/": "/etc/hostname",
    "dcp/unknown_metadata_class/": "Counter",
    "deepspeed/missing_partition/": "partition 2 of 4",
    "deepspeed/swapped_partitions/": "param_slice_mappings",
    "deepspeed/latest_traversal/": "not a plain name",
}

# What verify must report of files that inspect may accept.
VERIFY_REPORTS = {
    "index/wrong_total_size/": "total_size",
    "torch_pt/crc_mismatch.pt": "(?i)crc|checksum",
}
VERIFY_SAYS = {"torch_pt/crc_zero.pt": "no checksum"}

# Contents of files that must work: tensor -> its float32 values.
GOOD = [0.5, 1.5, 2.5, 3.5]
CONTENTS = {
    "torch_pt/_control_good.pt": {"w": GOOD},
    "torch_pt/zip64_good.pt": {"w": GOOD},
    "torch_pt/deflated.pt": {"w": GOOD},
    "torch_pt/crc_zero.pt": {"w": GOOD},
    "torch_legacy/_control_good.pt": {"w": GOOD},
    "torch_legacy/big_endian_flag.pt": {"w": GOOD},
}
# Every good DCP directory here holds the same three values.
DCP = {"model.w": [float(n) for n in range(24)],
       "model.b": [float(n) for n in range(4)]}
CONTENTS |= {f"dcp/{name}/": DCP for name in (
    "_control_good", "index_hint_wrong", "planner_data_conflict",
    "evil_bytes_entry", "evil_metadata_planner_data")}

TENSORS = {"pickle/cyclic_with_tensors.pt": ["w"]}


def outcomes(text, table):
    """The required outcomes of a row, as a set of words."""
    alike = re.match(r"as (\S+?\.pt)", text)
    if alike:
        return outcomes(table["pickle/" + alike.group(1)], table)
    words = set(re.findall(r"\(or (REJECT|OPAQUE|ACCEPT)", text))
    if "(or loud warning)" in text:
        words.add("ACCEPT_WARN")
    text = re.sub(r"\([^()]*\)", "", text)
    text = re.sub(r"^inspect[^:;]*:", "", text)
    head = re.split("[;:]", text)[0]
    words |= set(re.findall(r"ACCEPT_WARN|ACCEPT|REJECT|OPAQUE", head))
    if not words and text.startswith("ACCEPT, as above"):
        words = {"ACCEPT"}
    check(words, f"EXPECT.tsv says nothing known: {text}")
    return words


def read_table():
    rows = {}
    for line in (BAD / "EXPECT.tsv").read_text().splitlines()[1:]:
        name, defect, required = line.split("\t")[:3]
        if required != "n/a":
            rows[name] = (defect, required)
    return rows


def run(folder, *args):
    """Runs ckpt in an empty folder, under the limits that always apply."""
    cwd = folder / "cwd"
    cwd.mkdir(exist_ok=True)
    result = CKPT.run(*args, cwd=cwd)
    check(result.code in REFUSALS | {0, 1},
          f"exit status {result.code} is a crash or a bug\n{result}")
    check(result.cpu <= SECONDS, f"{result.cpu:.1f} s of processor\n{result}")
    if not CKPT.sanitized:
        check(result.rss <= MEMORY,
              f"{result.rss >> 20} MiB of memory\n{result}")
    check("Sanitizer" not in result.err, f"{result}")
    check("\x1b" not in result.out + result.err,
          f"a raw escape character is printed\n{result}")
    written = [p.name for p in cwd.rglob("*")]
    check(not written, f"files were written: {written}")
    check(not list(BAD.rglob("PWNED")), "PWNED: a payload was executed")
    return result


def check_refusal(result, path):
    check(result.code in REFUSALS, f"exit status {result.code}\n{result}")
    lines = result.err.splitlines()
    if "--json" in result.argv:
        check_equal(len(lines), 1, f"lines on stderr\n{result}\n")
        error = json.loads(result.err)["error"]
        check_equal(error["status"], result.code, f"status in JSON\n{result}")
    else:
        errors = [l for l in lines if l.startswith("error: ")]
        check_equal(len(errors), 1, f"number of error lines\n{result}\n")
    name = path.name
    check(name in result.err, f"the message does not name {name}\n{result}")


def unshard(folder, path):
    out = folder / "target" / "out.safetensors"
    out.parent.mkdir(exist_ok=True)
    result = run(folder, "unshard", path, out, "--no-fsync")
    if result.code:
        left = [p.name for p in out.parent.iterdir()]
        check(not left, f"a refused unshard left {left}\n{result}")
    return result, out


def test_row(folder, name, allowed):
    path = BAD / name
    inspect = run(folder, "inspect", path, "--json", "--objects")
    people = run(folder, "inspect", path, "--objects")
    check_equal(people.code, inspect.code, "inspect with and without --json")
    verify = run(folder, "verify", path)
    written, out = unshard(folder, path)
    if inspect.code:
        check("REJECT" in allowed,
              f"refused, but required: {sorted(allowed)}\n{inspect}")
        check_refusal(inspect, path)
        check(verify.code, f"inspect refuses, verify does not\n{verify}")
        check(written.code, f"inspect refuses, unshard does not\n{written}")
    else:
        check_accepted(name, allowed, inspect, verify, written, out)
    if name in MESSAGES:
        said = inspect.err + verify.err + verify.out
        check(re.search(MESSAGES[name], said),
              f"does not say {MESSAGES[name]!r}\n{inspect}")


def check_accepted(name, allowed, inspect, verify, written, out):
    document = inspect.json()
    names = [t["name"] for t in document["tensors"]]
    if allowed == {"REJECT"}:
        # inspect may be lazier than the commands that read the data.
        check(verify.code, f"neither inspect nor verify refuses\n{verify}")
        check(written.code, f"neither inspect nor unshard refuses\n{written}")
        return
    if allowed == {"ACCEPT_WARN"}:
        said = inspect.err + verify.err
        check("warning" in said, f"accepted without a warning\n{inspect}")
    if allowed & {"OPAQUE"} and holds_w(BAD / name):
        check("w" in names, f"tensor w is not listed: {names}")
    if name in TENSORS:
        check_equal(names, TENSORS[name], "tensors")
    if name in VERIFY_REPORTS:
        verify.want(1)
        check(re.search(VERIFY_REPORTS[name], verify.out + verify.err),
              f"verify does not report it\n{verify}")
    if name in VERIFY_SAYS:
        verify.want(0)
        check(re.search(VERIFY_SAYS[name], verify.out + verify.err),
              f"verify does not say {VERIFY_SAYS[name]!r}\n{verify}")
    if name in CONTENTS:
        check_contents(written.want(0), out, CONTENTS[name])


def holds_w(path):
    """A zip whose pickle has the key "w"."""
    if not zipfile.is_zipfile(path):
        return False
    with zipfile.ZipFile(path) as archive:
        pickles = [n for n in archive.namelist() if n.endswith("data.pkl")]
        return any(b"X\1\0\0\0w" in archive.read(n) for n in pickles)


def check_contents(written, out, want):
    got = {n: list(struct.unpack(f"<{len(t.data) // 4}f", t.data))
           for n, t in read_safetensors(out).items()}
    check_equal(got, want, "contents")


def test_expand_bomb(folder):
    """4 TiB logical in 16 bytes: listed, but never materialised."""
    path = BAD / "torch_pt/expand_bomb.pt"
    run(folder, "inspect", path).want(0)
    result, _ = unshard(folder, path)
    check(result.code in REFUSALS, f"exit status {result.code}\n{result}")


def test_duplicate_keys(folder):
    """Python keeps the last value of a key given twice."""
    path = BAD / "pickle/duplicate_dict_keys.pt"
    result = run(folder, "inspect", path, "--json", "--objects")
    if result.code:
        return
    document = result.json()
    names = [t["name"] for t in document["tensors"]]
    names += [o["name"] for o in document["objects"]]
    check_equal(names.count("w"), 1, "entries called w")


def test_readonly(folder):
    """The same refusals when nothing may be written anywhere near."""
    cwd = folder / "cwd"
    cwd.mkdir()
    source = folder / "src"
    shutil.copytree(BAD / "index/traversal_parent", source)
    os.chmod(source, 0o555)
    check_refusal(run(folder, "inspect", source / "ckpt"), source / "ckpt")
    os.chmod(source, 0o755)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    rows = read_table()
    check(len(rows) >= 300, f"only {len(rows)} rows: tests/data is cut")
    texts = {name: required for name, (_, required) in rows.items()}
    for name, (defect, required) in rows.items():
        suite.add(f"{name}: {defect}: {required}", test_row, name,
                  outcomes(required, texts))
    suite.add("expand_bomb: data access", test_expand_bomb)
    suite.add("duplicate_dict_keys: shown once", test_duplicate_keys)
    suite.add("traversal in a read-only folder", test_readonly)


if __name__ == "__main__":
    try:
        Suite(__doc__).main(prepare)
    except Failure as failure:
        raise SystemExit(f"error: {failure}") from None
