#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Names of tensors that are hard on files and on people.

Every format that is written gets tensors with names such as `metadata.json`,
`../x` or one with a NUL: each arrives under its name, as a reader of that
format has it, or the run is refused before the first byte, with the name and
what to do. And what people are shown hides nothing and turns nothing around."""

import json
import os
import re

from names_values_test import write
from support import DATA, Suite, Tensor, check, check_equal, from_torch, load_pt

CKPT = None  # set by prepare

# A source of each format whose tensors may have any name, and one of each
# format whose names belong to a model: there one tensor is renamed.
OPEN = ("safetensors", "torch", "dcp", "megatron_torch_dist", "megatron_zarr")
OWN = {"fairseq2": "fairseq2_native/llama_tp2dp2_fsdp2",
       "megatron_legacy": "megatron_legacy/llama_te_tp2_pp2",
       "olmo_core": "olmo_core_dcp/hf_llama",
       "olmo_core_v1": "olmo_core_v1/fsdp_torch_w4", "meta": "meta/llama",
       "modelopt": "modelopt/sharded_llama_tied_w2", "vllm": "vllm/tp2",
       "deepspeed": "deepspeed/zero1_dp2"}

NAMES = ["metadata.json", "common.pt", ".metadata", ".zgroup", ".zarray",
         ".zmetadata", ".zattrs", "latest", "__0_0.distcp", "model.safetensors",
         "model.safetensors.index.json", ".ckpt-manifest.json", "config.json",
         "..", ".", "../x", "../../x", "a/../b", "/abs", "/etc/passwd", "a//b",
         "a/", "nul\0here", "x" * 300, "x" * 5000, "", " ", "CON", "a\\b",
         "tab\tnew\nline", "\u202egnp.exe", "e\u0301", "0.0", "data.pkl",
         "__metadata__"]
# Refused in formats that give each tensor a directory.
NEVER_ZARR = NAMES[:2] + [".ckpt-manifest.json", ".metadata", ".zgroup", ".zarray", ".zmetadata",
                          ".zattrs", "..", ".", "../x", "../../x", "a/../b",
                          "/abs", "/etc/passwd", "a//b", "a/", "nul\0here",
                          "x" * 300, "x" * 5000, ""]


def tree(folder):
    return sorted(os.path.relpath(os.path.join(top, name), folder)
                  for top, folders, names in os.walk(folder)
                  for name in folders + names)


def tensor(seed):
    return Tensor("f32", (2, 2), bytes(range(seed, seed + 16)))


def shown_name(name):
    """Enough of the name as errors show it to recognize it."""
    plain = re.match(r"[ -~]*", name)[0]
    return plain[:40].split("\\")[0]


def refused(done, folder, before, name):
    """Refused before the first byte, with the name and what to do."""
    check(done.code in (2, 5, 8), f"{name!r}: {done}")
    check(shown_name(name) in done.err, f"{name!r} is not named: {done}")
    check("--rename" in done.err or "--exclude" in done.err,
          f"{name!r}: nothing to do is said: {done}")
    check_equal(tree(folder), before, f"{name!r} left something")


def digests(path):
    return {row["name"]: row["digest"]
            for row in CKPT.inspect(path, "--digest")["tensors"]}


def test_any(folder, to):
    """Into formats that hold any names."""
    passed = []
    for i, name in enumerate(NAMES):
        if name == "__metadata__":  # no safetensors file has it
            continue
        work = folder / str(i)
        work.mkdir()
        source = write(work / "source", {name: tensor(i), "w": tensor(100)})
        want = digests(source)
        out = work / ("out.pt" if to == "torch" else "out")
        before = tree(work)
        done = CKPT.run("convert", source, out, "--to", to, "--no-fsync")
        if done.code == 0:
            passed.append(name)
            check_equal(digests(out), want, f"{name!r} in {to}")
            CKPT.run("verify", out).want(0)
            if to == "torch":
                got = load_pt(out)
                check(name in got and from_torch(got[name]) == tensor(i), f"{name!r}")
        else:
            refused(done, work, before, name)
    if to == "megatron_zarr":
        check(not set(passed) & set(NEVER_ZARR), f"{passed}")
    else:
        check(len(passed) >= 20, f"{to} refuses nearly all: {passed}")
    print(f"  {to}: {len(passed)} of {len(NAMES)} names are held", flush=True)


def test_own(folder, to):
    """A tensor of a model is renamed on the way into its own format."""
    source = DATA / OWN[to] / "ckpt"
    tensors = CKPT.inspect(source)["tensors"]
    old = [t["name"] for t in tensors
           if t["kind"] == "model" and t["shape"]]
    # DeepSpeed's frozen tensors are in an object that is carried unchanged.
    old = old[0] if to == "deepspeed" else old[-1]
    passed = 0
    some = NAMES[sorted(OWN).index(to) % 2::3]  # each in several formats
    for i, name in enumerate(some):
        work = folder / str(i)
        work.mkdir()
        rules = folder / f"{i}.json"
        rules.write_text(json.dumps({old: name.replace("*", "")}))
        before = tree(work)
        done = CKPT.run("convert", source, work / "out", "--to", to,
                        "--rename", rules, "--no-fsync")
        if done.code == 0:
            back = CKPT.run("inspect", work / "out", "--json")
            if back.code == 5:  # nobody knows how such a name is split
                check("--shard-dims" in back.out + back.err, f"{name!r}: {back}")
                continue
            passed += 1
            names = {t["name"] for t in back.want(0).json()["tensors"]}
            check_equal(len(names), len(tensors), f"{name!r} in {to}")
            check(name in names or not name, f"{name!r} is not in {to}")
            continue
        check(done.code in (2, 3, 4, 5, 8), f"{name!r}: {done}")
        check_equal(tree(work), before, f"{name!r} left something")
    print(f"  {to}: {passed} of {len(some)} names are held", flush=True)


def test_case(folder):
    """Names that differ only in case are two tensors."""
    source = write(folder / "source", {"W.a": tensor(1), "w.a": tensor(2),
                                       "w.A": tensor(3)})
    want = digests(source)
    for to in OPEN:
        out = folder / ("out.pt" if to == "torch" else to)
        CKPT.run("convert", source, out, "--to", to, "--no-fsync").want(0)
        check_equal(digests(out), want, to)


# Characters that reverse text, hide in it or move the cursor.
HOSTILE = ([*range(0x00, 0x20), *range(0x7F, 0xA0), 0xAD, 0x61C, 0x180E]
           + [*range(0x200B, 0x2010), *range(0x2028, 0x202F)]
           + [*range(0x2060, 0x2065), *range(0x2066, 0x2070), 0xFEFF]
           + [0xFFF9, 0xFFFA, 0xFFFB, 0xE0001, 0xE0041, 0xE007F])


def test_shown(folder):
    """\\u in JSON, spelled out in text and HTML; JSON means the same."""
    names = {f"n{i}.{chr(code)}x": tensor(i % 200)
             for i, code in enumerate(HOSTILE)}
    names["naïve.日本.\U0001F600"] = tensor(7)  # these are fine as they are
    source = write(folder / "source", names)
    done = CKPT.ok("inspect", source, "--json")
    check_equal({t["name"] for t in done.json()["tensors"]}, set(names),
                "names")
    bad = {chr(code) for code in HOSTILE} - {"\n"}
    for args in (["--json"], [], ["--tree"], ["--html", "-"], ["-v"]):
        out = CKPT.run("inspect", source, *args)
        if out.code == 2 and args[0] == "--html":
            out = CKPT.ok("inspect", source, "--html", folder / "page.html")
            text = (folder / "page.html").read_text(encoding="utf-8")
        else:
            text = out.want(0).out
        check(not bad & set(text), f"{args}: {bad & set(text)!r}")
        if args != ["--tree"]:
            check("日本" in text, f"{args}: too much is escaped")
    for command in (["ls", source, "--json"], ["verify", source, "--json"],
                    ["diff", source, source, "--json"],
                    ["convert", source, folder / "x", "--to", "dcp",
                     "--dry-run", "--json"]):
        out = CKPT.run(*command)
        check(not bad & set(out.out + out.err),
              f"{command}: {bad & set(out.out + out.err)!r}")


def main():
    suite = Suite(__doc__)
    for to in OPEN:
        suite.add(f"any name: {to}", test_any, to)
    for to in OWN:
        suite.add(f"own names: {to}", test_own, to)
    suite.add("case", test_case)
    suite.add("shown", test_shown)

    def prepare(_, ckpt):
        global CKPT
        CKPT = ckpt
    suite.main(prepare)


if __name__ == "__main__":
    main()
