#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Man pages and completions against the commands' own help.

Shells complete here as they do at a prompt: bash through its own function, fish
through `complete -C`, zsh through Tab in an interactive shell. What they offer
must be what --help lists, and must be accepted.
"""

import os
import re
import shutil
import subprocess

from support import DATA, HANG, HERE, Skip, Suite, check, check_equal

CKPT = None
ROOT = HERE.parent.parent
SAMPLE = DATA / "safetensors/hf_sharded/ckpt"


def commands():
    listed = CKPT.ok("--help").out.split("Commands\n")[1].split("\n\n")[0]
    return [line.split()[0] for line in listed.splitlines()]


def long_options(command):
    text = CKPT.ok(command, "--help").out.split("\nExamples\n")[0]
    return set(re.findall(r"^ +(?:-\w, )?(--[a-z][a-z-]*)", text, re.M))


# -------------------------------------------------------------------- shells
def shell_environment(folder):
    link = folder / "ckpt"
    if not link.exists():
        link.symlink_to(CKPT.path)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}"}


def bash(folder, *words):
    """What bash offers for the last word."""
    script = folder / "ckpt.bash"
    if not script.exists():
        script.write_text(CKPT.ok("completion", "bash").out)
    program = ('source "$1"; shift; COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); '
               '_ckpt; printf "%s\\n" "${COMPREPLY[@]}"')
    run = subprocess.run(
        ["bash", "-c", program, "-", str(script), "ckpt", *map(str, words)],
        env=shell_environment(folder), capture_output=True, text=True,
        timeout=HANG)
    check(run.returncode == 0, run.stderr)
    return [line for line in run.stdout.splitlines() if line]


def fish(folder, line):
    if not shutil.which("fish"):
        raise Skip("no fish")
    script = folder / "ckpt.fish"
    script.write_text(CKPT.ok("completion", "fish").out)
    run = subprocess.run(
        ["fish", "--no-config", "-c", f"source {script}; complete -C '{line}'"],
        env=shell_environment(folder), capture_output=True, text=True,
        timeout=HANG)
    check(run.returncode == 0 and not run.stderr, run.stderr)
    return [row.split("\t")[0] for row in run.stdout.splitlines()]


# An interactive zsh, driven by another one: what completion adds is recorded,
# and ^X ends a line.
ZSH_SHELL = r"""
PROMPT= RPS1= LISTMAX=0
autoload -Uz compinit && compinit -u -d $HOME/dump
source $HOME/_ckpt
compadd() {
  local -a found
  builtin compadd -A found "$@"
  print -rl -- "$found[@]" >>$HOME/offered
  builtin compadd "$@"
}
line_ends() { BUFFER=; print "<end>" >>$HOME/offered }
zle -N line_ends
bindkey '^X' line_ends
print REA""DY
"""
ZSH_DRIVER = r"""
zmodload zsh/zpty
zpty shell zsh -f -i
zpty -w shell 'source $HOME/shell'
zpty -r shell said '*READY*'
: >$HOME/offered
ended=0
for line in "$@"; do
  zpty -w -n shell "$line"$'\t\C-x'
  (( ended++ ))
  until (( $(grep -c '<end>' $HOME/offered) == ended )); do
    zpty -rt shell said
    sleep 0.01
  done
done
zpty -d shell
"""


def zsh(folder, *lines):
    """The set that Tab offers at the end of each line, in one shell."""
    if not shutil.which("zsh"):
        raise Skip("no zsh")
    (folder / "_ckpt").write_text(CKPT.ok("completion", "zsh").out)
    (folder / "shell").write_text(ZSH_SHELL)
    run = subprocess.run(
        ["zsh", "-f", "-c", ZSH_DRIVER, "-", *lines], capture_output=True,
        env={**shell_environment(folder), "HOME": str(folder), "TERM": "dumb"},
        cwd=folder, text=True, timeout=HANG)
    check(run.returncode == 0 and not run.stderr, run.stderr)
    offered = (folder / "offered").read_text().split("<end>\n")
    check_equal(len(offered), len(lines) + 1, "lines that ended")
    return [set(filter(None, one.split("\n"))) for one in offered[:-1]]


def test_bash_commands(folder):
    check_equal(bash(folder, ""), [*commands(), "--help", "--version"],
                "commands")
    check_equal(bash(folder, "re"), ["reshard"], "commands that begin with re")


def test_bash_options(folder):
    for command in commands():
        offered = bash(folder, command, "--")
        check_equal(set(offered), long_options(command),
                    f"options of {command}")
        check_equal(len(offered), len(set(offered)), "offered twice")
    check_equal(bash(folder, "convert", SAMPLE, "out", "--over"),
                ["--overwrite"], "after arguments")
    check_equal(bash(folder, "convert", "--tp", "--over"), [], "a number")


def test_bash_values(folder):
    check_equal(bash(folder, "inspect", "--color", ""),
                ["always", "auto", "never"], "--color")
    check_equal(bash(folder, "convert", "a", "b", "--to", "mega"),
                ["megatron_legacy", "megatron_torch_dist", "megatron_zarr"],
                "--to")
    check("llama" in bash(folder, "inspect", "--family", ""), "--family")
    check_equal(bash(folder, "family", ""),
                ["list", "show", "check", "infer"], "family")
    check_equal(bash(folder, "completion", "z"), ["zsh"], "completion")
    check_equal(bash(folder, "inspect", ""), [], "files are bash's own")


def test_tensor_names(folder):
    names = CKPT.ok("ls", SAMPLE).out.split()
    for words in (("ls", SAMPLE, ""), ("show", SAMPLE, ""),
                  ("inspect", SAMPLE, "--keys", ""),
                  ("convert", SAMPLE, "out", "--exclude", "")):
        check_equal(bash(folder, *words), names, f"{words}")
    check_equal(bash(folder, "show", folder / "nothing", ""), [],
                "of no checkpoint")
    check_equal(set(fish(folder, f"ckpt show {SAMPLE} ")) & set(names),
                set(names), "fish")
    for got in zsh(folder, f"ckpt show {SAMPLE} ", f"ckpt show --json {SAMPLE} ",
                   f"ckpt inspect {SAMPLE} --keys "):
        check_equal(got, set(names), "zsh")


def test_home(folder):
    """A path that begins with ~ stays as typed."""
    names = set(CKPT.ok("ls", SAMPLE).out.split())
    (folder / "mine").symlink_to(SAMPLE)
    env = os.environ["HOME"]
    os.environ["HOME"] = str(folder)
    try:
        check_equal(set(bash(folder, "show", "~/mine", "")), names, "bash")
        check_equal(set(fish(folder, "ckpt show ~/mine ")) & names, names,
                    "fish")
        check_equal(zsh(folder, "ckpt show ~/mine "), [names], "zsh")
    finally:
        os.environ["HOME"] = env


# Names that a shell would run, split, expand or glob.
HOSTILE = ["$(touch${IFS}RAN)", "`touch RAN`", "a b", "it's", "*", "$HOME", "~",
           "{a,b}", "a\\b", 'a"b', ";touch RAN", "-n", "a&b", "#c"]


def test_hostile_names(folder):
    """File names are never interpreted by the shell."""
    import torch
    from safetensors.torch import save_file
    (folder / "trap").mkdir()
    sample = folder / "evil.safetensors"
    save_file({name: torch.zeros(1) for name in HOSTILE}, sample)
    offered = {"bash": bash(folder, "show", sample, "")}
    if shutil.which("zsh"):
        offered["zsh"], = zsh(folder, f"ckpt show {sample} ")
    for shell, words in offered.items():
        unquoted = subprocess.run(
            [shell, "-c", "printf '%s\\0' " + " ".join(words)],
            capture_output=True, text=True, cwd=folder / "trap", check=True)
        check_equal(sorted(unquoted.stdout.split("\0")[:-1]), sorted(HOSTILE),
                    f"what a prompt of {shell} would make of them")
    fish(folder, f"ckpt show {sample} ")
    check(not [*folder.rglob("RAN")] and not os.path.exists("RAN"), "it ran")


def test_words_are_accepted(folder):
    """Each offered word parses: only the path is missing."""
    script = CKPT.ok("completion", "bash").out
    seen = 0
    for command, line in (("inspect", ["nowhere"]),
                          ("convert", ["nowhere", "out", "--to", "torch"])):
        part = script.split(f"    {command})\n")[1].split("esac")[0]
        for names, words in re.findall(r"^ +(\S+)\) words='(.*)' ;;", part,
                                       re.M):
            option = names.split("|")[-1]
            for word in words.split():
                argv = [part for part in line]
                if option == "--transformer-impl":
                    argv[-1] = "megatron_legacy"
                if option == "--to":
                    argv = argv[:-2]
                result = CKPT.run(command, *argv, option, word, cwd=folder)
                check(result.code in (3, 7),
                      f"{command} {option} {word}: {result.code} {result.err}")
                seen += 1
    check(seen > 60, f"only {seen} words were tried")


def values_of(command, option):
    """What bash offers for an option, which test_words_are_accepted tries."""
    script = CKPT.ok("completion", "bash").out
    part = script.split(f"    {command})\n")[1].split("esac")[0]
    return set(re.search(rf"{option}\) words='(.*)' ;;", part)[1].split())


VALUES = [("inspect", "--color"), ("inspect", "--family"),
          ("inspect", "--from"), ("convert", "--to"), ("convert", "--io")]


def test_fish(folder):
    check_equal(set(fish(folder, "ckpt ")), set(commands()), "commands")
    offered = {word for word in fish(folder, "ckpt reshard --")
               if word.startswith("--")}
    check_equal(offered, long_options("reshard"), "options of reshard")
    for command, option in VALUES:
        check_equal(set(fish(folder, f"ckpt {command} a b {option} ")),
                    values_of(command, option), f"{command} {option}")


def test_zsh(folder):
    script = folder / "_ckpt"
    script.write_text(CKPT.ok("completion", "zsh").out)
    text = script.read_text()
    for command in commands():
        body = text.split(f"_ckpt_{command}() {{\n")[1].split("\n}\n")[0]
        check_equal(set(re.findall(r"'\*?(--[a-z][a-z-]*)\[", body)),
                    long_options(command), f"options of {command}")
    said = zsh(folder, "ckpt ", *(f"ckpt {name} --" for name in commands()),
               *(f"ckpt {command} a b {option} "
                 for command, option in VALUES))
    check_equal(said.pop(0), set(commands()), "commands")
    for command in commands():
        check_equal(said.pop(0), long_options(command), f"{command} --")
    for command, option in VALUES:
        check_equal(said.pop(0), values_of(command, option),
                    f"{command} {option}")


# ----------------------------------------------------------------- man pages
def plain(roff):
    return roff.replace("\\-", "-").replace("\\e", "\\").replace("\\&", "")


def test_man_pages(folder):
    CKPT.ok("man", "--dir", folder / "man1")
    pages = {page.stem: page for page in (folder / "man1").iterdir()}
    check_equal(set(pages), {"ckpt", *(f"ckpt-{c}" for c in commands())},
                "pages")
    for command in commands():
        text = pages[f"ckpt-{command}"].read_text()
        check_equal(text, CKPT.ok("man", command).out, "as it is printed")
        options = set(re.findall(r"^\.TP\n.*?\\fB(--[a-z-]+)\\fR", plain(text),
                                 re.M))
        check_equal(options, long_options(command), f"options of {command}")
    if not shutil.which("mandoc"):
        return
    for page in pages.values():
        run = subprocess.run(["mandoc", "-T", "lint", "-W", "warning", page],
                             capture_output=True, text=True, timeout=HANG)
        said = [line for line in run.stdout.splitlines()
                if "missing date" not in line]
        check(not said, f"{said}")


def test_environment(_):
    """Each of our variables that the program reads is in the manual."""
    text = plain(CKPT.ok("man").out)
    read = set()
    for room in ("lib", "api", "app", "reshard"):
        for path in (ROOT / room).rglob("*.cc"):
            read |= set(re.findall(r'"(CKPT_[A-Z_]+)"', path.read_text()))
    read = {name for name in read
            if not name.startswith("CKPT_CUDA") and name != "CKPT_VERSION"}
    check("CKPT_MODULE_PATH" in read, "the search found nothing")
    for name in sorted(read):
        check(name in text, f"{name} is not in ckpt(1)")


def test_settings(folder):
    """The command line comes first, then the environment, then a file."""
    config = folder / "ckpt" / "config"
    config.parent.mkdir()
    config.write_text("# of this site\n\nthreads = 3\n--max-mem=1MiB\n")

    def inspect(*options, **env):
        return CKPT.run("inspect", SAMPLE, *options,
                        env={"XDG_CONFIG_HOME": str(folder), **env})

    too_little = inspect()
    check_equal(too_little.code, 7, str(too_little))
    check(f"{config}:4 sets it" in too_little.err, too_little.err)
    check_equal(inspect(CKPT_MAX_MEM="64MiB").code, 0, "the environment")
    check_equal(inspect("--max-mem", "64MiB").code, 0, "the command line")
    check_equal(inspect("--max-mem", "64MiB", CKPT_MAX_MEM="1").code, 0,
                "before the environment")
    check_equal(inspect(CKPT_CONFIG="").code, 0, "no file")
    wrong = inspect(CKPT_MAX_MEM="lots")
    check(wrong.code == 2 and "CKPT_MAX_MEM=lots sets it" in wrong.err,
          str(wrong))
    missing = inspect(CKPT_CONFIG=str(folder / "none"))
    check(missing.code == 3 and "CKPT_CONFIG" in missing.err, str(missing))
    doctor = CKPT.ok("doctor", env={"XDG_CONFIG_HOME": str(folder),
                                    "CKPT_MAX_MEM": "64MiB"})
    check("max-mem=64MiB, threads=3" in doctor.out and str(config)
          in doctor.out, doctor.out)
    config.write_text("what\n")
    named = inspect().err.split("one a line, with ")[1].split("\n")[0]
    check(len(named.split(", ")) >= 7, named)
    for name in named.split(", "):
        variable = f"CKPT_{name.upper().replace('-', '_')}"
        config.write_text("threads = 1\n")
        wrong = inspect(**{variable: "nonsense"})
        check(wrong.code == 2 and f"{variable}=nonsense sets it" in wrong.err,
              f"{variable}: {wrong}")
        config.write_text(f"\n{name}: nonsense\n".replace(":", " ="))
        wrong = inspect()
        check(wrong.code == 2 and f"{config}:2 sets it" in wrong.err,
              f"{name}: {wrong}")
    for line in ("overwrite = 1", "to = dcp", "what", "threads =", "=3"):
        config.write_text(f"threads = 2\n{line}\n")
        bad = inspect()
        check(bad.code == 2 and f"{config}:2: " in bad.err, f"{line}: {bad}")


def test_mistakes(_):
    for argv, word in ((("man", "inpsect"), "inspect"),
                       (("completion", "tcsh"), "bash"),
                       (("inspect", "x", "--progress", "jsno"), "json")):
        result = CKPT.run(*argv)
        check(result.code == 2 and word in result.err,
              f"{argv}: {result.code} {result.err}")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for case in (test_bash_commands, test_bash_options, test_bash_values,
                 test_tensor_names, test_home, test_hostile_names,
                 test_words_are_accepted, test_fish, test_zsh,
                 test_man_pages, test_environment, test_settings,
                 test_mistakes):
        suite.add(case.__name__.removeprefix("test_"), case)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
