# SPDX-License-Identifier: Apache-2.0
"""The SPDX bill of materials of a portable build, from sources.sha256.

    sbom.py --arch x86_64 --binary FILE --out FILE [--notices FILE --licenses DIR]

--notices joins the texts in DIR, as the licences of what is linked in ask.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import json
import os
import re
from pathlib import Path

from pack import ROOT, version

# Licenses of the parts linked in; the texts are in THIRD-PARTY.txt.
LICENSES = {
    "bzip2": "bzip2-1.0.6",
    "c-blosc": "BSD-3-Clause",
    "cli11": "BSD-3-Clause",
    "curl": "curl",
    "fmtlib": "MIT",
    "libisal": "BSD-3-Clause",
    "liburing": "MIT",
    "libzstd": "BSD-3-Clause",
    "lz4": "BSD-2-Clause",
    "nlohmann-json3": "MIT",
    "snappy": "BSD-3-Clause",
    "spdlog": "MIT",
    "yaml-cpp": "MIT",
    "zlib": "Zlib",
}
HEADERS_ONLY = {"cli11", "curl", "nlohmann-json3"}


def sources() -> dict[str, list[tuple[str, str]]]:
    """Source package -> (file, sha256); the .dsc is first."""
    rows = [line.split("  ", 1) for line in
            (ROOT / "packaging/sources.sha256").read_text().splitlines()]
    found: dict[str, list[tuple[str, str]]] = {}
    for digest, name in rows:
        found.setdefault(name.split("_")[0], []).append((name, digest))
    for files in found.values():
        files.sort(key=lambda file: (not file[0].endswith(".dsc"), file[0]))
    return found


def zig_version() -> str:
    text = (ROOT / "packaging/deps.sh").read_text()
    return re.search(r"ziglang==([0-9.]+)", text).group(1)


def package(spdx_id: str, name: str, release: str, license_id: str,
            **more: object) -> dict[str, object]:
    return {"SPDXID": spdx_id, "name": name, "versionInfo": release,
            "downloadLocation": "NOASSERTION", "filesAnalyzed": False,
            "licenseConcluded": license_id, "licenseDeclared": license_id,
            "copyrightText": "NOASSERTION", **more}


def document(arch: str, binary: bytes) -> dict[str, object]:
    digest = hashlib.sha256(binary).hexdigest()
    created = datetime.datetime.fromtimestamp(
        int(os.environ["SOURCE_DATE_EPOCH"]), datetime.timezone.utc)
    packages = [package(
        "SPDXRef-ckpt", "ckpt", version(), "Apache-2.0",
        primaryPackagePurpose="APPLICATION",
        checksums=[{"algorithm": "SHA256", "checksumValue": digest}])]
    relations = [("SPDXRef-DOCUMENT", "DESCRIBES", "SPDXRef-ckpt")]
    for name, files in sorted(sources().items()):
        spdx_id = "SPDXRef-" + name
        release = files[0][0].removesuffix(".dsc").split("_", 1)[1]
        listed = "\n".join(f"{sha}  {file}" for file, sha in files)
        packages.append(package(
            spdx_id, name, release, LICENSES[name],
            downloadLocation="http://deb.debian.org/debian/pool/",
            checksums=[{"algorithm": "SHA256", "checksumValue": files[0][1]}],
            comment="Debian's source package; its files are\n" + listed,
            externalRefs=[{
                "referenceCategory": "PACKAGE-MANAGER",
                "referenceType": "purl",
                "referenceLocator":
                    f"pkg:deb/debian/{name}@{release}?arch=source"}]))
        relations.append(
            ("SPDXRef-ckpt", "DEPENDS_ON" if name in HEADERS_ONLY
             else "STATIC_LINK", spdx_id))
    packages.append(package(
        "SPDXRef-ziglang", "ziglang", zig_version(),
        "MIT AND Apache-2.0 WITH LLVM-exception",
        downloadLocation="https://pypi.org/project/ziglang/",
        comment="The compiler; its libc++ and compiler-rt are linked in."))
    relations += [("SPDXRef-ziglang", "BUILD_TOOL_OF", "SPDXRef-ckpt"),
                  ("SPDXRef-ckpt", "STATIC_LINK", "SPDXRef-ziglang")]
    return {
        "spdxVersion": "SPDX-2.3", "dataLicense": "CC0-1.0",
        "SPDXID": "SPDXRef-DOCUMENT", "name": f"ckpt-{version()}-{arch}",
        "documentNamespace": f"https://spdx.org/spdxdocs/ckpt-{version()}-{arch}-{digest}",
        "creationInfo": {
            "created": created.strftime("%Y-%m-%dT%H:%M:%SZ"),
            "creators": ["Tool: ckpt-packaging/sbom.py"]},
        "packages": packages,
        "relationships": [
            {"spdxElementId": a, "relationshipType": kind,
             "relatedSpdxElement": b} for a, kind, b in relations],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--arch", required=True)
    parser.add_argument("--binary", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--notices", type=Path)
    parser.add_argument("--licenses", type=Path)
    args = parser.parse_args()
    text = json.dumps(document(args.arch, args.binary.read_bytes()), indent=1)
    args.out.write_text(text + "\n")
    if args.notices:
        parts = [f"{path.name}\n{'=' * len(path.name)}\n\n"
                 f"{path.read_text(errors='replace').strip()}\n"
                 for path in sorted(args.licenses.iterdir())]
        args.notices.write_text(
            "ckpt has these libraries linked in.\n\n" + "\n\n".join(parts))


if __name__ == "__main__":
    main()
