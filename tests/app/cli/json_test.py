#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Every command's JSON fits its schema in docs/schema, errors included.

The schemas use a small subset of JSON Schema, which this file checks itself:
type, const, enum, required, properties, additionalProperties, items, oneOf,
minimum, $ref to a neighbouring file. An unknown keyword is an error.
"""

import json
import os
import shutil
import subprocess

from support import DATA, Suite, check, check_equal

CKPT = None
SCHEMAS = DATA.parents[1] / "docs/schema"
TYPES = {"object": dict, "array": list, "string": str, "boolean": bool,
         "null": type(None), "number": (int, float), "integer": int}
KNOWN = {"$schema", "$id", "title", "description", "type", "const", "enum",
         "required", "properties", "additionalProperties", "items", "oneOf",
         "minimum", "$ref"}


def schema_of(name):
    return json.loads((SCHEMAS / f"{name}.json").read_text())


def is_type(value, name):
    if isinstance(value, bool):
        return name == "boolean"
    return isinstance(value, TYPES[name])


def members(schema):
    """The names that a schema, or one of its forms, knows."""
    names = set(schema.get("properties", ()))
    for form in schema.get("oneOf", ()):
        names |= members(form)
    return names


def faults(value, schema, at="$", is_form=False):
    """What doesn't fit, as a list of sentences. A member that the schema
    doesn't name is a fault, because it is undocumented."""
    if schema is True:
        return []
    check(not set(schema) - KNOWN, f"{at}: keywords {set(schema) - KNOWN}")
    if "$ref" in schema:
        return faults(value, schema_of(schema["$ref"].removesuffix(".json")),
                      at)
    if "oneOf" in schema:
        fits = [s for s in schema["oneOf"]
                if not faults(value, s, at, is_form=True)]
        if len(fits) != 1:
            return [f"{at}: fits {len(fits)} of {len(schema['oneOf'])} forms"]
    kinds = schema.get("type")
    if kinds is not None:
        kinds = kinds if isinstance(kinds, list) else [kinds]
        if not any(is_type(value, k) for k in kinds):
            return [f"{at}: {value!r} is no {kinds}"]
    if "const" in schema and value != schema["const"]:
        return [f"{at}: {value!r} is not {schema['const']!r}"]
    if "enum" in schema and value not in schema["enum"]:
        return [f"{at}: {value!r} is none of {schema['enum']}"]
    if "minimum" in schema and value < schema["minimum"]:
        return [f"{at}: {value!r} is too small"]
    found = []
    if isinstance(value, dict):
        found += [f"{at}: {key} is missing"
                  for key in schema.get("required", ()) if key not in value]
        rows = schema.get("properties", {})
        known = members(schema)
        if known and not is_form and "additionalProperties" not in schema:
            found += [f"{at}: {key} is not in the schema"
                      for key in value if key not in known]
        for key, child in value.items():
            if key in rows:
                found += faults(child, rows[key], f"{at}.{key}")
            elif isinstance(schema.get("additionalProperties"), dict):
                found += faults(child, schema["additionalProperties"],
                                f"{at}.{key}")
            elif schema.get("additionalProperties") is False:
                found.append(f"{at}: {key} is not in the schema")
    if isinstance(value, list) and "items" in schema:
        for i, child in enumerate(value):
            found += faults(child, schema["items"], f"{at}[{i}]")
    return found


def fits(text, name, result):
    """The document, once it is known to fit the schema `name`."""
    document = json.loads(text)
    check_equal(document["schema"], f"ckpt/{name}/1", f"schema\n{result}")
    found = faults(document, schema_of(name))
    check(not found, "\n".join(found[:10]) + f"\n{result.line}")
    return document


TP4 = DATA / "fairseq2_native/qwen25_tp4dp1_mixed/ckpt"
LLAMA = DATA / "hf/llama/ckpt"
TORCH = DATA / "torch_pt/training_objects/ckpt/ckpt_p2.pt"
DCP = DATA / "dcp/fsdp2_w2_adamw/ckpt"
MEGATRON = DATA / "megatron_torch_dist/gpt_tp2_pp2_v0161/ckpt"
RUN = DATA / "runs/verl_fsdp2_w2/ckpt"
LEGACY = DATA / "megatron_zarr/gpt_zarr_optim_bucket_space_v0090/ckpt"

GOOD = [
    ("inspect", 0, ("inspect", TP4)),
    ("inspect", 0, ("inspect", TORCH, "--objects")),
    ("inspect", 0, ("inspect", DCP, "--shards", "--digest")),
    ("inspect", 0, ("inspect", MEGATRON)),
    ("inspect", 0, ("inspect", LEGACY)),
    ("convert", 0, ("convert", TP4, "out", "--to", "safetensors")),
    ("convert", 0, ("convert", LLAMA, "out", "--to", "megatron_torch_dist",
                    "--tp", 2, "-n")),
    ("reshard", 0, ("reshard", TP4, "out", "--tp", 8)),
    ("reshard", 0, ("reshard", TP4, "out", "--tp", 8, "--verify")),
    ("convert", 0, ("convert", TP4, LLAMA, "--to", "safetensors",
                    "--if-exists", "skip")),
    ("unshard", 0, ("unshard", DCP, "out.pt")),
    ("merge", 0, ("merge", LLAMA, LLAMA, "out")),
    ("verify", 0, ("verify", TP4)),
    ("verify", 1, ("verify", TP4, LLAMA)),
    ("verify", 0, ("verify", TP4, TP4)),
    ("diff", 1, ("diff", TP4, LLAMA)),
    ("diff", 1, ("diff", LLAMA, DATA / "hf/qwen3_bf16/ckpt")),
    ("diff", 0, ("diff", TP4, TP4)),
    ("ls", 0, ("ls", TP4)),
    ("ls", 1, ("ls", TP4, "-e", "nothing")),
    ("ls", 0, ("ls", DCP, "-l")),
    ("ls", 0, ("ls", RUN)),
    ("inspect_all", 0, ("inspect", RUN, "--all")),
    ("inspect_all", 0, ("inspect", RUN, "--all", "--stats")),
    ("show", 0, ("show", LLAMA, "model.norm.weight[:4]")),
    ("show", 0, ("show", MEGATRON, "args")),
    ("salvage", 0, ("salvage", TP4, "out")),
    ("salvage", 0, ("salvage", LLAMA, "out", "-n")),
    ("scan", 8, ("scan", TORCH)),
    ("scan", 0, ("scan", DCP)),
    ("scan", 8, ("scan", DATA / "bad/pickle/os_system.pt")),
    ("doctor", 0, ("doctor",)),
    ("demo", 0, ("demo", "tiny")),
    ("demo", 0, ("demo", "tiny", "-n")),
    ("version", 0, ("version",)),
    ("wait", 0, ("wait", TP4, "--settle", "0")),
    ("wait", 1, ("wait", "nowhere", "--timeout", "0")),
    ("edit", 0, ("edit", LLAMA, "--set", "a=b", "-n")),
    ("sync", 0, ("sync", RUN, "out")),
    ("sync", 0, ("sync", RUN, "out", "-n")),
    ("prune", 0, ("prune", RUN, "--keep-last", 1)),
    ("watch", 0, ("watch", RUN, "--do", "true {step}", "-n", "--state", "s")),
    ("watch", 0, ("watch", RUN, "--do", "true {step}", "--once", "--state",
                  "s", "--settle", "0")),
    ("watch", 1, ("watch", RUN, "--do", "false", "--once", "--state", "s",
                  "--settle", "0")),
    ("man", 0, ("man",)),
    ("man", 0, ("man", "--dir", "pages")),
    ("completion", 0, ("completion", "bash")),
    ("family", 0, ("family", "list")),
    ("family", 0, ("family", "show", "llama")),
    ("family", 0, ("family", "check", LLAMA)),
]

BAD = [
    (2, "usage", ("inspect", TP4, "--kesy", "x")),
    (2, "usage", ("inspect",)),
    (2, "usage", ("inspct", TP4)),
    (2, "usage", ("reshard", TP4, "-", "--tp", 8)),
    (2, "usage", ("convert", TP4, "out", "--to", "nothing")),
    (3, "missing", ("inspect", "nothing")),
    (3, "missing", ("diff", TP4, "nothing")),
    (4, "damaged", ("inspect", DATA / "bad/safetensors/overlap.safetensors")),
    (5, "unfaithful", ("reshard", TP4, "out", "--tp", 3)),
    (7, "resource", ("unshard", TP4, "out", "--max-mem", "1MiB")),
]


# Members that differ between two runs of one command.
CLOCKS = ("seconds", "peak_memory", "rate")


def test_peak_memory(folder):
    """peak_memory is ckpt's own, whatever the program that starts it holds:
    the kernel counts a child from its parent's size, even after exec."""
    ballast = b"\1" * (256 << 20)
    said = CKPT.ok("unshard", TP4, "out.pt", "--json", cwd=folder).json()
    check(len(ballast) > 0 and (
        CKPT.sanitized or said["peak_memory"] < 128 << 20),
        f"{said['peak_memory'] >> 20} MiB")


def test_lines(folder):
    """--ndjson is the same document, reassembled here from its lines."""
    seen = set()
    for name, code, argv in GOOD:
        if name not in ("inspect", "ls", "verify", "diff", "scan", "family",
                        "inspect_all", "show"):
            continue
        whole = CKPT.run(*argv, "--json", cwd=folder).want(code).json()
        done = CKPT.run(*argv, "--ndjson", cwd=folder).want(code)
        lines = [json.loads(line) for line in done.out.splitlines()]
        document, lists = lines.pop(), {}
        check_equal(document.pop("line"), "document", done.line)
        for line in lines:
            lists.setdefault(line.pop("line"), []).append(line)
        for member, items in lists.items():
            check_equal(document[member], len(items), f"{name} {member}")
            document[member] = items
            seen.add((name, member))
        for left in (document, whole):
            for clock in CLOCKS:
                for part in (left, *left.get("entries", []),
                             *left.get("steps", [])):
                    part.pop(clock, None)
        check_equal(document, whole, done.line)
    for want in (("ls", "entries"), ("diff", "differences"),
                 ("verify", "problems"), ("inspect", "tensors"),
                 ("scan", "files")):
        check(want in seen, f"{want} never came by lines")


def test_good(folder, name, code, argv):
    result = CKPT.run(*argv, "--json", cwd=folder).want(code)
    fits(result.out, name, result)


def test_saved(folder):
    """When a step was saved is a time, not an age that is gone when read."""
    newest = max(int(path.stat().st_mtime) for path in RUN.rglob("*")
                 if path.is_file())
    for command, member in ((("ls", RUN), "entries"),
                            (("inspect", "--all", RUN), "steps")):
        document = json.loads(CKPT.ok(*command, "--json").out)
        check_equal([one["seconds"] for one in document[member]], [newest],
                    str(command))


def test_bad(folder, code, kind, argv):
    result = CKPT.run(*argv, "--json", cwd=folder).want(code)
    check_equal(result.out, "", f"stdout\n{result}")
    check_equal(len(result.err.splitlines()), 1, f"lines on stderr\n{result}")
    error = fits(result.err, "error", result)["error"]
    check_equal((error["status"], error["kind"]), (code, kind), str(result))


def test_place(folder):
    """An error names its file and tensor in separate fields."""
    path = DATA / "bad/safetensors/overlap.safetensors"
    error = json.loads(CKPT.run("inspect", path, "--json").err)["error"]
    check_equal(error["path"], str(path), "path")
    check_equal(error["tensor"], "b", "tensor")
    check(error["message"].startswith("data begins"), error)


def test_numbers(folder):
    """The numbers of a difference are fields, in diff and in verify."""
    shutil.copytree(LLAMA, folder / "a")
    CKPT.ok("convert", LLAMA, folder / "b", "--to", "safetensors", "--dtype",
            "f16", "--no-fsync")
    for command, key in (("diff", "differences"), ("verify", "problems")):
        rows = CKPT.run(command, folder / "a", folder / "b",
                        "--json").want(1).json()[key]
        rows = [row for row in rows if row["kind"] == "dtype"]
        check(rows, f"{command} finds no dtype that differs")
        for row in rows:
            check_equal(row["dtype_b"], "f16", command)
            check_equal(row["shape_a"], row["shape_b"], command)


def test_plan(folder):
    """A dry run's plan fits its schema; what it read must not change
    afterwards."""
    shutil.copytree(TP4, folder / "tp4")
    CKPT.ok("reshard", "tp4", "tp8", "--tp", 8, "-n", "-o", "plan.json",
            cwd=folder)
    plan = fits((folder / "plan.json").read_text(), "plan", CKPT.ok("version"))
    check_equal(plan["command"], "reshard", "command")
    for name in ("free_space", "peak_memory", "assumptions"):
        check(name in plan["result"], f"the plan has no {name}")
    CKPT.ok("reshard", TP4, folder / "other", "--tp", 8, "-n", "-o",
            folder / "lines.json", "--ndjson", cwd=folder)
    lines = (folder / "lines.json").read_text()
    check_equal(fits(lines, "plan", CKPT.ok("version"))["result"]["files"],
                plan["result"]["files"], "a plan written under --ndjson")
    check(not (folder / "tp8").exists(), "a dry run wrote")
    CKPT.ok("run", folder / "plan.json")
    CKPT.ok("verify", "tp4", "tp8", cwd=folder)
    shutil.rmtree(folder / "tp8")
    changes = {
        "new file": lambda f: (f / "more").write_text("x"),
        "gone": lambda f: (f / "more").unlink(),
        "touched": lambda f: os.utime(f / "model.yaml"),
        "longer": lambda f: (f / "model.yaml").write_text("x" * 400),
    }
    for what, change in changes.items():
        CKPT.ok("reshard", "tp4", "tp8", "--tp", 8, "-n", "-o", "plan.json",
                cwd=folder)
        change(folder / "tp4")
        result = CKPT.run("run", "plan.json", cwd=folder).want(5)
        check("changed since the plan was made" in result.err, f"{what}\n{result}")
        check(not (folder / "tp8").exists(), f"{what}: it ran")
    (folder / "not.json").write_text("{}")
    CKPT.run("run", "not.json", cwd=folder).want(4)
    result = CKPT.run("reshard", "tp4", "tp8", "--tp", 8, "-n", "-o",
                      "not.json", cwd=folder).want(5)
    check_equal((folder / "not.json").read_text(), "{}", f"{result}")


def test_doctor(folder):
    """Whether URLs can be opened; a proxy's variable is shown, not its
    password."""
    result = CKPT.ok("doctor", folder, "--json",
                     env={"https_proxy": "http://me:hunter2@127.0.0.1:1"})
    rows = {row["name"]: row for row in result.json()["checks"]}
    row = rows["network (libcurl)"]
    probe = CKPT.run("inspect", "http://127.0.0.1:1/x",
                     env={"CKPT_NET_RETRIES": "0"})
    check_equal(row["ok"], probe.code != 7, f"{row}\n{probe}")
    check_equal(rows["proxy"]["value"], "as https_proxy says", "proxy")
    check("hunter2" not in result.out + result.err, "a password")


def test_free_space(folder):
    """A dry run reports the space where the target would be, as statvfs
    does."""
    def free():
        facts = os.statvfs(folder)
        return facts.f_bavail * facts.f_frsize

    # What others write and remove meanwhile may be seen by ckpt alone.
    for _ in range(100):
        before = free()
        plan = CKPT.ok("reshard", TP4, folder / "tp8", "--tp", 8, "-n",
                       "--json").json()
        told = sorted((before, free()))
        if told[0] <= plan["free_space"] <= told[1]:
            break
    else:
        check(False, f"{plan['free_space']} bytes free, statvfs says {told}")
    text = CKPT.ok("reshard", TP4, folder / "tp8", "--tp", 8, "-n").out
    check(f"{folder}: " in text and " free" in text, text)


def test_progress(folder):
    """--progress json: lines that fit the schema and add up."""
    result = CKPT.ok("reshard", TP4, "tp8", "--tp", 8, "--progress", "json",
                     "-q", cwd=folder)
    rows = [fits(line, "progress", result) for line in result.err.splitlines()]
    check(rows and rows[-1]["done"], f"no last line\n{result}")
    check_equal(rows[-1]["bytes_done"], rows[-1]["bytes_total"], "bytes")


def test_all_covered():
    """Each schema file is tested above or in its command's own test."""
    names = {path.stem for path in SCHEMAS.glob("*.json")}
    used = {name for name, _, _ in GOOD} | {"error", "plan", "progress"}
    # view continues after its document, fetch needs a server: test_view here,
    # and remote_test.py with this file's fits().
    check_equal(names, used | {"view", "fetch"}, "schemas of what is tested")
    rows = CKPT.ok("--help").out.split("\nCommands\n")[1].split("\n\n")[0]
    commands = {row.split()[0] for row in rows.splitlines()}
    tested = {argv[0] for _, _, argv in GOOD}
    # `run` is the command that its plan is for.
    check_equal(commands - tested, {"view", "fetch", "run"},
                "commands without a row in GOOD")


def test_estimate(folder):
    """For a GiB or more: a look at the disks, which leaves nothing behind."""
    text = (b'{"a":{"dtype":"U8","shape":[1610612736],'
            b'"data_offsets":[0,1610612736]}}')
    source = folder / "large.safetensors"
    with open(source, "wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        # This much can be read; the rest is a hole.
        file.write(os.urandom(64 << 20))
        file.truncate(8 + len(text) + 1610612736)
    argv = ("convert", source, folder / "out.pt", "--to", "torch", "-n")
    done = CKPT.ok(*argv, "--json")
    plan = fits(done.out, "convert", done)
    check_equal([p.name for p in folder.iterdir()], [source.name], "files")
    time = plan.get("estimate")
    if time is None:  # no direct reads, or a disk that is nearly full
        return
    low = 1610612736 / max(time["read_rate"], time["write_rate"])
    high = 2 * 1610612736 / min(time["read_rate"], time["write_rate"])
    check(low * 0.9 <= time["seconds"] <= high * 1.1, f"{time}")
    check("by the speed of the disks" in CKPT.ok(*argv).out, "not said")
    done = CKPT.ok("unshard", LLAMA, folder / "out.pt", "-n", "--json")
    check("estimate" not in fits(done.out, "unshard", done), f"{done}")


def test_view():
    """Its document comes first, then it serves."""
    child = subprocess.Popen([CKPT.path, "view", str(TP4), "--json"],
                             stdout=subprocess.PIPE, text=True)
    try:
        text = child.stdout.readline()
        check(json.loads(text)["url"].startswith("http://127.0.0.1:"), text)
        check(not faults(json.loads(text), schema_of("view")), text)
    finally:
        child.terminate()
        child.wait()


def cut_salvage(folder):
    """A checkpoint that lost elements: the document lists them."""
    source = next(LLAMA.glob("*.safetensors"))
    cut = folder / "cut.safetensors"
    cut.write_bytes(source.read_bytes()[:-300])
    result = CKPT.run("salvage", cut, folder / "sound.safetensors",
                      "--partial", "zeros", "--json")
    document = fits(result.out, "salvage", result)
    check(document["gone"], f"nothing is gone\n{result}")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for name, code, argv in GOOD:
        suite.add(f"ckpt {' '.join(str(a).replace(str(DATA), '') for a in argv)}",
                  test_good, name, code, argv)
    for code, kind, argv in BAD:
        suite.add(f"{kind}: ckpt {' '.join(map(str, argv))[:60]}", test_bad,
                  code, kind, argv)
    suite.add("--ndjson", test_lines)
    suite.add("peak_memory", test_peak_memory)
    suite.add("path and tensor of an error", test_place)
    suite.add("numbers of differences", test_numbers)
    suite.add("plan.json", test_plan)
    suite.add("when a step was saved", test_saved)
    suite.add("doctor's network", test_doctor)
    suite.add("free space", test_free_space)
    suite.add("--progress json", test_progress)
    suite.add("schemas", lambda folder: test_all_covered())
    suite.add("estimate", test_estimate)
    suite.add("view", lambda folder: test_view())
    suite.add("salvage of a cut file", cut_salvage)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
