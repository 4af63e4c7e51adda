# SPDX-License-Identifier: Apache-2.0
"""Where a command's processor time goes, by perf."""

import re
import shutil
import subprocess

# The first one that matches a symbol counts; then the kernel's, then the rest.
KINDS = [
    ("copy out", r"_copy_to_iter|copy_(page|folio)_to_iter"),
    ("copy in", r"copy_(page|folio)_from_iter|_copy_from_iter"),
    ("page to page", r"^\[k\] (__pi_)?memcpy|copy_mc|copy_page"),
    ("digest", r"digest"),
    ("CRC", r"crc32"),
    ("cast", r"reshard::.*::(Avx512|Avx2|Portable)::run"),
    ("new memory", r"clear_page|clear_huge_page|exc_page_fault"),
]
NAMES = [name for name, _ in KINDS] + ["rest of the kernel", "rest"]


def available():
    return shutil.which("perf") is not None


def profile(argv, data):
    """Shares of processor time by name, in percent; None if perf can't."""
    if subprocess.run(["perf", "record", "-q", "-F", "4999", "-o", data, "--",
                       *argv], capture_output=True, check=False).returncode:
        return None
    report = subprocess.run(
        ["perf", "report", "-i", data, "--stdio", "-q", "--no-children", "-g",
         "none", "--percent-limit", "0", "-F", "overhead,sym"],
        capture_output=True, text=True, check=False).stdout
    shares = dict.fromkeys(NAMES, 0.0)
    for line in report.splitlines():
        found = re.match(r"\s*([\d.]+)%\s+(\[.\].*)", line)
        if not found:
            continue
        symbol = found[2].strip()
        name = next((name for name, pattern in KINDS
                     if re.search(pattern, symbol)), None)
        if name is None:
            name = NAMES[-2] if symbol.startswith("[k]") else NAMES[-1]
        shares[name] += float(found[1])
    return shares
