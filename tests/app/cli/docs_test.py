#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The pages in docs: links resolve, the site lists every page, and figures that
pages share agree."""

import re

from support import DATA, Suite, check, check_equal

ROOT = DATA.parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")]


def slug(title):
    title = re.sub(r"[`*]|\[([^]]*)\]\([^)]*\)", r"\1", title).strip().lower()
    return re.sub(r"\s", "-", re.sub(r"[^\w\s-]", "", title))


def anchors(page):
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.S)
    return {slug(t) for t in re.findall(r"(?m)^#+ (.*)$", text)}


def links(folder):
    for page in PAGES:
        text = re.sub(r"```.*?```|`[^`\n]*`", "", page.read_text(), flags=re.S)
        for target in re.findall(r"\]\(([^)\s]+)\)", text):
            if re.match(r"[a-z]+:", target):
                continue
            path, _, anchor = target.partition("#")
            there = (page.parent / path).resolve() if path else page
            check(there.exists(), f"{page.relative_to(ROOT)}: {target}")
            if anchor and there.suffix == ".md":
                check(anchor in anchors(there),
                      f"{page.relative_to(ROOT)}: {target}")


def site(folder):
    """Every page is in the site's navigation once, and exists."""
    text = (ROOT / "mkdocs.yml").read_text()
    listed = re.findall(r"[\w/.-]+\.md", text[text.index("nav:"):])
    check_equal(len(listed), len(set(listed)), "pages that are listed twice")
    for page in listed:
        check((ROOT / "docs" / page).exists(), f"{page} is not there")
    have = {str(p.relative_to(ROOT / "docs")) for p in ROOT.glob("docs/*.md")}
    for below in ("guides", "formats"):
        have |= {str(p.relative_to(ROOT / "docs"))
                 for p in ROOT.glob(f"docs/{below}/*.md")}
    check_equal(sorted(have - set(listed)), [], "pages that are not listed")


def figures(folder):
    """The comparison has no figure that is missing from the pages of
    measurements."""
    rows = "\n".join((ROOT / "docs" / page).read_text()
                     for page in ("benchmarks.md", "formats/runs.md",
                                  "performance.md"))
    text = (ROOT / "docs/guides/compare.md").read_text()
    for line in text.splitlines():
        cells = [c.strip() for c in line.strip("|").split("|")]
        if len(cells) != 6 or not re.match(r"[\d.]+ s$", cells[1]):
            continue
        source = next((r for r in rows.splitlines()
                       if r.startswith(f"| {cells[0]} |")), "")
        for cell in cells[1:]:
            check(f"| {cell} |" in source, f"{cells[0]}: {cell} is not measured")


def suites(folder):
    """CTest runs every suite: one that no list has, nothing runs."""
    lists = (DATA.parent / "CMakeLists.txt").read_text()
    for path in sorted(DATA.parent.glob("app/*_test.py")):
        name = path.name[:-len("_test.py")]
        check(re.search(rf"(?m)^ +{name}$|{re.escape(path.name)}", lists),
              f"tests/CMakeLists.txt does not have {path.name}")


def prepare(suite, ckpt):
    for case in (links, site, figures, suites):
        suite.add(case.__name__, case)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
