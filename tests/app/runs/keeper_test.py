#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""`ckpt prune` and `ckpt watch`: what stays of a run, and that a command runs
once for each step, whatever is killed and when."""

import json
import os
import random
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from support import DATA, HANG, Suite, check, check_equal, interrupt, until

CKPT = SHIM = None
STEP = DATA / "runs/hf_trainer_qwen2/ckpt/checkpoint-10"


def make_step(root, number, losses=None, best=None):
    """A step of Hugging Face's Trainer, with what it notes of evaluations."""
    step = root / f"checkpoint-{number}"
    shutil.copytree(STEP, step)
    path = step / "trainer_state.json"
    state = json.loads(path.read_text()) | {"global_step": number}
    state["best_model_checkpoint"] = best
    state["log_history"] = [
        {"step": at, "epoch": at / 10, "eval_loss": loss,
         "eval_accuracy": 1 - loss / 10}
        for at, loss in sorted((losses or {}).items()) if at <= number]
    path.write_text(json.dumps(state))
    return step


def make_run(folder, numbers, **more):
    root = folder / "run"
    for number in numbers:
        make_step(root, number, **more)
    return root


def pruned(root, *words, code=0):
    result = CKPT.run("prune", root, *words, "--json").want(code)
    return json.loads(result.out)


def fates(report, fate):
    return [step["step"] for step in report["steps"] if step["fate"] == fate]


def numbers_in(root):
    return sorted(int(p.name.split("-")[1]) for p in root.iterdir()
                  if p.name.startswith("checkpoint-"))


LOSSES = {10: 3.0, 20: 1.5, 30: 1.0, 40: 1.25, 50: 2.0, 60: 2.5}
RULES = [
    (("--keep-last", "1"), {60}),
    (("--keep-last", "3"), {40, 50, 60}),
    (("--keep-last", "9"), {10, 20, 30, 40, 50, 60}),
    (("--keep-every", "20"), {20, 40, 60}),
    (("--keep-every", "25"), {50, 60}),
    (("--keep-last", "2", "--keep-every", "30"), {30, 50, 60}),
    (("--keep-best", "eval_loss"), {30, 60}),
    (("--keep-best", "loss"), {30, 60}),
    (("--keep-best", "eval_loss:max"), {10, 60}),
    (("--keep-best", "eval_accuracy"), {30, 60}),
    (("--keep-best", "eval_accuracy:min", "--keep-last", "1"), {10, 60}),
]


def test_rules(folder):
    """What each rule keeps; nothing goes before --delete, and with it exactly
    what was said, with as many bytes."""
    root = make_run(folder, LOSSES, losses=LOSSES)
    for words, stay in RULES:
        for more in ((), ("-n", "--delete")):
            said = pruned(root, *words, *more)
            check_equal(set(fates(said, "stays")), stay, str(words))
            check_equal(set(fates(said, "goes")), set(LOSSES) - stay, words)
        check_equal(numbers_in(root), sorted(LOSSES), "without --delete")
    before = sum(p.stat().st_size for p in root.rglob("*") if p.is_file())
    said = pruned(root, "--keep-last", "2", "--delete")
    after = sum(p.stat().st_size for p in root.rglob("*") if p.is_file())
    check_equal(fates(said, "deleted"), [10, 20, 30, 40], "deleted")
    check_equal(said["bytes"], before - after, "bytes")
    check_equal(sorted(p.name for p in root.iterdir()),
                ["checkpoint-50", "checkpoint-60"], "what is there")
    check_equal(fates(pruned(root, "--keep-last", "1", "--delete"), "stays"),
                [60], "again")
    check_equal(fates(pruned(root, "--keep-last", "1", "--delete"), "stays"),
                [60], "nothing is left to delete")


def links(root):
    (root / "latest").symlink_to("checkpoint-10")
    (root.parent / "newest").symlink_to(root / "checkpoint-20")
    (root / "latest_checkpointed_iteration.txt").write_text("30\n")
    (root / "best.txt").write_text('{"path": "/old/run/checkpoint-40"}')
    # From a step that stays, and from one that is kept by such a link.
    (root / "checkpoint-90/tokenizer").symlink_to(
        "../checkpoint-50/tokenizer.json")
    (root / "checkpoint-50/more").symlink_to("../checkpoint-60")
    # From one that goes: no reason.
    (root / "checkpoint-70/more").symlink_to("../checkpoint-80")
    return {10, 20, 30, 40, 50, 60, 90}


def incomplete(root):
    (root / "checkpoint-10/trainer_state.json").unlink()
    with open(root / "checkpoint-90/model.safetensors", "r+b") as file:
        file.truncate(100)
    return {10, 80, 90}


def elsewhere(root):
    """A step that is a link, and what is no step of this root."""
    other = root.parent / "other"
    (root / "checkpoint-10").rename(other)
    (root / "checkpoint-10").symlink_to(other)
    (root / "checkpoint-20").rename(root / "mine")
    (root / "checkpoint-30").rename(root / "checkpoint-x30")
    (root / "notes-5").mkdir()
    return {10, 90}


def best(root):
    path = root / "checkpoint-90/trainer_state.json"
    state = json.loads(path.read_text())
    state["best_model_checkpoint"] = "out/checkpoint-40"
    path.write_text(json.dumps(state))
    return {40, 90}


def test_kept(folder, change):
    """Never deleted, whatever the rules."""
    root = make_run(folder, range(10, 100, 10))
    outside = folder / "precious"
    outside.mkdir()
    (outside / "file").write_text("precious")
    # A link out of the root in a step that goes is removed, not followed.
    for step in root.iterdir():
        (step / "out").symlink_to(outside)
    stay = change(root)
    others = {p.name for p in root.iterdir()} - {
        f"checkpoint-{n}" for n in range(10, 100, 10)}
    said = pruned(root, "--keep-last", "1", "--delete")
    check_equal(set(fates(said, "stays")), stay, json.dumps(said))
    check_equal(set(numbers_in(root) if change is not elsewhere else stay),
                stay, "what is there")
    check(others <= {p.name for p in root.iterdir()}, "something else went")
    check_equal((outside / "file").read_text(), "precious", "outside")


def test_hard_links(folder):
    """A file that another step has as well frees nothing."""
    root = make_run(folder, (10, 20))
    shared = root / "checkpoint-20/model.safetensors"
    shared.unlink()
    os.link(root / "checkpoint-10/model.safetensors", shared)
    said = pruned(root, "--keep-last", "1", "--delete")
    check_equal(said["bytes"],
                sum(p.stat().st_size for p in STEP.rglob("*") if p.is_file())
                - STEP.joinpath("trainer_state.json").stat().st_size
                - shared.stat().st_size
                + len(json.dumps(json.loads(
                    (root / "checkpoint-20/trainer_state.json").read_text()))),
                "bytes")
    CKPT.ok("verify", root / "checkpoint-20")


def test_other_roots(folder):
    """Roots of no trainer that is known: steps that are named alike."""
    root = folder / "run"
    for number in (1, 2, 3):
        shutil.copytree(DATA / "dcp/fsdp2_w2_adamw/ckpt",
                        root / f"step{number}")
    (root / "latest").write_text("step1")
    said = pruned(root, "--keep-last", "1", "--delete")
    check_equal((fates(said, "stays"), fates(said, "deleted")), ([1, 3], [2]),
                "fates")


def test_mistakes(folder):
    root = make_run(folder, (10, 20), losses=LOSSES)
    for words, code, said in (
            ((root,), 2, "nothing says which steps to keep"),
            ((root, "--keep-last", "0"), 2, "'0': expected a number, 1 or more"),
            ((root, "--keep-every", "0"), 2, "'0': expected a number, 1 or more"),
            ((root, "--keep-last", "-1"), 2, "expected a number, 1 or more"),
            ((root, "--keep", "3"), 2,
             "did you mean --keep-last, --keep-every or --keep-best?"),
            ((root, "--keep-b", "loss"), 2, "did you mean --keep-best?"),
            ((root, "--keep-best", "bleu"), 2,
             "metrics there: eval_accuracy, eval_loss"),
            ((root, "--keep-best", "a:b"), 2, "expected METRIC"),
            ((folder / "no", "--keep-last", "1"), 3, "no such file"),
            ((root / "checkpoint-10", "--keep-last", "1"), 2, "not a root"),
            ((root / "checkpoint-10/config.json", "--keep-last", "1"), 2,
             "is a file"),
            (("s3://b/run", "--keep-last", "1"), 2, "not deleted")):
        done = CKPT.run("prune", *words, "--delete")
        check_equal(done.code, code, done.err)
        check(said in done.err, f"{said!r} is not in {done.err!r}")
    check_equal(numbers_in(root), [10, 20], "steps")


def readers_see(root):
    """Steps by the listing; each that is there is complete."""
    said = json.loads(CKPT.ok("ls", root, "--json").out)
    bad = [step for step in said["entries"] if not step["complete"]]
    check(not bad, f"half of a step is left: {bad}")
    return [step["step"] for step in said["entries"]]


def test_prune_faults(folder):
    """Each unlink, rename and flush fails once, and the process is killed at
    each: no reader sees half a step, and the same command finishes."""
    stops = ("5", "kill")
    count = 0
    for call in ("rename", "unlink", "rmdir", "fsync", "open", "readdir"):
        for at in (1, 2, 3, 5, 9, 17):
            for stop in stops:
                place = folder / f"{call}{at}{stop}"
                root = make_run(place, (10, 20, 30))
                env = {**os.environ, "LD_PRELOAD": str(SHIM),
                       "FAULTS_ROOT": str(root)}
                env["FAULTS"] = f"{call}@{at}={stop}"
                done = subprocess.run(
                    [CKPT.path, "prune", root, "--keep-last", "1", "--delete"],
                    env=env, capture_output=True, text=True, timeout=HANG,
                    check=False)
                count += done.returncode != 0
                check(done.returncode in (0, 6, -9), done.stderr)
                check(30 in readers_see(root), "the newest went")
                pruned(root, "--keep-last", "1", "--delete")
                # A lock that could not be removed is empty, and in nobody's way.
                check_equal([p.name for p in root.iterdir()
                             if not p.name.endswith(".ckpt-lock")],
                            ["checkpoint-30"], f"{call} {at} {stop}")
                shutil.rmtree(place)
    check(count > 10, f"only {count} runs failed")


def test_prune_killed(folder):
    """Killed at random moments."""
    draw = random.Random(0)
    for number in range(20):
        root = make_run(folder / f"{number}", range(10, 80, 10))
        child = subprocess.Popen([CKPT.path, "prune", root, "--keep-last", "1",
                                  "--delete"], stdout=subprocess.DEVNULL)
        time.sleep(draw.random() * 0.1)  # noqa: TID251  until it is killed
        child.kill()
        child.wait()
        check(70 in readers_see(root), "the newest went")
        pruned(root, "--keep-last", "1", "--delete")
        check_equal([p.name for p in root.iterdir()], ["checkpoint-70"],
                    "what is left")


# -------------------------------------------------------------------- watch
NOTER = """import os, sys, time
log, name, pause = sys.argv[1:4]
with open(log, "a") as file:
    file.write("begin " + name + "\\n")
time.sleep(float(pause))
with open(log, "a") as file:
    file.write("end " + name + "\\n")
"""


def watch_words(root, state, do, *more):
    return [CKPT.path, "watch", root, "--state", state, "--settle", "0",
            "--do", do, *more]


def noter(folder, pause=0.0):
    script = folder / "noter.py"
    script.write_text(NOTER)
    return f"{sys.executable} {script} {folder}/log {{name}} {pause}"


def log_of(folder):
    path = folder / "log"
    return path.read_text().split("\n")[:-1] if path.exists() else []


def once(root, state, do, *more, code=0):
    done = subprocess.run(watch_words(root, state, do, "--once", "--json",
                                      *more),
                          capture_output=True, text=True, timeout=HANG,
                          check=False)
    check_equal(done.returncode, code, done.stderr)
    return json.loads(done.stdout)


def test_once(folder):
    """Each complete step, in order, once; new ones next time."""
    root = make_run(folder, (30, 100, 20))
    (root / "checkpoint-100/trainer_state.json").unlink()
    do = noter(folder)
    said = once(root, folder / "state", do)
    check_equal([(s["step"], s["result"]) for s in said["steps"]],
                [(20, "done"), (30, "done")], "first")
    make_step(root, 110)
    said = once(root, folder / "state", do)
    check_equal([s["step"] for s in said["steps"]], [110], "second")
    check_equal(once(root, folder / "state", do)["steps"], [], "third")
    check_equal(log_of(folder), [
        f"{what} checkpoint-{n}" for n in (20, 30, 110)
        for what in ("begin", "end")], "what ran")


def test_words(folder):
    """The command gets the words that a shell would give it, with the names
    inside; nothing else is expanded."""
    root = make_run(folder, (10,))
    tell = folder / "tell.py"
    tell.write_text("import json, sys\n"
                    f"json.dump(sys.argv[1:], open('{folder}/words', 'w'))\n")
    line = (f"{sys.executable} {tell} {{step}}/x 'a  b' \"c'd\" e\\ f $HOME * "
            "\"g\\\"h\" {root}{name} '{ other}' ${other} {} ''")
    shown = CKPT.ok("watch", root, "--state", folder / "s", "--do", line, "-n")
    check(not (folder / "s").exists(), "a dry run left a state")
    want = [f"{root}/checkpoint-10/x", "a  b", "c'd", "e f", "$HOME", "*",
            'g"h', f"{root}checkpoint-10", "{ other}", "${other}", "{}", ""]
    check_equal(shlex.split(shown.out)[2:], want, "what -n shows")
    once(root, folder / "s", line)
    check_equal(json.loads((folder / "words").read_text()), want, "what came")


def test_failures(folder):
    """A command that fails is run again next time, so often and no more; a step
    that is not as it should be is not taken."""
    root = make_run(folder, (10, 20))
    flag, do = folder / "ok", f"sh -c 'test -e {folder}/ok'"
    got = [once(root, folder / "s", do, "--tries", "2", code=1)
           for _ in range(3)]
    check_equal([[s["result"] for s in one["steps"]] for one in got],
                [["failed"] * 2, ["given_up"] * 2, ["given_up"] * 2], "results")
    check_equal([one["steps"][0]["tries"] for one in got], [1, 2, 2], "tries")
    check_equal(got[0]["steps"][0]["status"], 1, "status")
    check(got[2]["steps"][0]["why"].endswith("in 2 tries"), str(got[2]))
    flag.touch()
    said = once(root, folder / "s", do, "--tries", "3")
    check_equal([s["result"] for s in said["steps"]], ["done"] * 2, "more")
    weights = make_step(root, 30) / "model.safetensors"
    whole = weights.read_bytes()
    weights.write_bytes(whole[:-8])
    said = once(root, folder / "s", do, code=1)
    check_equal([(s["step"], s["result"]) for s in said["steps"]],
                [(30, "not_verified")], "cut short")
    weights.write_bytes(whole)
    said = once(root, folder / "s", do)
    check_equal([(s["step"], s["result"]) for s in said["steps"]],
                [(30, "done")], "whole")


def test_convert(folder):
    """What the command is for: each step converted, by this very program, with
    the line that the guide and the help have."""
    make_run(folder, (10, 20))
    guide = (DATA.parents[1] / "docs/guides/keeper.md").read_text()
    line = next(line for line in guide.split("\n") if "watch run" in line)
    check(line in CKPT.ok("watch", "--help").out, f"{line!r} is not in --help")
    words = shlex.split(line)[1:]
    done = subprocess.run(
        [CKPT.path, *words, "--once", "--settle", "0", "--state", "state"],
        cwd=folder, capture_output=True, text=True, timeout=HANG, check=False)
    check_equal(done.returncode, 0, done.stderr)
    for number in (10, 20):
        CKPT.ok("verify", folder / f"checkpoint-{number}-hf")


MODEL = DATA / "safetensors/hf_sharded/ckpt"


def models(root):
    """Plain models, named like steps."""
    for number in (10, 20):
        shutil.copytree(MODEL, root / f"step_{number}")
    return root


def model_files(root):
    root.mkdir()
    source = DATA / "torch_legacy/tar/ckpt/old.pth"
    for number in (10, 20):
        shutil.copy(source, root / f"step_{number}.pt")
    return root


def one_model(root):
    shutil.copytree(MODEL, root)
    return root


def one_step(root):
    return make_step(root, 10)


def unsigned_step(root):
    (make_step(root, 10) / "trainer_state.json").unlink()
    return root


def test_no_root(folder, make):
    """What holds checkpoints but no steps is refused, as prune does, whether it
    is watched once or on and on; nothing is left behind."""
    root = make(folder / "run")
    prune = CKPT.run("prune", root, "--keep-last", "1")
    check(prune.code != 0, prune.out)
    for more in (["--once"], ["-n"], []):
        done = subprocess.run(
            watch_words(root, folder / "state", "true {step}", *more),
            capture_output=True, text=True, timeout=HANG, check=False)
        check_equal(done.returncode, prune.code, done.stderr)
        check_equal([line for line in done.stderr.split("\n")
                     if not line.startswith("note:")],
                    prune.err.split("\n"), "what is said")
    if make in (models, model_files, unsigned_step):
        check_equal(CKPT.run("ls", root).err, prune.err, "what ls says")


def test_not_begun(folder):
    """A run that has not saved yet is one, whatever else is in its folder."""
    root = folder / "run"
    for name in (".", "logs", "checkpoint-10"):
        (root / name).mkdir(parents=True, exist_ok=True)
        check_equal(once(root, folder / "s", "true {step}")["steps"], [], name)
    for name in ("config.json", "logs/events.out", "checkpoint-10/config.json"):
        (root / name).write_text("{}")
        check_equal(once(root, folder / "s", "true {step}")["steps"], [], name)


def test_first_save(folder):
    """The very first save, before its trainer has signed it, is no reason to
    refuse the folder, nor is it taken."""
    root = unsigned_step(folder / "run")
    words = [*watch_words(root, folder / "s", noter(folder)), "--once", "--json"]
    words[words.index("--settle") + 1] = "3"
    child = subprocess.Popen(words, stdout=subprocess.PIPE,
                             stderr=subprocess.PIPE, text=True)
    until(lambda: (folder / "s.ckpt-lock").exists() or
          list(folder.glob(".s*")), "it began", child)
    check(child.poll() is None, "it ended")
    shutil.copy(STEP / "trainer_state.json", root / "checkpoint-10")
    out, err = child.communicate(timeout=HANG)
    check_equal(child.returncode, 0, err)
    check_equal([(s["step"], s["result"]) for s in json.loads(out)["steps"]],
                [(10, "done")], "steps")


def test_same_command(folder):
    """Whoever forgets the step's name is told."""
    root = make_run(folder, (10,))
    for do, told in (("true {step}", False), ("true x{name}y", False),
                     ("true", True), ("true {root}", True)):
        done = CKPT.run("watch", root, "--state", folder / "s", "--do", do, "-n")
        check_equal("the same for every step" in done.err, told, done.err)


def test_watch_mistakes(folder):
    root = make_run(folder, (10,))
    (folder / "text").write_text("{}")
    once(root, folder / "state", "true")
    make_step(folder / "second", 10)
    for words, code, said in (
            ((root,), 2, "--do"),
            ((root, "--do", ""), 2, "the command is empty"),
            ((root, "--do", "a 'b"), 2, "has no end"),
            ((root, "--do", "no-such-program"), 2, "no program"),
            ((root, "--do", "echo {stp}"), 2, "{step}, {name} and {root}"),
            ((root, "--do", "echo x{step}{Name}"), 2, "has {Name}"),
            ((root, "--do", "echo {step", "--tries", "0"), 2, "a number, 1 or more"),
            ((folder / "no", "--do", "true"), 3, "no such directory"),
            ((root, "--do", "true", "--interval", "x"), 2, "--interval"),
            ((root, "--do", "true", "--state", folder / "text"), 4, "schema"),
            ((folder / "second", "--do", "true", "--state",
              folder / "state"), 2, "is the state of a watch of")):
        done = CKPT.run("watch", *words, "--once")
        check_equal(done.code, code, done.err)
        check(said in done.err, f"{said!r} is not in {done.err!r}")


def test_follow(folder):
    """Without --once: steps that come later, soon after they come; another
    watch with its state is refused; SIGINT ends it with 130."""
    root = folder / "run"
    root.mkdir()
    words = watch_words(root, folder / "s", noter(folder), "--interval", "1h",
                        "--json")
    with open(folder / "out", "w") as out:
        child = subprocess.Popen(words, stdout=out, stderr=subprocess.PIPE,
                                 text=True)
    for count, number in enumerate((10, 20, 30), 1):
        draft = make_step(folder / "drafts", number)
        time.sleep(0.2)  # noqa: TID251  a trainer's pause
        draft.rename(root / draft.name)
        until(lambda c=count: len(log_of(folder)) >= 2 * c, "it ran", child)
    other = subprocess.run([*words, "--once"], capture_output=True, text=True,
                           timeout=HANG, check=False)
    check_equal(other.returncode, 6, other.stderr)
    interrupt(child)
    check_equal(child.wait(HANG), 130, child.stderr.read())
    check_equal([json.loads(line)["steps"][0]["step"]
                 for line in (folder / "out").read_text().splitlines()],
                [10, 20, 30], "documents")


def test_interrupted(folder):
    """SIGINT reaches the command; what it stopped is run again."""
    root = make_run(folder, (10, 20))
    words = watch_words(root, folder / "s", noter(folder, HANG), "--once")
    child = subprocess.Popen(words, stdout=subprocess.DEVNULL,
                             stderr=subprocess.PIPE, text=True)
    until(lambda: log_of(folder), "it began", child)
    interrupt(child)
    check_equal(child.wait(HANG), 130, child.stderr.read())
    once(root, folder / "s", noter(folder))
    check_equal(log_of(folder), ["begin checkpoint-10"] + [
        f"{what} checkpoint-{n}" for n in (10, 20)
        for what in ("begin", "end")], "what ran")


def test_killed(folder):
    """Killed at 50 random moments, the watch loses and repeats nothing."""
    draw = random.Random(1)
    numbers = list(range(1, 26))
    root = make_run(folder, numbers)
    do = noter(folder, 0.02)
    words = watch_words(root, folder / "s", do, "--once")
    kills = 0
    for number in range(50):
        if number % 2 == 0:
            numbers.append(100 + number)
            make_step(root, 100 + number)
        child = subprocess.Popen(words, stdout=subprocess.DEVNULL,
                                 stderr=subprocess.DEVNULL)
        time.sleep(draw.random() * 0.25)  # noqa: TID251  until it is killed
        kills += child.poll() is None
        child.kill()
        child.wait()
    once(root, folder / "s", do)
    check(kills > 20, f"{kills} kills")
    check_equal(log_of(folder), [
        f"{what} checkpoint-{n}" for n in numbers
        for what in ("begin", "end")], "what ran")


def test_keeper_killed(folder):
    """Killed together with the process that keeps its command, it knows that
    the command did not end, and runs it again."""
    root = make_run(folder, (10,))
    words = watch_words(root, folder / "s", noter(folder, HANG), "--once")
    child = subprocess.Popen(words, stdout=subprocess.DEVNULL,
                             stderr=subprocess.DEVNULL)
    until(lambda: log_of(folder), "it began", child)
    keeper = int(subprocess.run(["pgrep", "-P", str(child.pid)],
                                capture_output=True, text=True,
                                check=True).stdout)
    child.kill()
    child.wait()
    os.killpg(keeper, signal.SIGKILL)
    once(root, folder / "s", noter(folder))
    check_equal(log_of(folder), ["begin checkpoint-10", "begin checkpoint-10",
                                 "end checkpoint-10"], "what ran")


def prepare(suite, ckpt):
    global CKPT, SHIM
    CKPT = ckpt
    SHIM = Path(ckpt.path).parent / "libckpt_faults.so"
    for change in (links, incomplete, elsewhere, best):
        suite.add(f"kept: {change.__name__}", test_kept, change)
    for make in (models, model_files, one_model, one_step, unsigned_step):
        suite.add(f"no root: {make.__name__}", test_no_root, make)
    for case in (test_rules, test_hard_links, test_other_roots, test_mistakes,
                 test_prune_killed, test_once, test_words, test_failures,
                 test_convert, test_not_begun, test_first_save,
                 test_same_command, test_watch_mistakes, test_follow,
                 test_interrupted, test_killed, test_keeper_killed):
        suite.add(case.__name__, case)
    if SHIM.exists():
        suite.add("test_prune_faults", test_prune_faults)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
