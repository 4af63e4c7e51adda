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

from support import DATA, Ckpt, Suite, check, check_equal

CKPT = None
ROOT = Path(__file__).resolve().parents[3]
PAGES = [ROOT / "README.md", *sorted(ROOT.glob("docs/guides/*.md"))]
SOURCES = {
    "tp4": "fairseq2_native/qwen25_tp4dp1_mixed",
    "gpt": "megatron_torch_dist/gpt_tp2_pp2_v0161",
    "old": "megatron_zarr/gpt_zarr_optim_bucket_space_v0090",
    "fsdp": "dcp/fsdp2_w2_adamw",
    "llama": "hf/llama",
    "verl": "runs/verl_fsdp2_w2",
    "accelerate": "runs/accelerate_fsdp2_w2",
    "zero3": "runs/hf_trainer_zero3_w2",
    "torn": "dcp/fsdp2_w2_adamw",
}
BLOCK = re.compile(r"```console\n(.*?)```", re.S)


def said(folder, line):
    """Returns what a terminal shows for a command: stdout and stderr
    together."""
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
    tear(folder / "torn/__1_0.distcp")


def tear(path):
    """Flips a bit of a tensor; the archive's first bytes stay intact."""
    data = bytearray(path.read_bytes())
    data[53400] ^= 0x10
    path.write_bytes(data)


def test_page(folder, page):
    bring_sources(folder)
    for block in BLOCK.findall(page.read_text()):
        check_equal(steady(block), steady(run_block(folder, block)),
                    f"an example in {page.name} (--update writes it anew)")


def test_length(folder):
    """README is a page: why in three lines, a command and what it says within
    60 words, install in one line, a picture, figures."""
    text = (ROOT / "README.md").read_text()
    before = text.split("```console\n")[1].split("\n")[0]
    words = text.split("```console\n")[0].split() + before.split()
    check(len(words) <= 60, f"{len(words)} words before a command has run")
    check("ckpt demo" in before, f"a stranger has no {before!r}")
    check(" MiB |" in text, "no figures")
    lines = text.splitlines()
    check(len(lines) <= 120, f"README.md has {len(lines)} lines")
    prose = BLOCK.sub("", text.split("| next |")[0]).splitlines()
    check(max(map(len, prose)) <= 90, "README.md begins with long lines")
    why = lines[2:lines.index("", 2)]
    check_equal(len(why), 3, "lines that say why")
    at = lines.index("## Install")
    check(lines[at + 3].startswith("pip install "), lines[at + 3])
    check(any("─►" in line for line in lines), "no picture")


# Each how-to that the guides' issue asks for must exist.
HOW_TOS = ("Reshard in a job script", "Hugging Face to Megatron, and back",
           "verl, Accelerate or DeepSpeed to Hugging Face",
           "Rescue a stranded optimizer", "Find a corrupted shard",
           "Add a model family", "Add a format", "Use it from Python",
           "Use it from C++")


def test_guides(folder):
    text = (ROOT / "docs/guides/howto.md").read_text()
    for title in HOW_TOS:
        check(f"\n## {title}" in text, f"howto.md lacks {title!r}")
    for page in ("install", "tutorial", "compare", "exit-status", "megatron"):
        check((ROOT / f"docs/guides/{page}.md").exists(), page)


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
    suite.add("README's length", test_length)
    suite.add("how-tos", test_guides)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--update"]:
        CKPT = Ckpt(sys.argv[2] if len(sys.argv) > 2 else "build/bin/ckpt")
        for one in PAGES:
            update(one)
    else:
        Suite(__doc__).main(prepare)
