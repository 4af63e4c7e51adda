#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes the reference pages that follow from the program itself:

  docs/commands.md   every command's options, as its --help says them
  python/ckpt/_functions.py, aio.py   the same as functions of Python
  docs/json.md       below its last heading: the members of every document, as
                     docs/schema says them

  scripts/make_reference.py --ckpt build/bin/ckpt [--check]

With --check nothing is written: exit status 1 if a page isn't what it would be.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

import make_functions

ROOT = Path(__file__).resolve().parent.parent
SCHEMAS = ROOT / "docs/schema"
HEADING = "## Members\n"
COMMANDS = """\
# Commands

What `ckpt COMMAND --help` says. `scripts/make_reference.py` writes this page,
and a test holds it against the program.

"""
MEMBERS = """
From the schemas, by `scripts/make_reference.py`. A member with a question mark
may be absent; `a[].b` is member `b` of each item of `a`, and `a{}.b` that of
each value of `a`, whose keys are names.
"""


def help_of(ckpt, *words):
    done = subprocess.run([ckpt, *words, "--help"], capture_output=True,
                          text=True, check=True,
                          env={**os.environ, "COLUMNS": "80", "NO_COLOR": "1"})
    return done.stdout.rstrip() + "\n"


def commands_of(page):
    """The names under the heading "Commands"."""
    rows = page.split("\nCommands\n")[1].split("\n\n")[0].splitlines()
    return [row.split()[0] for row in rows]


def commands(ckpt):
    main = help_of(ckpt)
    text = COMMANDS + f"```text\n{main}```\n"
    helps = [(name, help_of(ckpt, name)) for name in commands_of(main)]
    for name, page in helps:
        text += f"\n## {name}\n\n```text\n{page}```\n"
    return {"docs/commands.md": text, **make_functions.pages(helps)}


def type_of(schema):
    if not isinstance(schema, dict):
        return "any"
    if "const" in schema:
        return f"`{json.dumps(schema['const'])}`"
    if "enum" in schema:
        return ", ".join(f"`{json.dumps(v)}`" for v in schema["enum"])
    if "$ref" in schema:
        name = schema["$ref"].removesuffix(".json")
        return f"as [{name}](schema/{name}.json)"
    if "oneOf" in schema:
        return " or ".join(dict.fromkeys(type_of(s) for s in schema["oneOf"]))
    kind = schema.get("type", "any")
    if isinstance(kind, list):
        return " or ".join(kind)
    if kind == "array" and isinstance(schema.get("items"), dict):
        return f"array of {type_of(schema['items'])}"
    return kind


def members(schema, at=""):
    """(path, type, description) of all members below."""
    if not isinstance(schema, dict):
        return
    for form in schema.get("oneOf", ()):
        yield from members(form, at)
    if isinstance(schema.get("items"), dict):
        yield from members(schema["items"], f"{at}[]")
    if isinstance(schema.get("additionalProperties"), dict):
        yield from members(schema["additionalProperties"], at + "{}")
    required = schema.get("required", ())
    for name, child in schema.get("properties", {}).items():
        path = f"{at}.{name}" if at else name
        yield (path + ("" if name in required else "?"), type_of(child),
               child.get("description", "") if isinstance(child, dict) else "")
        yield from members(child, path)


def json_page():
    before = (ROOT / "docs/json.md").read_text().split(HEADING)[0]
    text = before + HEADING + MEMBERS
    for path in sorted(SCHEMAS.glob("*.json")):
        schema = json.loads(path.read_text())
        text += f"\n### {path.stem}\n\n"
        if "title" in schema:
            text += schema["title"] + ".\n\n"
        text += "| member | type | |\n|---|---|---|\n"
        seen = set()
        for name, kind, what in members(schema):
            if (name, kind) in seen:
                continue
            seen.add((name, kind))
            kind = kind.replace("|", "\\|")
            text += f"| `{name}` | {kind} | {what} |\n"
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ckpt", required=True, type=Path)
    parser.add_argument("--check", action="store_true")
    args = parser.parse_args()
    pages = {**commands(args.ckpt.resolve()), "docs/json.md": json_page()}
    old = [name for name, text in pages.items()
           if not (ROOT / name).exists() or (ROOT / name).read_text() != text]
    if args.check:
        for name in old:
            print(f"{name} isn't what scripts/make_reference.py writes")
        return 1 if old else 0
    for name in old:
        (ROOT / name).write_text(pages[name])
        print(f"wrote {name}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
