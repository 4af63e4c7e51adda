# SPDX-License-Identifier: Apache-2.0
"""Packs what `cmake --install` made into a wheel, a .tar.gz and a .deb.

    pack.py --stage DIR --arch x86_64 --sbom FILE --notices FILE --out DIR

The same stage gives the same bytes: entries are sorted, owned by root and as
old as SOURCE_DATE_EPOCH. Needs Python alone, and dpkg-deb for the .deb.
"""

from __future__ import annotations

import argparse
import base64
import gzip
import hashlib
import io
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import time
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
WHEEL_NAME = "ckpt-reshard"  # "ckpt" on PyPI is something else
DEB_ARCH = {"x86_64": "amd64", "aarch64": "arm64"}
SUMMARY = ("Opens, verifies, converts and reshards training checkpoints of "
           "large models")


def version() -> str:
    text = (ROOT / "CMakeLists.txt").read_text()
    return re.search(r"project\(ckpt VERSION ([0-9.]+)", text).group(1)


def epoch() -> int:
    return int(os.environ["SOURCE_DATE_EPOCH"])


def staged(stage: Path, *parts: str) -> dict[str, Path]:
    """Files below the parts, by their path in the stage. Links are followed, as
    wheels and some file systems have none."""
    found = {}
    for part in parts:
        top = stage / part
        for path in [top] if top.is_file() else sorted(top.rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                found[str(path.relative_to(stage))] = path
    return found


def contents(args: argparse.Namespace) -> dict[str, Path]:
    """The files that the archive and the .deb share, by their path in a prefix.
    No C++ headers: the library is built with a different C++ standard
    library."""
    files = staged(args.stage, "bin/ckpt", "include/ckpt/c.h", "share")
    files["lib/libckpt.so"] = args.stage / "lib/libckpt.so"
    files["share/doc/ckpt/LICENSE"] = ROOT / "LICENSE"
    files["share/doc/ckpt/README.md"] = ROOT / "README.md"
    files["share/doc/ckpt/CHANGELOG.md"] = ROOT / "CHANGELOG.md"
    files["share/doc/ckpt/THIRD-PARTY.txt"] = args.notices
    files["share/doc/ckpt/ckpt.spdx.json"] = args.sbom
    return files


def mode_of(name: str) -> int:
    return 0o755 if name.startswith("bin/") or name.endswith(".so") else 0o644


def make_wheel(args: argparse.Namespace) -> Path:
    plain = WHEEL_NAME.replace("-", "_")
    tag = f"py3-none-manylinux_2_28_{args.arch}"
    info = f"{plain}-{version()}.dist-info"
    entries: dict[str, bytes] = {}
    python = "share/ckpt/python/"
    for name, path in staged(args.stage, python + "ckpt",
                             python + "ckpt_reshard").items():
        entries[name.removeprefix(python)] = path.read_bytes()
    entries["ckpt/lib/libckpt.so"] = (
        args.stage / "lib/libckpt.so").read_bytes()
    # pip puts it on the PATH unchanged, so no Python starts before it.
    script = f"{plain}-{version()}.data/scripts/ckpt"
    entries[script] = (args.stage / "bin/ckpt").read_bytes()
    data = f"{plain}-{version()}.data/data/"
    for name, path in staged(args.stage, "share/man", "share/bash-completion",
                             "share/zsh", "share/fish").items():
        entries[data + name] = path.read_bytes()
    entries[f"{info}/WHEEL"] = (
        "Wheel-Version: 1.0\nGenerator: ckpt packaging/pack.py\n"
        f"Root-Is-Purelib: false\nTag: {tag}\n").encode()
    entries[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.4\nName: {WHEEL_NAME}\nVersion: {version()}\n"
        f"Summary: {SUMMARY}\nLicense-Expression: Apache-2.0\n"
        "License-File: LICENSE\nLicense-File: THIRD-PARTY.txt\n"
        "Requires-Python: >=3.9\n"
        "Classifier: Operating System :: POSIX :: Linux\n"
        "Classifier: Environment :: Console\n"
        "Description-Content-Type: text/markdown\n\n"
    ).encode() + (ROOT / "README.md").read_bytes()
    entries[f"{info}/licenses/LICENSE"] = (ROOT / "LICENSE").read_bytes()
    entries[f"{info}/licenses/THIRD-PARTY.txt"] = args.notices.read_bytes()
    entries[f"{info}/sboms/ckpt.spdx.json"] = args.sbom.read_bytes()
    rows = []
    for name in sorted(entries):
        digest = base64.urlsafe_b64encode(
            hashlib.sha256(entries[name]).digest()).rstrip(b"=").decode()
        rows.append(f"{name},sha256={digest},{len(entries[name])}\n")
    entries[f"{info}/RECORD"] = (
        "".join(rows) + f"{info}/RECORD,,\n").encode()

    out = args.out / f"{plain}-{version()}-{tag}.whl"
    stamp = time.gmtime(max(epoch(), 315532800))[:6]  # zip begins in 1980
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED,
                         compresslevel=9) as wheel:
        for name in sorted(entries):
            row = zipfile.ZipInfo(name, stamp)
            row.create_system = 3  # Unix: modes count
            executable = name == script or name.endswith(".so")
            row.external_attr = (0o100755 if executable else 0o100644) << 16
            row.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(row, entries[name], compresslevel=9)
    return out


def make_archive(args: argparse.Namespace) -> Path:
    top = f"ckpt-{version()}-linux-{args.arch}"
    raw = io.BytesIO()
    with tarfile.open(fileobj=raw, mode="w", format=tarfile.PAX_FORMAT) as tar:
        for name, path in sorted(contents(args).items()):
            body = path.read_bytes()
            row = tarfile.TarInfo(f"{top}/{name}")
            row.size, row.mtime = len(body), epoch()
            row.mode, row.uname, row.gname = mode_of(name), "root", "root"
            tar.addfile(row, io.BytesIO(body))
    out = args.out / f"{top}.tar.gz"
    with open(out, "wb") as file, gzip.GzipFile(
            filename="", fileobj=file, mode="wb", compresslevel=9,
            mtime=epoch()) as packed:
        packed.write(raw.getvalue())
    return out


CONTROL = """Package: ckpt
Version: {version}
Architecture: {arch}
Maintainer: ckpt developers <noreply@ckpt.invalid>
Installed-Size: {kib}
Depends: libc6 (>= 2.28)
Recommends: libcurl4 | libcurl4t64, ca-certificates
Suggests: python3
Section: science
Priority: optional
Description: training checkpoints of large models
 {summary}.
 Any format and topology, in bounded memory; the source is never changed and
 nothing in it is executed.
"""


def make_deb(args: argparse.Namespace) -> Path:
    out = args.out / f"ckpt_{version()}_{DEB_ARCH[args.arch]}.deb"
    with tempfile.TemporaryDirectory() as scratch:
        tree = Path(scratch) / "tree"
        total = 0
        for name, path in sorted(contents(args).items()):
            # Debian's policy for files in packages.
            name = name.replace("share/zsh/site-functions",
                                "share/zsh/vendor-completions")
            if name == "share/doc/ckpt/LICENSE":
                name = "share/doc/ckpt/copyright"
            target = tree / "usr" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            if name.startswith("share/man/"):
                target = target.with_name(target.name + ".gz")
                target.write_bytes(gzip.compress(path.read_bytes(), 9,
                                                 mtime=0))
            else:
                shutil.copyfile(path, target)
            target.chmod(mode_of(name))
            total += target.stat().st_size
        control = tree / "DEBIAN/control"
        control.parent.mkdir()
        control.write_text(CONTROL.format(
            version=version(), arch=DEB_ARCH[args.arch], summary=SUMMARY,
            kib=(total + 1023) // 1024))
        for path in [tree, *tree.rglob("*")]:
            if path.is_dir():
                path.chmod(0o755)
            os.utime(path, (epoch(), epoch()))
        # xz takes half a minute for little gain; gzip unpacks everywhere.
        subprocess.run(
            ["dpkg-deb", "--root-owner-group", "-Zgzip", "-z9", "--build",
             str(tree), str(out)], check=True, stdout=subprocess.DEVNULL)
    return out


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--stage", type=Path, required=True)
    parser.add_argument("--arch", choices=sorted(DEB_ARCH), required=True)
    parser.add_argument("--sbom", type=Path, required=True)
    parser.add_argument("--notices", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    makers = [make_wheel, make_archive]
    if shutil.which("dpkg-deb"):
        makers.append(make_deb)
    for make in makers:
        print(make(args))


if __name__ == "__main__":
    main()
