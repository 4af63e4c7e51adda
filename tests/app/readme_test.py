#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The examples in README.md and docs/guides are what ckpt prints. `--update`
writes them anew.

Blocks of ```console are run one after the other in one folder that holds the
checkpoints of SOURCES. Times and rates may differ, and buffers go by processors.
"""

import re
import shlex
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from support import DATA, Ckpt, Suite, check_equal

CKPT = None
ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/guides/*.md"))]
SOURCES = {
    "tp4": "fairseq2_native/qwen25_tp4dp1_mixed",
    "gpt": "megatron_torch_dist/gpt_tp2_pp2_v0161",
    "old": "megatron_zarr/gpt_zarr_optim_bucket_space_v0090",
    "fsdp": "dcp/fsdp2_w2_adamw",
    "llama": "hf/llama",
}
BLOCK = re.compile(r"```console\n(.*?)```", re.S)


def said(folder, line):
    """What a terminal shows for a command: stdout and stderr together."""
    argv = shlex.split(line)
    return subprocess.run(
        [CKPT.path, *argv[1:]], cwd=folder, text=True, check=False,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, env={"NO_COLOR": "1", "LC_ALL": "C.UTF-8"},
    ).stdout


def run_block(folder, text):
    commands = [l[2:] for l in text.splitlines() if l.startswith("$ ")]
    return "\n".join(f"$ {c}\n{said(folder, c)}" for c in commands)


def steady(text):
    text = re.sub(r"at most .* of buffers", "at most B", text)
    text = re.sub(r"(?m)^(\.: ).* free$", r"\1F free", text)
    text = re.sub(r"(?m)^(saved +).*", r"\1W", text)
    text = re.sub(r"peak memory [0-9.]+ .iB", "peak memory M", text)
    return re.sub(r" in [0-9.]+ s \([^)]*/s\)", " in T s", text).strip()


def bring_sources(folder):
    for name, case in SOURCES.items():
        shutil.copytree(DATA / case / "ckpt", folder / name)


def test_page(folder, page):
    bring_sources(folder)
    for block in BLOCK.findall(page.read_text()):
        check_equal(steady(block), steady(run_block(folder, block)),
                    f"an example in {page.name} (--update writes it anew)")


def update(page):
    with tempfile.TemporaryDirectory() as folder:
        bring_sources(Path(folder))
        text = BLOCK.sub(
            lambda m: f"```console\n{run_block(folder, m.group(1))}```",
            page.read_text())
    page.write_text(text)


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for page in PAGES:
        if BLOCK.search(page.read_text()):
            suite.add(page.name, test_page, page)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--update"]:
        CKPT = Ckpt(sys.argv[2] if len(sys.argv) > 2 else "build/bin/ckpt")
        for one in PAGES:
            update(one)
    else:
        Suite(__doc__).main(prepare)
