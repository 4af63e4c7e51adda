#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""No library of the current directory is loaded: a checkpoint that somebody
else packed may have a libmpi.so.40 beside it."""

import shutil
import subprocess
import sys
from pathlib import Path

from support import DATA, HERE, Skip, Suite, check, check_equal

sys.path.insert(0, str(HERE.parent / "install"))
import elf  # noqa: E402

CKPT = None  # set by prepare

PLANTED = """
#include <fcntl.h>
__attribute__((constructor)) static void run(void) {
  open(LOADED, O_CREAT | O_WRONLY, 0600);
}
"""


def undefined(path):
    """C's names that a file lacks: its constructor runs if they are found."""
    listed = subprocess.run(["nm", "-D", "--undefined-only", path],
                            capture_output=True, text=True, check=True).stdout
    names = {line.split()[-1].split("@")[0] for line in listed.splitlines()}
    return {name for name in names if name.startswith(("MPI_", "ompi_"))}


def beside_ckpt():
    """Program, modules, libraries, tests: all that the build has made."""
    return elf.files_below(Path(CKPT.path).parent)


def test_search_paths(_):
    """No file of the build has an empty or a relative entry."""
    files = beside_ckpt()
    check(files, "no ELF file beside ckpt")
    check_equal([(str(path), odd) for path in files
                 if (odd := elf.odd_paths(path))], [], "paths")


def test_reader(folder):
    """The test's own reader sees what the linker was told."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        raise Skip("no C compiler")
    (folder / "a.c").write_text("int a;\n")
    for given, odd in (("/a:/b", []), ("/a::", ["", ""]), ("a/b", ["a/b"]),
                       ("$ORIGIN:/a", []), (":/a", [""])):
        made = folder / "a.so"
        subprocess.run([compiler, "-shared", "-fPIC", folder / "a.c", "-o",
                        made, f"-Wl,-rpath,{given}"], check=True)
        check_equal([entry for _, entry in elf.odd_paths(made)], odd, given)


COMMANDS = (("--version",), ("doctor",), ("inspect", "model.safetensors"),
            ("verify", "model.safetensors"))


def test_planted(folder):
    """Every library that a file of the build needs lies in the current
    directory, with a constructor that tells."""
    compiler = shutil.which("cc") or shutil.which("gcc")
    if not compiler:
        raise Skip("no C compiler")
    told = folder / "loaded"
    lacking = {name for path in beside_ckpt() for name in undefined(path)}
    (folder / "a.c").write_text(PLANTED + "".join(
        f"char {name}[1024];\n" for name in sorted(lacking)))
    subprocess.run([compiler, "-shared", "-fPIC", folder / "a.c", "-o",
                    folder / "a.so", f'-DLOADED="{told}"'], check=True)
    names = {"libmpi.so.40", "libmpi.so.12"}
    for path in beside_ckpt():
        names |= set(elf.dynamic(path).get(elf.NEEDED, []))
    for name in names:
        if not name.startswith("ld-"):
            shutil.copyfile(folder / "a.so", folder / name)
    shutil.copyfile(next((DATA / "hf" / "llama" / "ckpt").glob(
        "*.safetensors")), folder / "model.safetensors")
    for command in COMMANDS:
        for launched in ({}, {"OMPI_COMM_WORLD_SIZE": "1",
                              "OMPI_COMM_WORLD_RANK": "0"}):
            CKPT.run(*command, cwd=folder,
                     env={"LD_LIBRARY_PATH": "", **launched})
            check(not told.exists(), f"{command} loads what lies there")


def main():
    suite = Suite(__doc__)
    for test in (test_search_paths, test_reader, test_planted):
        suite.add(test.__name__.removeprefix("test_"), test)

    def prepare(_, ckpt):
        global CKPT
        CKPT = ckpt
    suite.main(prepare)


if __name__ == "__main__":
    main()
