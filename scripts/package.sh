#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Makes what users install, in dist/: a wheel, a .tar.gz and a .deb of one
# portable binary, their bill of materials, and SHA256SUMS. The first run
# compiles everything; what is unchanged is left alone.
#
#   scripts/package.sh [--target x86_64|aarch64] [--out DIR] [-j N]
#
# Two runs of one commit make the same bytes: see docs/packaging.md.
set -euo pipefail
. "$(dirname "$0")/common.sh"

usage() { sed -n '3,/^set/{/^set/d;s/^# \{0,1\}//p}' scripts/package.sh; }

arch=$(uname -m)
out=dist
jobs=$(nproc)
while [ $# -gt 0 ]; do
  case $1 in
    --target) arch=${2:?--target needs a name}; shift ;;
    --out) out=${2:?--out needs a directory}; shift ;;
    -j) jobs=${2:?-j needs a number}; shift ;;
    -j[0-9]*) jobs=${1#-j} ;;
    -h | --help) usage; exit ;;
    *) usage >&2; exit 2 ;;
  esac
  shift
done
preset=portable
[ "$arch" = x86_64 ] || preset=portable-$arch
build=build-$preset

# Everything in the packages gets the commit's date, which is also that of the
# files of an archive of the sources.
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null ||
  stat -c %Y CMakeLists.txt)}
export SOURCE_DATE_EPOCH

packaging/deps.sh --target "$arch" -j "$jobs"
export CCACHE_SLOPPINESS=pch_defines,time_macros CCACHE_COMPILERTYPE=clang

step "compiling $build"
log=$(mktemp)
trap 'rm -f "$log"' EXIT
cmake --preset "$preset" >"$log" 2>&1 || { cat "$log" >&2; die "cmake failed"; }
cmake --build "$build" -j "$jobs" --target ckpt ckpt_shared >&2

step "checking what it needs"
scripts/check_portable.sh "$build/bin/ckpt" "$build/bin/libckpt.so" >&2

step "packing"
stage=$build/stage
rm -rf "$stage"
cmake --install "$build" --prefix "$stage" >"$log" 2>&1 ||
  { cat "$log" >&2; die "cmake --install failed"; }
prefix=.cache/deps/$arch
python3 packaging/sbom.py --arch "$arch" --binary "$stage/bin/ckpt" \
  --out "$build/ckpt.spdx.json" --notices "$build/THIRD-PARTY.txt" \
  --licenses "$prefix/licenses"
mkdir -p "$out"
python3 packaging/pack.py --stage "$stage" --arch "$arch" \
  --sbom "$build/ckpt.spdx.json" --notices "$build/THIRD-PARTY.txt" \
  --out "$out"
cp "$build/ckpt.spdx.json" "$out/ckpt-$arch.spdx.json"
cp packaging/Dockerfile "$out/"
(cd "$out" && LC_ALL=C && sha256sum -- *.whl *.tar.gz *.deb *.json >SHA256SUMS)
