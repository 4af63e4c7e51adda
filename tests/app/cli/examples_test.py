#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The job scripts in examples/, run as their schedulers would run them.

A scheduler is a few variables and a shell: Slurm's are set here, Kubernetes'
arguments and GitHub's steps are read from their files, and the checkpoints that
result must be the same as the source.
"""

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
import types
import unittest.mock

from support import (
    DATA, HANG, HERE, Failure, Skip, Suite, check, check_equal, interrupt,
    until)

CKPT = None
ROOT = HERE.parent.parent
EXAMPLES = ROOT / "examples"
SOURCE = DATA / "fairseq2_native/qwen25_tp4dp1_mixed/ckpt"
STATUS_AGAIN = {0, 6}  # done, or worth retrying


def load_yaml(path):
    for extra in sorted((ROOT / ".venv").glob("transformers_*")):
        sys.path.append(str(extra))
    try:
        import yaml
    except ImportError as error:
        raise Skip("PyYAML is not to be had") from error
    return yaml.safe_load(path.read_text())


def environment(work, **more):
    """A PATH on which `ckpt` is the binary under test."""
    tools = work / "tools"
    tools.mkdir(exist_ok=True)
    link = tools / "ckpt"
    if not link.exists():
        link.symlink_to(os.path.abspath(CKPT.path))
    return {**os.environ, "PATH": f"{tools}:{os.environ['PATH']}", **more}


def run(argv, **more):
    return subprocess.run(argv, stdin=subprocess.DEVNULL,
                          capture_output=True, text=True, timeout=HANG, **more)


def done(argv, **more):
    result = run(argv, **more)
    check(result.returncode == 0,
          f"{argv} ended with {result.returncode}:\n{result.stderr[-2000:]}")
    return result


def same(a, b):
    done([CKPT.path, "verify", str(a), str(b)])


# --------------------------------------------------------------------- Slurm
def slurm_environment(work, task, restarts=0):
    log = work / "scontrol.log"
    fake = work / "tools" / "scontrol"
    env = environment(
        work, SLURM_ARRAY_TASK_ID=str(task), SLURM_ARRAY_JOB_ID="77",
        SLURM_CPUS_PER_TASK="2", SLURM_RESTART_COUNT=str(restarts))
    fake.write_text(f'#!/bin/sh\necho "$@" >>{shlex.quote(str(log))}\n')
    fake.chmod(0o755)
    return env, log


def slurm_array(work):
    targets = [work / f"out{n}" for n in (1, 2)]
    (work / "list").write_text(
        "".join(f"{SOURCE} {target}\n" for target in targets))
    script = ["bash", EXAMPLES / "slurm/array.sbatch", work / "list"]
    for task, target in enumerate(targets, 1):
        env, log = slurm_environment(work, task)
        done([*script, "--tp", "2"], env=env)
        same(SOURCE, target)
    # A restarted task finds its work done.
    again = done([*script, "--tp", "2"], env=env)
    check("already exists" in again.stderr, again.stderr)
    check(not log.exists(), "a task that was done was requeued")


def slurm_preempted(work):
    target = work / "out"
    (work / "list").write_text(f"{SOURCE} {target}\n")
    script = ["bash", EXAMPLES / "slurm/array.sbatch", work / "list",
              "--tp", "8"]
    env, log = slurm_environment(work, 1)
    first = subprocess.Popen([*map(str, script), "--max-rate", "1KB"],
                             env=env, stderr=subprocess.PIPE, text=True)
    until(lambda: list(work.glob(".out*")), "something is staged", first)
    interrupt(first, signal.SIGTERM)  # --signal=B:TERM@120
    _, said = first.communicate(timeout=HANG)
    check_equal(first.returncode, 143, f"status of the preempted task: {said}")
    check_equal(log.read_text(), "requeue 77_1\n", "what Slurm was told")
    check(not target.exists(), "a preempted task published something")
    env, log = slurm_environment(work, 1, restarts=1)
    done(script, env=env)
    same(SOURCE, target)
    check(not list(work.glob(".out*")), "the staging directory is left")


def slurm_refused(work):
    """What a retry can't fix is not retried."""
    (work / "list").write_text(f"{SOURCE} {work / 'out'}\n")
    env, log = slurm_environment(work, 1)
    result = run(["bash", EXAMPLES / "slurm/array.sbatch", work / "list",
                  "--tp", "7"], env=env)
    check_equal(result.returncode, 5, result.stderr)
    check(not log.exists(), "a task that can't succeed was requeued")


def slurm_ranks(work):
    """srun with one task; jobs with several are in ranks_test.py."""
    env = environment(work)
    fake = work / "tools" / "srun"
    fake.write_text('#!/bin/sh\nshift\nexec "$@"\n')
    fake.chmod(0o755)
    done(["bash", EXAMPLES / "slurm/ranks.sbatch", SOURCE, work / "hf", "--to",
          "safetensors"], env=env)
    same(SOURCE, work / "hf")


# ---------------------------------------------------------------- Kubernetes
def kubernetes(work):
    job = load_yaml(EXAMPLES / "kubernetes/job.yaml")
    pod = job["spec"]["template"]["spec"]
    container = pod["containers"][0]
    mount = container["volumeMounts"][0]["mountPath"]
    shutil.copytree(SOURCE, work / "step_5000")
    args = [arg.replace(mount, str(work)) for arg in container["args"]]
    for _ in range(2):  # a restarted pod succeeds too
        done([CKPT.path, *args])
    same(SOURCE, work / "step_5000_tp8")
    known = set(re.findall(r"^ *(\d+)  ", run([CKPT.path, "--help"]).stdout,
                           re.M))
    rule = job["spec"]["podFailurePolicy"]["rules"][0]["onExitCodes"]
    check_equal(set(rule["values"]), {int(n) for n in known} - STATUS_AGAIN,
                "exit statuses that end the job")
    check_equal(rule["containerName"], container["name"], "its container")
    check_equal(pod["volumes"][0]["name"],
                container["volumeMounts"][0]["name"], "its volume")


# ---------------------------------------------------------------------- make
def makefile(work):
    if not shutil.which("make"):
        raise Skip("no make")
    tree, out = work / "run", work / "models"
    for step in (100, 200):
        shutil.copytree(SOURCE / "step_100", tree / f"step_{step}")
    shutil.copy(SOURCE / "model.yaml", tree)
    for step in (100, 200):
        shutil.copy(SOURCE / "model.yaml", tree / f"step_{step}")
    argv = ["make", "-f", EXAMPLES / "make/Makefile", f"RUN={tree}",
            f"OUT={out}", f"CKPT={CKPT.path}"]
    done(argv, cwd=work)
    for step in (100, 200):
        proof = json.loads((out / f"step_{step}.same.json").read_text())
        check(proof["ok"], f"step {step}: {proof}")
    again = done(argv, cwd=work)
    check("convert" not in again.stdout, "make did it again: " + again.stdout)
    done([*argv, "verify"], cwd=work)


# -------------------------------------------------------------------- GitHub
def action_steps(work, **inputs):
    """Runs the composite action as a runner does; status, outputs, summary."""
    action = load_yaml(ROOT / "action.yml")
    values = {name: row.get("default", "") for name, row in
              action["inputs"].items()} | inputs
    paths = {name: work / name for name in ("GITHUB_OUTPUT",
                                            "GITHUB_STEP_SUMMARY")}
    for path in paths.values():
        path.write_text("")
    status = 0
    for step in action["runs"]["steps"]:
        check_equal(step["shell"], "bash", "the shell of " + step["name"])
        given = {key: re.sub(r"\$\{\{ inputs\.(\w+) \}\}",
                             lambda match: values[match[1]], value)
                 for key, value in step.get("env", {}).items()}
        check("${{" not in step["run"],
              "an input in a script is code that a stranger can write")
        env = environment(work, **given,
                          **{k: str(v) for k, v in paths.items()})
        status = status or run(
            ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c",
             step["run"]], env=env, cwd=work).returncode
    return (status, paths["GITHUB_OUTPUT"].read_text(),
            paths["GITHUB_STEP_SUMMARY"].read_text())


def action_good(work):
    status, outputs, summary = action_steps(work, path=str(SOURCE),
                                            against=str(SOURCE))
    check_equal(status, 0, summary)
    check_equal(outputs, "ok=true\n", "outputs")
    for part in ("### ckpt inspect", "format      fairseq2",
                 "no problems found", "0 differences"):
        check(part in summary, f"{part!r} is not in\n{summary}")


def action_bad(work):
    copy = work / "copy"
    shutil.copytree(SOURCE, copy)
    shard = next(copy.rglob("tp_02/*.pt"))
    shard.write_bytes(shard.read_bytes()[:-100])
    status, outputs, summary = action_steps(work, path=str(copy))
    check(status != 0, "a damaged checkpoint passed")
    check_equal(outputs, "ok=false\n", "outputs")
    check("tp_02" in summary, "the summary doesn't name the file: " + summary)


def action_installs(work):
    """Where the program is missing: installs the named wheel, and never what an
    index has under some name."""
    tools = work / "tools"
    tools.mkdir()
    pip = tools / "pip"
    pip.write_text(f'#!/bin/sh\necho "$@" >{work}/asked\n'
                   f'ln -s {shlex.quote(os.path.abspath(CKPT.path))} '
                   f'{tools}/ckpt.of.wheel\n')
    pip.chmod(0o755)
    for wheel in ("", "ckpt-reshard", "a b.tar.gz"):
        status, outputs, _ = action_steps(work, path=str(SOURCE),
                                          ckpt="ckpt.of.wheel", wheel=wheel)
        check_equal((status, outputs), (3, ""), f"wheel {wheel!r}")
        check(not (work / "asked").exists(), "pip was asked")
    for number, wheel in enumerate((
            "dist/a b.whl", "https://host/a.whl#sha256=" + 64 * "0")):
        status, outputs, _ = action_steps(work, path=str(SOURCE),
                                          ckpt="ckpt.of.wheel", wheel=wheel)
        check_equal((status, outputs), (0, "ok=true\n"), wheel)
        check_equal((work / "asked").read_text(),
                    f"install --quiet --no-deps -- {wheel}\n", "pip")
        (tools / "ckpt.of.wheel").unlink()


# ---------------------------------------------------------------- pre-commit
def pre_commit(work):
    hooks = {hook["id"]: hook
             for hook in load_yaml(ROOT / ".pre-commit-hooks.yaml")}
    evil = work / "evil.bin"
    evil.write_bytes(b"\x80\x04cos\nsystem\n(\x8c\x04truetR.")
    good = DATA / "safetensors/hf_sharded/ckpt"
    files = [str(path) for path in sorted(good.glob("*.safetensors"))]
    scan = hooks["ckpt-scan"]
    for path in [*files, str(evil)]:
        check(re.search(scan["files"], path), f"{path} would not be scanned")
    command = shlex.split(scan["entry"])
    env = environment(work)
    done([*command, *files], env=env)
    check_equal(run([*command, *files, str(evil)], env=env).returncode, 8,
                "status for a file that runs code")
    pickles = hooks["no-pickles"]
    for ending in ("pt", "bin", "pth", "ckpt", "pkl", "pickle", "joblib",
                   "distcp", "nemo", "PT"):
        for hook in (scan, pickles):
            check(re.search(hook["files"], f"a/model.{ending}"),
                  f"{hook['id']}: .{ending} may pass")
    for ending in ("npy", "npz"):  # pickles now and then
        check(re.search(scan["files"], f"a.{ending}"), f".{ending} may pass")
    check(not re.search(pickles["files"], files[0]), "safetensors may not")


# ------------------------------------------------------------- site's things
def version():
    return re.search(r"project\(ckpt VERSION ([0-9.]+)",
                     (ROOT / "CMakeLists.txt").read_text())[1]


# A module file in its own language, its directives noted.
INTERPRETERS = {
    "": (["tclsh"], "proc ModulesHelp {} {}; proc module-whatis args {}\n"
                    "proc conflict args {}\n"
                    "proc prepend-path args {puts [join \"prepend $args\"]}\n"
                    "proc append-path args {puts [join \"append $args\"]}\n"),
    ".lua": (["lua5.4", "-"],
             "function help() end function whatis() end\n"
             "function subprocess() return 'x86_64\\n' end\n"
             "function pathJoin(...) return table.concat({...}, '/') end\n"
             "function prepend_path(n, v) print('prepend ' .. n .. ' ' .. v) "
             "end\n"
             "function append_path(n, v) print('append ' .. n .. ' ' .. v) "
             "end\n")}


def loaded(ending, **env):
    """The variables after `module load` in a shell that has those."""
    argv, stubs = INTERPRETERS[ending]
    text = (EXAMPLES / f"modulefiles/{version()}{ending}").read_text()
    said = subprocess.run(argv, input=stubs + text, text=True, check=True,
                          capture_output=True,
                          env={"PATH": os.environ["PATH"], **env}).stdout
    for line in said.splitlines():
        way, name, value = line.split(" ")
        parts = [env[name]] if env.get(name) else []
        parts.insert(0 if way == "prepend" else len(parts), value)
        env[name] = ":".join(parts)
    return env


def module_files(_):
    """Lmod's and Environment Modules' files do the same, and a variable that
    replaces a default when it is set still has it."""
    root = f"/apps/ckpt/ckpt-{version()}-linux-x86_64"
    own = {"PATH": f"{root}/bin", "PYTHONPATH": f"{root}/share/ckpt/python",
           "CKPT_MODULE_PATH": f"{root}/lib",
           "XDG_DATA_DIRS": f"{root}/share:/usr/local/share:/usr/share"}
    tried = 0
    for ending, (argv, _stubs) in INTERPRETERS.items():
        if not shutil.which(argv[0]):
            continue
        tried += 1
        for given in ({}, {"MANPATH": "", "XDG_DATA_DIRS": ""}):
            got = {name: value for name, value in loaded(ending, **given).items()
                   if value}
            check_equal(got, own, f"what {ending or 'Tcl'} sets")
        check_equal(loaded(ending, MANPATH="/m:", XDG_DATA_DIRS="/d"),
                    {**own, "MANPATH": f"{root}/share/man:/m:",
                     "XDG_DATA_DIRS": f"{root}/share:/d"}, "what was set")
    if not tried:
        raise Skip("neither tclsh nor lua5.4")


# find_package and pkg_check_modules of CMakeLists.txt -> Spack's name.
SPACK = {"PkgConfig": "pkgconfig", "Threads": None, "ZLIB": "zlib-api",
         "fmt": "fmt", "spdlog": "spdlog", "CLI11": "cli11",
         "nlohmann_json": "nlohmann-json", "yaml-cpp": "yaml-cpp",
         "isal": "isa-l"}


class SpackRecipe:
    """Runs the recipe as Spack would, noting its directives. Before 1.0,
    spack.package has all that a recipe uses; since then, build systems are
    modules of another package."""

    DIRECTIVES = ("license", "version", "variant", "depends_on", "conflicts")
    BUILD_SYSTEM = ("CMakePackage", "generator")
    NEWER = ("spack_repo", "spack_repo.builtin",
             "spack_repo.builtin.build_systems",
             "spack_repo.builtin.build_systems.cmake")

    def __init__(self, recipe, since_1_0):
        self.said = []

        class CMakePackage:
            def define(self, name, value):
                return f"-D{name}={value}"

            def define_from_variant(this, name, variant):
                check(variant in self.named("variant"), f"no variant {variant}")
                return this.define(name, True)

        names = {name: self.note(name) for name in self.DIRECTIVES}
        build = {"CMakePackage": CMakePackage,
                 "generator": self.note("generator")}
        modules = {name: types.ModuleType(name)
                   for name in ("spack", "spack.package",
                                *(self.NEWER if since_1_0 else ()))}
        vars(modules["spack.package"]).update(names)
        vars(modules[self.NEWER[-1] if since_1_0 else
                     "spack.package"]).update(build)
        scope = {"__name__": "package"}
        with unittest.mock.patch.dict(sys.modules, modules):
            exec(compile(recipe, "package.py", "exec"), scope)
        self.arguments = scope["Ckpt"]().cmake_args()

    def note(self, directive):
        def noted(*values, **options):
            self.said.append((directive, values, options))
        return noted

    def named(self, directive):
        return [values[0] for name, values, _ in self.said if name == directive]


# Variants of others' recipes come and go: without them, no newer Spack refuses
# the recipe.
def spack(_):
    text = (EXAMPLES / "spack/packages/ckpt/package.py").read_text()
    old, new = (SpackRecipe(text, since) for since in (False, True))
    check_equal(new.said, old.said, "directives since Spack 1.0")
    check_equal(new.arguments, old.arguments, "cmake_args since Spack 1.0")
    specs = old.named("depends_on")
    for one in specs:
        check(re.fullmatch(r"[a-z0-9-]+(@[0-9.:]+)?", one),
              f"more than a name and versions: {one}")
    for _, _, options in old.said:
        when = options.get("when", "")
        check(not when or when[1:] in old.named("variant"),
              f"no such variant: {when}")
    has = {one.split("@")[0] for one in specs}
    cmake = (ROOT / "CMakeLists.txt").read_text()
    needs = re.findall(r"(?:find_package|pkg_check_modules)\((\S+) REQUIRED",
                       cmake)
    check(len(needs) >= 8, f"found only {needs} in CMakeLists.txt")
    for name in needs:
        if name not in SPACK:
            raise Failure(f"no Spack name is known for {name}")
        check(SPACK[name] is None or SPACK[name] in has,
              f"the Spack recipe lacks {SPACK[name]}")
    for argument in old.arguments:
        option = argument[2:].split("=")[0]
        check(option == "CKPT_TESTS" or
              option.removeprefix("CKPT_WITH_") in ("TORCH", "MPI", "CUDA",
                                                    "CURL"),
              f"no such option: {option}")


def clone(work, name):
    """The scripts and the demo's checkpoint as in a clean clone, with a build
    that puts the binary under test where the real build does."""
    top = work / name
    shutil.copytree(ROOT / "scripts", top / "scripts")
    shutil.copytree(SOURCE, top / SOURCE.relative_to(ROOT))
    (top / "scripts/build.sh").write_text(
        "#!/bin/sh\nmkdir -p build/bin && touch built &&\n"
        f"ln -sf {shlex.quote(os.path.abspath(CKPT.path))} build/bin/ckpt\n")
    return top


def demo_builds(work):
    """README's first command: before anything is built or packaged, with a dist
    folder that holds no package, and again after a build."""
    for name, dist in (("bare", False), ("dist", True)):
        top = clone(work, name)
        if dist:
            (top / "dist").mkdir()
            (top / "dist/notes.txt").write_text("")
        for _ in range(2):
            result = done([top / "scripts/demo.sh"], cwd=work)
            check(result.stdout.count("\n$ ckpt ") == 5,
                  f"not five commands:\n{result.stdout}")
        check((top / "built").exists(), "the demo built nothing")


def demo_unpacks(work):
    """A package in dist needs no build; the newest is taken."""
    top = clone(work, "clone")
    machine = os.uname().machine
    for version, works in (("0.9.0", False), ("0.10.0", True)):
        package = f"ckpt-{version}-linux-{machine}"
        tools = work / package / "bin"
        tools.mkdir(parents=True)
        (tools / "ckpt").symlink_to(
            os.path.abspath(CKPT.path) if works else "/bin/false")
        (top / "dist").mkdir(exist_ok=True)
        done(["tar", "-czf", top / f"dist/{package}.tar.gz", "-C", work,
              package])
    done([top / "scripts/demo.sh"])
    check(not (top / "built").exists(), "the demo built beside a package")


def demo_own(work):
    """Paths are relative to the caller, wherever the script is."""
    top = clone(work, "clone")
    shutil.copytree(SOURCE, work / "mine")
    done([top / "scripts/demo.sh", "mine", "out"], cwd=work)
    check((work / "out").is_dir() and (work / "out.safetensors").is_file(),
          "the demo left no out and out.safetensors")
    result = run([top / "scripts/demo.sh", "mine"], cwd=work)
    check_equal(result.returncode, 2, "one argument")


def release(work):
    """Stops where versions, changes or the tree aren't ready for a release, and
    before publishing: nothing is tagged or sent."""
    if not shutil.which("git"):
        raise Skip("no git")
    top = work / "clone"
    for part in ("scripts/release.sh", "scripts/common.sh", "CMakeLists.txt",
                 "examples/kubernetes/job.yaml",
                 *(f"examples/modulefiles/{version()}{end}"
                   for end in ("", ".lua"))):
        (top / part).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / part, top / part)
    stub = top / ".ci/packages"
    stub.parent.mkdir()
    stub.write_text('#!/bin/sh\necho "$@" >../asked\nmkdir dist && cd dist &&\n'
                    "echo x >a.whl && sha256sum a.whl >SHA256SUMS\n")
    stub.chmod(0o755)
    (top / ".gitignore").write_text("/dist/\n")
    changes = top / "CHANGELOG.md"

    def git(*words):
        return done(["git", "-c", "user.name=x", "-c", "user.email=x@x",
                     *words], cwd=top).stdout

    def publish(text, problem=""):
        changes.write_text(text)
        git("add", "-A")
        git("commit", "--allow-empty", "-qm", "x")
        result = run([top / "scripts/release.sh", "--skip-ci"])
        check_equal(result.returncode, 1 if problem else 0, result.stderr)
        check(problem in result.stderr, f"{problem!r}: {result.stderr}")
        return result

    git("init", "-q")
    own = f"## {version()}\n\n- a\n"
    publish("## Unreleased\n\n- b\n", "no section")
    publish("## Unreleased\n\n- b\n\n" + own, "under '## Unreleased'")
    check(not (work / "asked").exists(), "packages were made")
    said = publish("## Unreleased\n\n" + own)
    check_equal((work / "asked").read_text(), "--twice --aarch64\n", "packages")
    check(f"git tag -s v{version()}" in said.stdout, said.stdout)
    check_equal(git("tag"), "", "tags")
    (top / "new").write_text("")
    result = run([top / "scripts/release.sh", "--skip-ci"])
    check("the working tree has changes" in result.stderr, result.stderr)
    git("tag", f"v{version()}")
    publish(own, "is there already")


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for case in (slurm_array, slurm_preempted, slurm_refused, slurm_ranks,
                 kubernetes, makefile, action_good, action_bad, action_installs,
                 pre_commit, module_files, spack, demo_builds, demo_unpacks,
                 demo_own, release):
        suite.add(case.__name__, case)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
