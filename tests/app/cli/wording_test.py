#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Words that no message, help text or heading has, in any room.

The table is of phrases that read as translated or that say nothing, each with
what is said instead. Every string of the sources is looked at, so that a new
message can't bring one back.
"""

import re
from pathlib import Path

from support import Suite, check

ROOT = Path(__file__).resolve().parents[3]
ROOMS = ("app", "api", "convert", "formats", "containers", "models", "reshard",
         "lib")
# (what is not said, what is said instead)
PHRASES = (
    (r"\bis no (directory|format|size|command|JSON|number|file)\b",
     "not a directory, unknown format, invalid size …"),
    (r"\bthat are no\b|\bare no JSON\b", "that are not"),
    (r"\bhas no option\b", "unknown option --x for `ckpt y`"),
    (r"\bone argument too many\b", "unexpected argument 'x'"),
    (r"\bof no (known )?format\b", "not a recognized checkpoint"),
    (r"exists, what is below it does not", "of that path only X exists"),
    (r"\blink to nothing\b", "broken symlink"),
    (r"\bholds no(thing)?\b", "X is missing; expected a dict"),
    (r"\bnames files that are not there\b", "files listed are missing"),
    (r"^whole:", "ok: …, no problems found"),
    (r"\bthere are no rules for\b", "is not supported yet"),
    (r"\bwould stand\b", "target is inside the source directory"),
    (r"\bstands? (there|nowhere|in an?)\b", "is there"),
    (r"\bhas no place for this value\b", "cannot store this value; skipped"),
    (r"^repeats ", "duplicate of …; not written"),
    (r"\bhas the names of \w+, new of\b", "cannot map the names of A to B"),
    (r"\bRows of the vocabulary that are in use\b",
     "unpadded vocabulary size"),
    (r"\bWhose (modules|run)\b", "module implementation of the layers"),
    (r"\bValues that are no\b", "non-tensor values"),
    (r"\bWhere every piece lies\b", "location of each shard"),
    (r"\bWhat the owner of\b", "only tensors owned by these blocks"),
    (r"\bthat the model's files do not say\b", "override a model parameter"),
    (r"\bBound of the memory\b", "memory limit"),
    (r"^Go on where\b", "resume an interrupted run"),
    (r"\bto go on\b", "to resume"),
    (r"\ba negative answer\b", "check failed"),
    (r"\bits save did not finish\b", "incomplete save"),
    (r"\bits optimizer denies\b", "contradicts its optimizer"),
    (r"\bof another time\b", "unsupported"),
    (r"\bis another one\b", "differs"),
    (r"\bleavings\b", "leftovers"),
    (r"\bcautions\b", "warnings"),
    (r"\bmisfits?\b", "mismatches"),
    (r"\bin what (do )?two\b", "how two differ"),
    (r"\blike its parameter\b", "same as param"),
    (r"\bexists already\b", "already exists"),
    (r"\bwhere it does not say\b", "default: …"),
)
STRING = r'"(?:[^"\\\n]|\\.)*"'
PAGES = ("README.md", "docs/errors.md", "docs/guides/*.md", "docs/index.md",
         "docs/commands.md")


def strings_of(path):
    """(line, text) of the literals of a source; adjacent ones are one."""
    lines = path.read_text().split("\n")
    text = "\n".join("" if line.lstrip().startswith(("//", "#include"))
                     else line for line in lines)
    for match in re.finditer(rf"{STRING}(?:\s*{STRING})*", text):
        whole = "".join(part[1:-1] for part in
                        re.findall(STRING, match.group(0)))
        yield text.count("\n", 0, match.start()) + 1, whole


def sources():
    for room in ROOMS:
        for path in sorted((ROOT / room).rglob("*")):
            if path.suffix in (".cc", ".h"):
                yield path


def phrase(folder, pattern, instead, texts):
    found = [f"{place}: {text[:120]}" for place, text in texts
             if re.search(pattern, text)]
    check(not found, f"/{pattern}/, rather {instead!r}:\n" + "\n".join(found))


def prepare(suite, ckpt):
    texts = [(f"{path.relative_to(ROOT)}:{line}", text)
             for path in sources() for line, text in strings_of(path)]
    check(len(texts) > 5000, f"only {len(texts)} strings: is the tree there?")
    texts += [(f"{path.relative_to(ROOT)}:{number}", line)
              for page in PAGES for path in sorted(ROOT.glob(page))
              for number, line in enumerate(path.read_text().split("\n"), 1)]
    for pattern, instead in PHRASES:
        suite.add(pattern, phrase, pattern, instead, texts)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
