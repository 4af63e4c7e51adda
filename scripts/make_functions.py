# SPDX-License-Identifier: Apache-2.0
"""Functions of Python for the commands, from their --help: all options as
keywords. make_reference.py writes them."""

import re

# What Python calls an argument.
NAMES = {"SRC": "source", "DST": "target", "A": "left", "B": "right"}
# A function's name, where the command's is another's.
FUNCTIONS = {"run": "run_plan"}
# Options that Python sees to.
OWN = ("--help", "--json", "--ndjson", "--quiet", "--color", "--progress")
RETURNS = {"verify": ("Verdict", "verdict_of"), "scan": ("Verdict", "verdict_of"),
           "diff": ("Union[Difference, Delta]", "difference_of"),
           "run": ("Written", "written_of"), "demo": ("Written", "written_of"),
           "view": ("Served", "served")}
TYPES = {"": "bool", "N": "Union[int, str, None]",
         "SIZE": "Union[int, str, None]", "TIME": "Union[int, str, None]",
         "X": "Optional[float]", "D": "Optional[float]"}
HEAD = '''# SPDX-License-Identifier: Apache-2.0
"""The commands with all of their options. Written by scripts/make_reference.py
from `ckpt COMMAND --help`."""

from __future__ import annotations

from typing import Any, Optional, Union

from ._commands import (Delta, Difference, Path, Served, Verdict, Written,
                        difference_of, document_of, served, verdict_of,
                        written_of)

# A text or a path, or several.
Words = Any

'''
AIO = '''# SPDX-License-Identifier: Apache-2.0
"""The functions of ckpt for asyncio: each works in a thread of its own. A task
that is cancelled ends its command. Written by scripts/make_reference.py.

    async with asyncio.TaskGroup() as group:
        group.create_task(ckpt.aio.convert("a", "b", to="dcp"))
"""

from __future__ import annotations

from . import _functions
from ._async import awaitable
from ._checkpoint import load as _load
from ._checkpoint import open_checkpoint
from ._commands import digest as _digest
from ._commands import fingerprint as _fingerprint
from ._commands import run as _run
from ._save import save as _save

open = awaitable(open_checkpoint)
load = awaitable(_load)
save = awaitable(_save)
run = awaitable(_run)
digest = awaitable(_digest)
fingerprint = awaitable(_fingerprint)
'''


class Option:
    """A line of help: "  -j, --threads N    Worker threads"."""

    LINE = re.compile(r"  (?:-\w, |    )--([\w-]+)(?: (\S+))?(?:  +(.*))?$")

    def __init__(self, match):
        self.name, self.type = match.group(1), match.group(2) or ""
        self.help = match.group(3) or ""

    @property
    def keyword(self):
        word = self.name.replace("-", "_")
        return word + "_" if word in ("from", "global", "lambda", "class",
                                      "import", "not", "in", "is") else word

    @property
    def signature(self):
        kind = TYPES.get(self.type, "Words")
        default = "False" if kind == "bool" else "None"
        return f"{self.keyword}: {kind} = {default}"


def options_of(page):
    found = []
    for line in page.splitlines():
        match = Option.LINE.match(line)
        if match:
            found.append(Option(match))
        elif found and line.startswith(" " * 30) and line.strip():
            found[-1].help += " " + line.strip()
        elif line.startswith("Examples"):
            break
    return [one for one in found if "--" + one.name not in OWN]


def arguments_of(page):
    """(name, whether it is several, whether it must be given) in their order."""
    usage = re.search(r"^usage: ckpt \S+((?: \[?[A-Z.]+\]?)*)", page, re.M)
    found = []
    for word in usage.group(1).split():
        plain = word.strip("[].")
        found.append((NAMES.get(plain, plain.lower()), "..." in word,
                      not word.startswith("[")))
    return found


def filled(words, first, rest):
    """The words in lines of 79 columns, none of them broken."""
    lines, line = [], first
    for word in words:
        if len(line) + len(word) > 79 and line.strip():
            lines.append(line.rstrip())
            line = rest
        line += word + " "
    return "\n".join([*lines, line.rstrip()])


def function(command, page):
    arguments, options = arguments_of(page), options_of(page)
    name = FUNCTIONS.get(command, command)
    returns, call = RETURNS.get(command, ("dict[str, Any]", "document_of"))
    if any(name == "target" for name, *_ in arguments) and \
            command not in RETURNS:
        returns, call = "Written", "written_of"
    signature = []
    several_last = arguments and arguments[-1][1]
    for argument, several, needed in arguments:
        path = "Path" if argument in ("source", "target", "path", "other",
                                      "left", "right", "dir", "plan",
                                      "root") else "str"
        if several and argument == arguments[-1][0]:
            signature.append(f"*{argument}: {path}")
        elif several:
            signature.append(f"{argument}: Union[{path}, list[{path}]]")
        else:
            signature.append(f"{argument}: {path}" if needed else
                             f"{argument}: Optional[{path}] = None")
    if not several_last:
        signature.append("*")
    signature += [one.signature for one in options]
    signature.append("progress: Any = None")
    what = re.search(r"^ckpt \S+: (.*)", page).group(1)
    signature = [one + "," for one in signature[:-1]] + [
        f"{signature[-1]}) -> {returns}:"]
    text = filled(signature, f"def {name}(", " " * 8)
    text += f'\n    """`ckpt {command}`: {what}.\n\n'
    for option in options:
        text += filled(option.help.split(), f"    {option.keyword}: ", " " * 8) + "\n"
    names = "".join(f'"{argument}", ' for argument, *_ in arguments)
    names = f"({names.rstrip(', ')}{',' if len(arguments) == 1 else ''})"
    return text + f'    """\n    return {call}("{command}", locals(), {names})\n'


def pages(helps):
    """Files by name, from (command, help) pairs."""
    names = [FUNCTIONS.get(command, command) for command, _ in helps]
    functions = HEAD + filled([f'"{name}",' for name in names],
                              "__all__ = [", " " * 11)[:-1] + "]\n"
    functions += "".join("\n\n" + function(command, page)
                         for command, page in helps)
    aio = AIO + "".join(f"{name} = awaitable(_functions.{name})\n"
                        for name in names)
    return {"python/ckpt/_functions.py": functions, "python/ckpt/aio.py": aio}
