#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The house in figures: the drawing of includes, rooms, files and functions.

    scripts/house.py            the tables of docs/architecture.md
    scripts/house.py --arrows   every arrow from unit to unit

A box in the drawing is a room, a header, or a unit: x.h with x.cc. An arrow is
an include from one to another. Floors are counted after each circle is merged
into one box; an arrow goes up if it is part of a circle. A folder's own files
may be above and below its folders (rows.cc, format.h), so folders are only
compared with their siblings. Functions are measured by Universal Ctags (apt-get
install universal-ctags).
"""

import json
import re
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ROOMS = ("lib", "containers", "models", "formats", "convert", "reshard", "api",
         "app")
CODE = (".cc", ".h", ".cu")
MOST_LINES, MOST_OF_FUNCTION = 500, 80


def sources(folder):
    return sorted(path for path in (ROOT / folder).rglob("*")
                  if path.suffix in CODE)


def unit(path):
    return re.sub(r"\.(cc|h|cu)$", "", str(path)).replace(
        "lib/include/ckpt/", "lib/include/")


def arrows(files):
    """Includes of our own headers, from unit to unit."""
    known = {unit(path.relative_to(ROOT)) for path in files}
    found = set()
    for path in files:
        here = unit(path.relative_to(ROOT))
        for name in re.findall(r'^#include "([^"]+)"', path.read_text(), re.M):
            to = unit(re.sub("^ckpt/", "lib/include/", name))
            if to in known and to != here:
                found.add((here, to))
    return found


def siblings(found):
    """Folders with one parent that include each other."""
    pairs = set()
    for a, b in found:
        one, two = a.split("/")[:-1], b.split("/")[:-1]
        while one and two and one[0] == two[0]:
            one, two = one[1:], two[1:]
        if one and two:
            at = a.split("/")[:len(a.split("/")) - 1 - len(one)]
            pairs.add(tuple("/".join(at + [end[0]]) for end in (one, two)))
    return sorted((a, b) for a, b in pairs if a < b and (b, a) in pairs)


def circles(pairs):
    """Strongly connected folders: folder -> its circle (a frozenset)."""
    nodes = {n for pair in pairs for n in pair}
    below = {n: {b for a, b in pairs if a == n} for n in nodes}
    reach = {}
    for node in nodes:
        seen, left = set(), [node]
        while left:
            for other in below[left.pop()]:
                if other not in seen:
                    seen.add(other)
                    left.append(other)
        reach[node] = seen
    return {n: frozenset([n] + [o for o in reach[n] if n in reach[o]])
            for n in nodes}


def floors(pairs):
    circle = circles(pairs)
    below = defaultdict(set)
    for a, b in pairs:
        if circle[a] != circle[b]:
            below[circle[a]].add(circle[b])
    height = {}

    def floor(box):
        if box not in height:
            height[box] = 1 + max(map(floor, below[box]), default=0)
        return height[box]

    up = sum(circle[a] == circle[b] for a, b in pairs)
    return max(map(floor, set(circle.values()))), up, circle


def rank(values, share):
    values = sorted(values)
    return values[min(len(values) - 1, int(share * len(values)))]


def lines(path):
    return len(path.read_text().splitlines())


def spread(values, *shares):
    """"8 / 24 / 130": the ranks at these shares, then the largest."""
    if not values:
        return "-"
    return " / ".join(map(str, [rank(values, share) for share in shares]
                          + [max(values)]))


def comment_share(files):
    """Of all lines, those with a comment."""
    text = [line for path in files for line in path.read_text().splitlines()]
    with_one = [line for line in text if re.search(r"(^|[^:\"])//( |$)", line)]
    return len(with_one) / len(text)


def functions(files):
    """The length, name and file of each."""
    tags = subprocess.run(
        ["ctags", "--output-format=json", "--fields=+ne", "--c++-kinds=f",
         "--langmap=c++:+.h.cu", "-f", "-", "-L", "-"],
        input="\n".join(map(str, files)), text=True, check=True,
        capture_output=True).stdout
    for row in map(json.loads, tags.splitlines()):
        if "end" in row:
            yield (row["end"] - row["line"] + 1, row["name"],
                   str(Path(row["path"]).relative_to(ROOT)))


def function_lengths(files):
    return [length for length, _, _ in functions(files)]


def drawing(name, pairs):
    height, up, circle = floors(pairs)
    boxes = {n for pair in pairs for n in pair}
    print(f"| {name} | {len(boxes)} | {height} | {len(pairs)} | {up} |")
    return {c for c in circle.values() if len(c) > 1}


def print_long(files):
    """What docs/style.md wants looked at again."""
    for path in files:
        if lines(path) > MOST_LINES:
            print("file of", lines(path), path.relative_to(ROOT))
    for length, name, path in sorted(functions(files), reverse=True):
        if length > MOST_OF_FUNCTION:
            print("function of", length, name, path)


def main():
    files = [path for room in ROOMS for path in sources(room)]
    found = arrows(files)
    if "--arrows" in sys.argv:
        for a, b in sorted(found):
            print(a, "->", b)
        return
    print("| drawing | boxes | floors | arrows | up |\n|---|---|---|---|---|")
    rooms = {(a.split("/")[0], b.split("/")[0]) for a, b in found}
    drawing("rooms", {(a, b) for a, b in rooms if a != b})
    drawing("headers", arrows([path for path in files
                               if path.suffix == ".h"]))
    odd = drawing("units", found)
    for room in ("formats", "formats/megatron", "app"):
        drawing(f"units of `{room}`", {
            (a, b) for a, b in found
            if a.startswith(room + "/") and b.startswith(room + "/")})
    for circle in sorted(odd, key=sorted):
        print("circle:", " <-> ".join(sorted(circle)))
    print("sibling folders that include each other:",
          ", ".join(map(" <-> ".join, siblings(found))) or 0)
    print("\n| room | files | lines | file p50 / p90 / max |"
          " header p50 / p90 / max | function p50 / p90 / p99 / max |"
          " comments |\n|---|---|---|---|---|---|---|")
    for name, some in [(room, sources(room)) for room in ROOMS] + [
            ("all", files)]:
        size = [lines(path) for path in some]
        headers = [lines(path) for path in some if path.suffix == ".h"]
        length = function_lengths(some)
        print(f"| `{name}` | {len(some)} | {sum(size)} |"
              f" {spread(size, .5, .9)} | {spread(headers, .5, .9)} |"
              f" {spread(length, .5, .9, .99)} | {comment_share(some):.0%} |")
    print_long(files)
    tests = [path for path in (ROOT / "tests").rglob("*")
             if path.suffix in CODE + (".py", ".sh")
             and "data" not in path.parts and "generators" not in path.parts]
    print(f"\ntests: {len(tests)} files, {sum(map(lines, tests))} lines, "
          f"{sum(map(lines, tests)) / sum(map(lines, files)):.2f} per line")


if __name__ == "__main__":
    main()
