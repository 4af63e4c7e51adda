#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The packages in dist/, installed where users install them.

    packages_test.py --dist dist [--roots DIR | --arch ARCH]

--roots has one userland a directory, as debootstrap makes them; entering one
needs root. None of them has a compiler. --arch tries those of another processor
by qemu-user. Needs Python's standard library alone.
"""

import argparse
import hashlib
import json
import os
import re
import shlex
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
DATA = ROOT / "tests" / "data"
SAMPLES = {"fairseq2": DATA / "fairseq2_native/qwen25_tp4dp1_mixed/ckpt",
           "hf": DATA / "safetensors/hf_sharded/ckpt"}
GLIBC = (2, 28)

NO_COMPILER = r"""
for tool in cc c++ gcc clang; do
  if command -v $tool; then exit 1; fi
done
"""
# Run by a shell where ckpt is on the PATH and the samples lie in $SAMPLES.
FIRST_ANSWERS = r"""
set -eu
cd "$(mktemp -d)"
ckpt inspect "$SAMPLES/fairseq2" | grep -q 'format      fairseq2'
ckpt inspect "$SAMPLES/fairseq2" --stats --json | grep -q '"mean"'
ckpt reshard "$SAMPLES/fairseq2" tp8 --tp 4:8 --quiet
ckpt verify tp8
ckpt verify "$SAMPLES/fairseq2" tp8 | grep identical
ckpt convert tp8 hf --to safetensors --dtype f32 --quiet
ckpt verify "$SAMPLES/fairseq2" hf --rtol 0 --atol 0
ckpt inspect hf --digest --json >/dev/null
ckpt scan "$SAMPLES/fairseq2" >/dev/null
status=0
ckpt verify "$SAMPLES/nothing" 2>/dev/null || status=$?
test $status = 3
"""
SHELL_THINGS = r"""
set -eu
test -s "$PREFIX/share/man/man1/ckpt-convert.1"* 
test -s "$PREFIX/share/bash-completion/completions/ckpt"
bash -c '. "$1"; COMP_WORDS=(ckpt resh); COMP_CWORD=1; _ckpt
  test "${COMPREPLY[0]}" = reshard' - \
  "$PREFIX/share/bash-completion/completions/ckpt"
"""


class Skip(Exception):
    """What can't be tried here, and why."""


def run(argv, **more):
    done = subprocess.run([str(arg) for arg in argv], capture_output=True,
                          text=True, timeout=600, **more)
    if done.returncode != 0:
        raise AssertionError(f"{argv[:6]} ended with {done.returncode}:\n"
                             f"{(done.stdout + done.stderr)[-3000:]}")
    return done.stdout


def sha256(path):
    return hashlib.sha256(path.read_bytes()).hexdigest()


class Packages:
    def __init__(self, dist, arch):
        deb = {"x86_64": "amd64", "aarch64": "arm64"}[arch]
        self.dist = dist
        self.arch = arch
        self.wheel = self.one(f"*{arch}.whl")
        self.archive = self.one(f"*{arch}.tar.gz")
        self.deb = self.one(f"*_{deb}.deb")
        self.sbom = self.one(f"ckpt-{arch}.spdx.json")

    def one(self, pattern):
        found = sorted(self.dist.glob(pattern))
        assert len(found) == 1, f"{pattern} in {self.dist}: {found}"
        return found[0]


# ---------------------------------------------------------- what is in them
def contents(packages, _):
    """All of them bring the same binary; names and modes are in order."""
    with zipfile.ZipFile(packages.wheel) as wheel:
        assert wheel.testzip() is None
        binary = [n for n in wheel.namelist() if n.endswith("scripts/ckpt")]
        in_wheel = wheel.read(binary[0])
        names = wheel.namelist()
        # The same to read as in the archive: `pip install --user` puts it where
        # shells and man look.
        for part in ("man/man1/ckpt.1", "bash-completion/completions/ckpt",
                     "zsh/site-functions/_ckpt",
                     "fish/vendor_completions.d/ckpt.fish"):
            assert any(name.endswith(".data/data/share/" + part)
                       for name in names), f"the wheel lacks {part}"
        for row in csv_rows(wheel):
            if row[1]:
                assert row[0] in names, row
    with tarfile.open(packages.archive) as archive:
        rows = {row.name.split("/", 1)[1]: row for row in archive}
        in_archive = archive.extractfile(rows["bin/ckpt"]).read()
        assert rows["bin/ckpt"].mode == 0o755
        assert {row.uname for row in rows.values()} == {"root"}
        assert len({row.mtime for row in rows.values()}) == 1
    assert in_wheel == in_archive, "wheel and archive have other binaries"
    listing = run(["dpkg-deb", "-c", packages.deb])
    for part in ("./usr/bin/ckpt", "man1/ckpt.1.gz", "vendor-completions/_ckpt",
                 "THIRD-PARTY.txt", "./usr/lib/libckpt.so"):
        assert part in listing, f"the .deb lacks {part}"
    assert len(in_wheel) <= 12_000_000, f"{len(in_wheel)} bytes"


def csv_rows(wheel):
    record = [n for n in wheel.namelist() if n.endswith("/RECORD")][0]
    return [line.split(",") for line in
            wheel.read(record).decode().splitlines()]


def sbom(packages, _):
    """Names each pinned source once, and the binary by its hash."""
    document = json.loads(packages.sbom.read_text())
    assert document["spdxVersion"] == "SPDX-2.3"
    by_id = {p["SPDXID"]: p for p in document["packages"]}
    assert len(by_id) == len(document["packages"]), "an id stands twice"
    for relation in document["relationships"]:
        for end in ("spdxElementId", "relatedSpdxElement"):
            assert relation[end] in by_id or \
                relation[end] == "SPDXRef-DOCUMENT", relation
    with tarfile.open(packages.archive) as archive:
        name = next(n for n in archive.getnames() if n.endswith("bin/ckpt"))
        binary = archive.extractfile(name).read()
    assert by_id["SPDXRef-ckpt"]["checksums"][0]["checksumValue"] == \
        hashlib.sha256(binary).hexdigest()
    text = packages.sbom.read_text()
    pinned = (ROOT / "packaging/sources.sha256").read_text().splitlines()
    for line in pinned:
        assert line.split()[0] in text, f"not in the SBOM: {line}"


def checksums(packages, _):
    for line in (packages.dist / "SHA256SUMS").read_text().splitlines():
        digest, name = line.split("  ")
        assert sha256(packages.dist / name) == digest, name


def packed_again(packages, work):
    """Packing the same stage again makes the same bytes."""
    arch = packages.arch
    own = arch == os.uname().machine  # as scripts/package.sh names it
    build = ROOT / ("build-portable" if own else f"build-portable-{arch}")
    if not (build / "stage").is_dir():
        raise Skip(f"no {build.name}/stage")
    with tarfile.open(packages.archive) as archive:
        stamp = str(int(next(iter(archive)).mtime))
    run([sys.executable, ROOT / "packaging/pack.py", "--stage",
         build / "stage", "--arch", arch, "--sbom", build / "ckpt.spdx.json",
         "--notices", build / "THIRD-PARTY.txt", "--out", work],
        env={**os.environ, "SOURCE_DATE_EPOCH": stamp})
    for path in (packages.wheel, packages.archive, packages.deb):
        assert sha256(path) == sha256(work / path.name), path.name


# ------------------------------------------------------------ where they run
def wheel(packages, work):
    """pip install in a fresh venv: command, package and library."""
    began = time.monotonic()
    run([sys.executable, "-m", "venv", work / "venv"])
    ready = time.monotonic()
    run([work / "venv/bin/pip", "install", "--no-index", "--no-deps", "--quiet",
         packages.wheel])
    python = work / "venv/bin/python"
    clean = {"PATH": f"{work / 'venv/bin'}:/usr/bin:/bin",
             "SAMPLES": str(DATA)}
    run([work / "venv/bin/ckpt", "inspect", SAMPLES["hf"]], env=clean)
    print(f"  wheel: first answer {time.monotonic() - ready:.1f} s after the "
          f"venv, which took {ready - began:.1f} s")
    program = f"""
import ckpt
with ckpt.open({str(SAMPLES["hf"])!r}) as c:
    name = sorted(c)[0]
    array = c[name][...]
    print(ckpt.version(), name, bytes(array.bytes).hex() or "-")
assert ckpt.verify({str(SAMPLES["hf"])!r}).ok
"""
    version, name, bits = run([python, "-c", program], env=clean).split()
    assert bits == stored(SAMPLES["hf"], name), f"{name}: other bytes"
    assert version in run([work / "venv/bin/ckpt", "--version"], env=clean)
    assert "usage" in run([python, "-m", "ckpt", "--help"], env=clean)
    run([work / "venv/bin/pip", "uninstall", "-y", "-q", "ckpt-reshard"])
    assert not (work / "venv/bin/ckpt").exists(), "uninstall left the command"


def stored(directory, name):
    """The bytes of a tensor of safetensors files, in hexadecimal."""
    for path in sorted(directory.glob("*.safetensors")):
        data = path.read_bytes()
        size = struct.unpack("<Q", data[:8])[0]
        row = json.loads(data[8:8 + size]).get(name)
        if row:
            begin, end = row["data_offsets"]
            return data[8 + size + begin:8 + size + end].hex()
    return None


def glibc_of(userland):
    libraries = [p for p in userland.glob("lib/*/libc.so.6")] + \
        [p for p in userland.glob("lib/*/libc-2.*.so")]
    for path in libraries:
        found = re.search(rb"GNU C Library [^\n]*version (\d+)\.(\d+)",
                          path.read_bytes())
        if found:
            return int(found[1]), int(found[2])
    return None


def in_chroot(userland, script, **variables):
    chroot = shutil.which("chroot", path="/usr/sbin:/sbin:/usr/bin:/bin")
    return run([chroot, userland, "/bin/sh", "-c", script],
               env={"PATH": "/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin",
                    "LC_ALL": "C", **variables})


class Userland:
    """A copy of the samples and a package in a root, gone afterwards."""

    def __init__(self, path):
        if os.geteuid() != 0:
            raise Skip("chroot needs root")
        self.path = path
        self.samples = path / "tmp/samples"

    def __enter__(self):
        for name, sample in SAMPLES.items():
            shutil.copytree(sample, self.samples / name)
        return self

    def __exit__(self, *_):
        shutil.rmtree(self.samples, ignore_errors=True)

    def answers(self, **variables):
        return in_chroot(self.path, NO_COMPILER + FIRST_ANSWERS,
                         SAMPLES="/tmp/samples", **variables)


def archive(packages, _, path):
    with Userland(path) as userland:
        began = time.monotonic()
        target = path / "opt/ckpt"
        try:
            target.mkdir(parents=True)
            run(["tar", "-xzf", packages.archive, "-C", target,
                 "--strip-components=1"])
            in_chroot(path, "/opt/ckpt/bin/ckpt inspect /tmp/samples/hf")
            print(f"  {path.name} (glibc {glibc_of(path)}), .tar.gz: first "
                  f"answer after {time.monotonic() - began:.1f} s")
            userland.answers(PATH="/opt/ckpt/bin:/usr/bin:/bin")
            in_chroot(path, SHELL_THINGS, PREFIX="/opt/ckpt")
        finally:
            shutil.rmtree(target, ignore_errors=True)


def deb(packages, _, path):
    with Userland(path) as userland:
        shutil.copy(packages.deb, path / "tmp/ckpt.deb")
        try:
            began = time.monotonic()
            in_chroot(path, "dpkg -i /tmp/ckpt.deb")
            in_chroot(path, "ckpt inspect /tmp/samples/hf")
            print(f"  {path.name}, .deb: first answer after "
                  f"{time.monotonic() - began:.1f} s")
            userland.answers()
            # Minimal images leave out man pages (dpkg's path-exclude).
            in_chroot(path, "test -s /usr/share/bash-completion/completions/"
                            "ckpt && test -x /usr/bin/ckpt")
        finally:
            in_chroot(path, "dpkg -r ckpt 2>&1; rm -f /tmp/ckpt.deb")
        assert not (path / "usr/bin/ckpt").exists(), "dpkg -r left the command"


def too_old(packages, _, path):
    """A glibc that is older than promised: runs, or says what it lacks."""
    target = path / "tmp/ckpt"
    with tarfile.open(packages.archive) as tar:
        name = next(n for n in tar.getnames() if n.endswith("bin/ckpt"))
        target.write_bytes(tar.extractfile(name).read())
    target.chmod(0o755)
    try:
        done = subprocess.run(["/usr/sbin/chroot", path, "/tmp/ckpt", "--version"],
                              capture_output=True, text=True)
        print(f"  {path.name} (glibc {glibc_of(path)}), not promised: "
              + ("runs" if done.returncode == 0 else done.stderr.strip()[:90]))
        assert done.returncode == 0 or "GLIBC_" in done.stderr, done.stderr
    finally:
        target.unlink()


def dockerfile(packages, work, path):
    """What the Dockerfile says, done to a root of the same distribution."""
    lines = re.sub(r"\\\n", " ", (ROOT / "packaging/Dockerfile").read_text())
    if not path.is_dir():
        raise Skip("no root of bookworm")
    image = work / "image"
    run(["cp", "-a", path, image])
    config = {}
    for line in lines.splitlines():
        if not line.strip() or line.startswith("#"):
            continue
        word, rest = line.split(" ", 1)
        if word == "FROM":
            assert rest == "debian:bookworm-slim", rest
        elif word == "RUN" and "apt-get" not in rest:  # no network in there
            in_chroot(image, rest)
        elif word == "COPY":
            pattern, place = rest.replace("${TARGETARCH}", "amd64").split()
            found = list(packages.dist.glob(pattern))
            assert found, f"COPY {pattern}: not in {packages.dist}"
            for source in found:
                shutil.copy(source, image / place.lstrip("/"))
        else:
            config[word] = rest
    entry = json.loads(config["ENTRYPOINT"])
    user = config["USER"]
    shutil.copytree(SAMPLES["fairseq2"], image / "checkpoints/in")
    os.chmod(image / "checkpoints", 0o777)
    said = in_chroot(image, f"cd {config['WORKDIR']} && setpriv --reuid {user} "
                     "--clear-groups " + shlex.join(
                         [*entry, "reshard", "in", "out", "--tp", "2"]))
    assert not said
    in_chroot(image, "ckpt verify /checkpoints/in /checkpoints/out")
    in_chroot(image, shlex.join([*entry, *json.loads(config["CMD"])]))


def start_time(packages, work):
    """The median of 50 starts."""
    with tarfile.open(packages.archive) as tar:
        name = next(n for n in tar.getnames() if n.endswith("bin/ckpt"))
        (work / "ckpt").write_bytes(tar.extractfile(name).read())
    (work / "ckpt").chmod(0o755)
    times = []
    for _ in range(50):
        began = time.monotonic()
        subprocess.run([work / "ckpt", "--help"], stdout=subprocess.DEVNULL,
                       check=True)
        times.append(time.monotonic() - began)
    median = sorted(times)[25] * 1000
    print(f"  start: {median:.1f} ms, the binary "
          f"{(work / 'ckpt').stat().st_size / 1e6:.1f} MB")
    assert median < 50, f"{median} ms"


def kernels(packages, work):
    """The fast loops of this processor are chosen, as in any other build."""
    flags = set(re.findall(r"\w+", re.search(
        r"^flags.*", Path("/proc/cpuinfo").read_text(), re.M)[0]))
    if not {"avx2", "f16c"} <= flags:
        raise Skip("this processor has no AVX2")
    want = "avx512" if {"avx512bw", "avx512dq", "avx512vl"} <= flags \
        else "avx2"
    with tarfile.open(packages.archive) as tar:
        name = next(n for n in tar.getnames() if n.endswith("bin/ckpt"))
        (work / "ckpt").write_bytes(tar.extractfile(name).read())
    (work / "ckpt").chmod(0o755)
    said = json.loads(run([work / "ckpt", "doctor", "--json"]))
    casts = [row["value"] for row in said["checks"] if row["name"] == "casts"]
    assert casts == [want], f"casts by {casts}, this processor has {want}"


def emulated(packages, work):
    """The answers of another processor's binary, and what it found itself."""
    qemu = shutil.which(f"qemu-{packages.arch}-static")
    libraries = Path(f"/usr/{packages.arch}-linux-gnu")  # Debian's libc6-*-cross
    if not qemu or not libraries.is_dir():
        raise Skip(f"no qemu-{packages.arch}-static, or no {libraries}")
    run(["tar", "-xzf", packages.archive, "-C", work, "--strip-components=1"])
    command = work / "path/ckpt"
    command.parent.mkdir()
    command.write_text("#!/bin/sh\nexec " + shlex.join(
        [qemu, "-L", str(libraries), str(work / "bin/ckpt")]) + ' "$@"\n')
    command.chmod(0o755)
    for name, sample in SAMPLES.items():
        shutil.copytree(sample, work / "samples" / name)
    env = {"PATH": f"{command.parent}:/usr/bin:/bin", "LC_ALL": "C",
           "TMPDIR": str(work), "SAMPLES": str(work / "samples")}
    began = time.monotonic()
    run(["/bin/sh", "-c", FIRST_ANSWERS], env=env)
    run(["/bin/sh", "-c", SHELL_THINGS], env={**env, "PREFIX": str(work)})
    said = json.loads(run([command, "doctor", "--json"], env=env))
    found = {row["name"]: row["value"] for row in said["checks"]}
    assert found["casts"] == "neon", found["casts"]
    print(f"  {packages.arch} by qemu-user: {time.monotonic() - began:.1f} s")


def cases(packages, roots):
    yield "contents", contents, ()
    yield "sbom", sbom, ()
    yield "checksums", checksums, ()
    yield "packed again", packed_again, ()
    if packages.arch != os.uname().machine:
        yield "emulated", emulated, ()
        return
    yield "start", start_time, ()
    yield "kernels", kernels, ()
    yield "wheel", wheel, ()
    for path in sorted(roots.iterdir() if roots else []):
        if not (path / "bin/sh").exists():
            continue
        if (glibc_of(path) or GLIBC) < GLIBC:
            yield f"too old: {path.name}", too_old, (path,)
            continue
        yield f"archive: {path.name}", archive, (path,)
        yield f"deb: {path.name}", deb, (path,)
    if roots:
        yield "dockerfile", dockerfile, (roots / "bookworm",)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--dist", type=Path, required=True)
    parser.add_argument("--roots", type=Path)
    parser.add_argument("--arch", default=os.uname().machine)
    parser.add_argument("-k", default="", help="only cases with this in name")
    options = parser.parse_args()
    packages = Packages(options.dist.resolve(), options.arch)
    roots = options.roots.resolve() if options.roots else None
    failed = skipped = passed = 0
    for name, case, arguments in cases(packages, roots):
        if options.k not in name:
            continue
        with tempfile.TemporaryDirectory(prefix="ckpt_packages_") as folder:
            try:
                case(packages, Path(folder), *arguments)
                passed += 1
            except Skip as why:
                print(f"skipped {name}: {why}")
                skipped += 1
            except Exception as failure:
                print(f"FAIL {name}\n  {type(failure).__name__}: {failure}")
                failed += 1
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
