#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a terminal of 60, 80, 120 and 200 columns shows, and a pipe.

tests/app/cli/screens/WIDTH.out has the screens; CKPT_UPDATE_SCREENS=1 writes them
anew. Whatever they are: no line is wider than the terminal, and no two rows of
one table are equal, which is what a cut name must never bring.
"""

import atexit
import fcntl
import os
import pathlib
import pty
import re
import shutil
import signal
import struct
import subprocess
import tempfile
import termios
import time

from support import DATA, HERE, Suite, check, check_equal

CKPT = None
AGED = None  # the run below, in a directory whose files are three hours old
RUN = "runs/verl_fsdp2_w2/ckpt"
SCREENS = HERE / "cli/screens"
WIDTHS = (60, 80, 120, 200, 0)  # 0: a pipe
LEGACY = "megatron_legacy/llama_te_tp2_pp2/ckpt"
COMMANDS = (
    ("inspect", LEGACY),
    ("inspect", "megatron_torch_dist/gpt_tp2_pp2_v0161/ckpt", "--objects"),
    ("inspect", "hf/deepseek_v3_bf16/ckpt"),
    ("inspect", LEGACY, "--tree", "--model-only"),
    ("inspect", LEGACY, "--stats", "--keys", "decoder.layers.*"),
    ("inspect", LEGACY, "--shards", "--keys", "*linear_proj.weight"),
    ("diff", "hf/llama/ckpt", "hf/qwen3_bf16/ckpt"),
    ("diff", LEGACY, "megatron_legacy/lm_llama_pp2_bf16/ckpt", "--model-only"),
    ("ls", LEGACY, "-l", "--model-only"),
    ("show", "hf/llama/ckpt", "model.embed_tokens.weight[:3,:12]"),
    ("verify", "hf/llama/ckpt", "hf/qwen3_bf16/ckpt"),
    ("verify", "bad/safetensors/overlap.safetensors"),
    ("scan", "torch_pt/training_objects/ckpt/ckpt_p2.pt"),
    ("salvage", "hf/llama/ckpt", "nowhere", "-n"),
    ("reshard", "fairseq2_native/qwen25_tp4dp1_mixed/ckpt", "nowhere", "--tp",
     "8", "-n"),
    ("inspect", RUN, "--all"),
    ("inspect", "hf/llama/ckpt", "--digest"),
)
# Output that depends on this machine and moment: checked, not kept.
PASSING = (
    ("doctor",),
    ("ls", RUN, "-l"),
    ("doctor", "nowhere/else"),
)
# Every command, in its variants: no line of any is too wide. What people don't
# read on a terminal (JSON, roff, a shell script) is not folded; a path is meant
# to be copied, so it is not broken.
EVERY = (
    ("inspect", LEGACY, "-v"), ("inspect", "dcp/fsdp2_w2_adamw/ckpt"),
    ("inspect", "hf/qwen3_moe_bf16/ckpt", "--stats"),
    ("inspect", "hf/qwen3_moe_bf16/ckpt", "--tree"),
    ("inspect", "runs/hf_trainer_lora/ckpt"),
    ("inspect", "runs/verl_fsdp2_w2/ckpt", "--objects"),
    ("ls", "runs/verl_fsdp2_w2/ckpt", "-l"), ("ls", LEGACY, "-l"),
    ("show", "hf/llama/ckpt", "lm_head.weight"),
    ("convert", "hf/llama/ckpt", "nowhere", "--to", "megatron_torch_dist",
     "--tp", "2", "-n"),
    ("convert", "hf/qwen3_moe_bf16/ckpt", "nowhere", "--to",
     "megatron_torch_dist", "--ep", "2", "-n"),
    ("reshard", LEGACY, "nowhere", "--tp", "1", "--pp", "1", "-n"),
    ("unshard", "dcp/fsdp2_w2_adamw/ckpt", "nowhere.pt", "-n"),
    ("verify", LEGACY, "--deep", "--finite"),
    ("verify", "hf/llama/ckpt", "hf/llama_mha_f16/ckpt"),
    ("diff", "hf/llama/ckpt", "hf/llama_mha_f16/ckpt"),
    ("diff", "hf/llama/ckpt", "hf/llama/ckpt"),
    ("scan", "bad/pickle/os_system.pt", "-v"),
    ("salvage", "hf/llama/ckpt", "nowhere", "-n"),
    ("family", "list"), ("family", "show", "llama"),
    ("family", "show", "qwen3_moe"), ("family", "check", "hf/llama/ckpt"),
    ("family", "check", "hf/gpt2_f32/ckpt"),
    ("family", "check", "hf/llama/ckpt", "--family", "mixtral"),
    ("wait", "hf/llama/ckpt", "--settle", "0"), ("doctor",), ("help",),
    ("edit", "hf/llama/ckpt", "--set", "a=b", "-n"),
    ("sync", "hf/llama/ckpt", "nowhere", "-n"),
    ("prune", "runs/verl_fsdp2_w2/ckpt", "--keep-last", "1"),
    ("watch", "runs/verl_fsdp2_w2/ckpt", "--do", "echo {step}", "-n"),
    ("demo", "nowhere", "-n"),
    *((name, how) for name in (
        "inspect", "ls", "view", "show", "convert", "reshard", "unshard",
        "merge", "verify", "diff", "scan", "salvage", "fetch", "edit", "prune",
        "sync", "family", "run", "wait", "watch", "demo", "doctor", "man", "completion")
      for how in ("-h", "--help")),
)


def shown(argv, width, env=None):
    """Returns what a terminal of that width, or a pipe, gets."""
    env = {"PATH": os.environ["PATH"], "LC_ALL": "C.UTF-8", "TERM": "xterm",
           **(env or {})}
    folder = AGED if RUN in argv else DATA
    if width == 0:
        done = subprocess.run([CKPT.path, *argv], cwd=folder, env=env,
                              stdin=subprocess.DEVNULL, capture_output=True,
                              check=False)
        return done.stdout.decode()
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 50, width, 0, 0))
    child = subprocess.Popen([CKPT.path, *argv], cwd=folder, env=env,
                             stdin=subprocess.DEVNULL, stdout=theirs,
                             stderr=subprocess.DEVNULL)
    os.close(theirs)
    said = b""
    while True:
        try:
            said += (more := os.read(ours, 1 << 16))
        except OSError:  # how Linux reports that the other side is closed
            break
        if not more:
            break
    child.wait()
    os.close(ours)
    return said.decode().replace("\r\n", "\n")


def plain(text):
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    # Depends on the disk and the clock, wherever a line is folded.
    text = re.sub(r"(?ms)^\S+: [\d.]+ \wiB free\n", "", text)
    text = re.sub(r"(?ms)^takes about .*?\snow\n", "", text)
    return re.sub(r"(?m)^(saved +).*", r"\1(when)", text)


def columns(line):
    return len(line)  # nothing here is wider or narrower than one column


def sound(text, width, command):
    section = set()
    for line in text.splitlines():
        if not line.strip():
            section = set()
            continue
        copied = (line.startswith(("path ", "found in "))
                  or re.fullmatch(r" *[0-9a-f]{64}", line))  # a fingerprint
        check(width == 0 or copied or columns(line) <= width,
              f"{columns(line)} columns of {width}: {line!r}\nckpt "
              + " ".join(command))
        # The columns below a name on its own line may be equal.
        if "inspect" in command and not line.startswith("   "):
            check(line not in section, f"twice: {line!r}\n{text}")
            section.add(line)


def test_width(folder, width):
    page = ""
    for command in COMMANDS:
        text = plain(shown(command, width))
        sound(text, width, command)
        page += f"$ ckpt {' '.join(command)}\n{text}\n"
    for command in PASSING:
        sound(plain(shown(command, width)), width, command)
    golden = SCREENS / f"{width or 'pipe'}.out"
    if os.environ.get("CKPT_UPDATE_SCREENS"):
        golden.parent.mkdir(exist_ok=True)
        golden.write_text(page)
    for want, got in zip(golden.read_text().split("$ ckpt "),
                         page.split("$ ckpt ")):
        check(want == got, f"{golden.name} has\n{want}\nnow\n{got}")
    check_equal(len(page), len(golden.read_text()), golden.name)


# The generators' settings for the models, by where a checkpoint keeps them:
# config.json, model.yaml, params.json, a pickle of args.
HEADERS = {
    "hf/llama/ckpt":
        ("2 layers, hidden 32, 8 heads, 2 kv heads, vocabulary 60", ""),
    "hf/mixtral_f32/ckpt":
        ("2 layers, hidden 24, 6 heads, 2 kv heads, 4 experts, vocabulary 60",
         ""),
    "meta/llama/ckpt":
        ("2 layers, hidden 32, 8 heads, 2 kv heads, vocabulary 60", ""),
    "fairseq2_native/qwen25_tp4dp1_mixed/ckpt":
        ("2 layers, hidden 16, 4 heads, 4 kv heads, vocabulary 48", "100"),
    "megatron_torch_dist/gpt_tp2_pp2_v0161/ckpt":
        ("4 layers, hidden 8, 4 heads, 2 kv heads, vocabulary 23 + 1 row of "
         "padding", "7"),
    "megatron_legacy/llama_te_tp2_pp2/ckpt":
        ("3 layers, hidden 16, 8 heads, 4 kv heads, vocabulary 30 + 2 rows of "
         "padding", "5"),
    "runs/verl_fsdp2_w2/ckpt":
        ("1 layer, hidden 16, 4 heads, 2 kv heads, vocabulary 53", "10 (verl)"),
    # Their trainers keep no configuration of the model: what shapes say.
    "runs/torchtitan_w2/ckpt":
        ("1 layer, hidden 16, vocabulary 53", "10 (torchtitan)"),
    "runs/lightning_ckpt/ckpt":
        ("2 layers, hidden 12, vocabulary 53", "16 (lightning)"),
    "runs/hf_trainer_moe_qwen3/ckpt":
        ("1 layer, hidden 16, 4 heads, 2 kv heads, 4 experts, vocabulary 53",
         "3 (hf_trainer)"),
}


def test_header(folder, path, model, iteration):
    """Iteration, trainer, sizes of the model, padding, dtypes and age."""
    text = shown(("inspect", path), 0)
    rows = dict(line.split(None, 1) for line in
                text.split("\n\n")[0].splitlines())
    check_equal(rows.get("model"), model, "model")
    check_equal(rows.get("iteration", ""), iteration, "iteration")
    check(re.fullmatch(r"(\w+ [\d.]+ \w+(, )?)+", rows["dtypes"]), text)
    check(re.fullmatch(r"just now|\d+ (minute|hour|day)s ago", rows["saved"]),
          text)


def test_every(folder, width):
    """The output of every command fits, whatever it is asked for."""
    for command in EVERY:
        for line in plain(shown(command, width)).splitlines():
            copied = line.startswith(("path ", "found in ")) or " " not in (
                line.strip())
            check(copied or columns(line) <= width,
                  f"{columns(line)} columns of {width}: {line!r}\nckpt "
                  + " ".join(command))


def test_all_commands(folder):
    """EVERY has every command."""
    rows = shown(("help",), 0).split("\nCommands\n")[1].split("\n\n")[0]
    names = {row.split()[0] for row in rows.splitlines() if row[2] != " "}
    check_equal(names - {c[0] for c in EVERY}, set(), "commands without a row")


def test_long_names(folder):
    """Names that differ only in the middle stay distinct at any width."""
    import numpy
    from safetensors.numpy import save_file
    names = [f"model.{'very_long_' * 4}{part}.{'x' * 40}.tail.weight"
             for part in ("left", "right", "centre")]
    save_file({n: numpy.zeros(k + 1, "f4") for k, n in enumerate(names)},
              folder / "a.safetensors")
    for width in (20, 40, 60, 80):
        text = plain(shown(("inspect", str(folder / "a.safetensors")), width))
        joined = re.sub(r"\n *", "", text)
        for name in names:
            part = name.split(".")[1]
            check(part in joined or part[-5:] in joined,
                  f"{part} is not to be told from others at {width}:\n{text}")


def colours(argv, width, **env):
    return "\x1b[" in shown(argv, width, env)


def test_colours(folder):
    argv = ("inspect", LEGACY)
    rows = (  # width (0: no terminal), environment, colours
        (80, {}, True),
        (0, {}, False),
        (80, {"NO_COLOR": "1"}, False),
        (80, {"TERM": "dumb"}, False),
        (0, {"CLICOLOR_FORCE": "1"}, True),
        (0, {"FORCE_COLOR": "1"}, True),
        (0, {"CLICOLOR_FORCE": "0"}, False),
        (0, {"FORCE_COLOR": "1", "NO_COLOR": "1"}, False),
        # mpirun gives its ranks a terminal and writes into a file.
        (80, {"OMPI_COMM_WORLD_RANK": "0"}, False),
        (80, {"PMI_RANK": "0"}, False),
        (80, {"OMPI_COMM_WORLD_RANK": "0", "CLICOLOR_FORCE": "1"}, True),
    )
    for width, env, want in rows:
        check_equal(colours(argv, width, **env), want, f"{width} {env}")
    check(colours(argv + ("--color", "always"), 0), "--color always")
    check(not colours(argv + ("--color", "never"), 80), "--color never")
    pair = ("hf/llama/ckpt", "hf/qwen3_bf16/ckpt")
    marks = shown(("diff", *pair), 80) + shown(("diff", *pair[::-1]), 80)
    for mark in ("\x1b[1;31m-", "\x1b[32m+", "\x1b[1;33m!"):
        check(mark in marks, f"no {mark!r} in\n{marks}")


def test_messages(folder):
    """A message is one line, however narrow the terminal is: the terminal wraps
    it, and what is copied from it (a path, the next step) is whole."""
    path = "no/such/" + "very_long_name_of_a_directory_" * 3
    for argv in (("inspect", path),
                 ("convert", "hf/llama/ckpt", folder / "out", "--to",
                  "megatron_torch_dist", "--tp", "3")):
        plainly = CKPT.run(*argv, cwd=DATA)
        ours, theirs = pty.openpty()
        fcntl.ioctl(theirs, termios.TIOCSWINSZ,
                    struct.pack("4H", 50, 60, 0, 0))
        subprocess.run([CKPT.path, *argv], cwd=DATA, stdin=subprocess.DEVNULL,
                       stdout=subprocess.DEVNULL, stderr=theirs, check=False,
                       env={"LC_ALL": "C.UTF-8", "NO_COLOR": "1"})
        os.close(theirs)
        said = b""
        while True:
            try:
                said += os.read(ours, 1 << 16)
            except OSError:
                break
        os.close(ours)
        said = said.decode().replace("\r\n", "\n").replace("\r\x1b[K", "")
        check_equal(said, plainly.err, "on a terminal of 60 columns")
        check(max(map(len, said.splitlines())) > 60, said)


def bar_at(folder, width, rate):
    """The lines of the bar drawn by a run of 62.6 KiB at that rate."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 50, width, 0, 0))
    child = subprocess.Popen(
        [CKPT.path, "convert", "hf/llama/ckpt", folder / f"out{width}{rate}",
         "--to", "dcp", "--max-rate", rate], cwd=DATA, stdin=subprocess.DEVNULL,
        stdout=theirs, stderr=theirs, env={"LC_ALL": "C.UTF-8",
                                           "TERM": "xterm", "NO_COLOR": "1"})
    os.close(theirs)
    said = b""
    while True:
        try:
            said += os.read(ours, 1 << 16)
        except OSError:
            break
    os.close(ours)
    check_equal(child.wait(), 0, said.decode())
    return [line for line in re.split(r"\r\x1b\[K|\r\n", said.decode())
            if "%" in line]


def test_bars(folder):
    """The share, bytes and rate at any width; the phase first; if there is
    room, time left, peak memory, and the tensor."""
    numbers = r"copying [█░]* *\d+%  [\d.]+ KiB / 62\.6 KiB"
    wanted = {40: numbers, 60: numbers + r"  [\d.]+ KiB/s",
              80: numbers + r"  [\d.]+ KiB/s  ETA \d:\d\d  mem [\d.]+ MiB",
              120: numbers + r"  [\d.]+ KiB/s  ETA \d:\d\d  mem [\d.]+ MiB"
              r"  \S+$",
              200: numbers + r"  [\d.]+ KiB/s  ETA \d:\d\d  mem [\d.]+ MiB"
              r"  (model|lm_head)[\w.]+$"}
    for width, pattern in wanted.items():
        # A machine with other work may draw too few in a second.
        for rate in ("60KB", "10KB", "2KB"):
            lines = bar_at(folder, width, rate)
            for line in lines:
                check(len(line) < width,
                      f"{len(line)} columns of {width}: {line}")
            if any(re.match(pattern, line) for line in lines):
                break
        else:
            check(False, f"{pattern} at {width} is none of\n"
                  + "\n".join(lines))


def test_minutes(folder):
    """In a log, one line each minute, and the totals at the end."""
    done = CKPT.ok("convert", DATA / "hf/llama/ckpt", folder / "out", "--to",
                   "dcp", "--max-rate", "950")
    lines = done.err.splitlines()
    check(re.match(r"copying +\d+%  [\d.]+ KiB / 62\.6 KiB  [\d.]+ B/s  ETA "
                   r"\d:\d\d  peak memory [\d.]+ MiB  \S+$", lines[0]),
          done.err)
    check_equal(len([l for l in lines if "%" in l]), int(done.seconds // 60),
                "lines")
    check(re.match(r"copying done: 62\.6 KiB in [\d.]+ s$", lines[-2]),
          done.err)


def test_interrupted_bar(folder):
    """The bar's line is cleared before a message, so that they never glue."""
    ours, theirs = pty.openpty()
    fcntl.ioctl(theirs, termios.TIOCSWINSZ, struct.pack("4H", 50, 100, 0, 0))
    child = subprocess.Popen(
        [CKPT.path, "convert", "hf/llama/ckpt", folder / "out", "--to", "dcp",
         "--max-rate", "2KB"], cwd=DATA, stdin=subprocess.DEVNULL,
        stdout=theirs, stderr=theirs, env={"LC_ALL": "C.UTF-8",
                                           "TERM": "xterm", "NO_COLOR": "1"})
    os.close(theirs)
    said = b""
    while b"%" not in said:
        said += os.read(ours, 1 << 16)
    child.send_signal(signal.SIGINT)
    while True:
        try:
            said += os.read(ours, 1 << 16)
        except OSError:
            break
    os.close(ours)
    check_equal(child.wait(), 130, said.decode())
    for line in said.decode().replace("\r\n", "\n").split("\n"):
        shown = line.split("\r\x1b[K")[-1]
        glued = "%" in shown and ("error:" in shown or "hint:" in shown)
        check(not glued, f"glued: {shown!r}")
    check(re.search(r"(\x1b\[K|\n)error: ", said.decode()), said.decode())


def aged():
    """Files' ages take columns, so a checkout's age must not show."""
    root = pathlib.Path(tempfile.mkdtemp(prefix="screens-"))
    atexit.register(shutil.rmtree, root)
    shutil.copytree(DATA / RUN, root / RUN)
    then = time.time() - 3 * 3600
    for path in root.rglob("*"):
        os.utime(path, (then, then))
    return root


def test_objects_of_parameters(folder):
    """What an optimizer lists for each parameter is a row for all of them, as
    its states are; another value is another row."""
    for path, name in (("olmo_core_dcp/trainer_fsdp_w2/ckpt", "param_groups"),
                       ("runs/torchtitan_w2/ckpt", "optimizer.param_groups")):
        objects = CKPT.ok("inspect", path, "--json", cwd=DATA).json()["objects"]
        many = sum(o["name"].endswith(".lr") for o in objects)
        text = CKPT.ok("inspect", path, "--objects", cwd=DATA).out
        text = text[text.index("\nObjects\n"):]
        check(many > 5, f"{many} rates in {path}")
        check(re.search(rf"^  {re.escape(name)}\.\*\.lr +×{many}  ", text, re.M),
              text)
        lone = r"param_groups\.(?!\*)\S+\.(\w+)  "
        shared = {m[1] for m in re.finditer(lone, text)}
        check(shared <= {"weight_decay"}, text)


def test_one_screen(folder):
    """-h of every command, and ckpt alone, are a screen; `ckpt` begins with
    the commands, and names all of them."""
    page = shown(["--help"], 0)
    rows = page.split("\nCommands\n")[1].split("\n\n")[0].splitlines()
    names = [row.split()[0] for row in rows if row[2] != " "]
    for name in names:
        lines = shown([name, "-h"], 80).splitlines()
        check(len(lines) <= 31, f"{name} -h has {len(lines)} lines")
    short = shown(["-h"], 80)
    check(len(short.splitlines()) <= len(names) + 20, short)
    check("inspect" in short.splitlines()[2], short)
    missing = [n for n in names if not re.search(rf"\s{n}\s", short)]
    check_equal(missing, [], "commands that `ckpt -h` lacks")


def prepare(suite, ckpt):
    global CKPT, AGED
    CKPT = ckpt
    AGED = aged()
    for width in WIDTHS:
        suite.add(f"screens {width or 'pipe'}", test_width, width)
    for width in WIDTHS[:-1]:
        suite.add(f"every command {width}", test_every, width)
    suite.add("one screen", test_one_screen)
    suite.add("every command is there", test_all_commands)
    for path, row in HEADERS.items():
        suite.add(f"header of {path}", test_header, path, *row)
    suite.add("long names", test_long_names)
    suite.add("objects of parameters", test_objects_of_parameters)
    suite.add("colours", test_colours)
    suite.add("messages", test_messages)
    suite.add("bars", test_bars)
    if suite.full:
        suite.add("a line each minute", test_minutes)
    suite.add("an interrupted bar", test_interrupted_bar)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
