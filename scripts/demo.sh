#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The main job, on a small checkpoint that fairseq2 wrote (4-way tensor
# parallel), or on your own:
#
#   scripts/demo.sh [SRC DST]
#
# DST gets the checkpoint at twice the tensor parallelism, and the whole
# model in DST.safetensors. Neither may exist; SRC is only read.
set -euo pipefail
here=$PWD
. "$(dirname "$0")/common.sh"

usage() { sed -n '3,/^set/{/^set/d;s/^# \{0,1\}//p}' scripts/demo.sh; }
absolute() { case $1 in /*) echo "$1" ;; *) echo "$here/$1" ;; esac; }

case $# in
  0)
    src=tests/data/fairseq2_native/qwen25_tp4dp1_mixed/ckpt
    temp=$(mktemp -d)
    trap 'rm -rf "$temp"' EXIT
    dst=$temp/tp8
    ;;
  2)
    src=$(absolute "$1")
    dst=$(absolute "$2")
    ;;
  *)
    usage
    [ "${1:-}" = -h ] || [ "${1:-}" = --help ] && exit 0
    exit 2
    ;;
esac

# With a package in dist, made by scripts/package.sh or put there, no build is
# needed.
package=
if [ -d dist ]; then
  package=$(find dist -name "ckpt-*-linux-$(uname -m).tar.gz" | sort -V |
    tail -1)
fi
bin=$PWD/build/bin
# Quiet if there is nothing to build.
log=$(mktemp)
if [ -n "$package" ] && [ ! -x build/bin/ckpt ]; then
  mkdir -p .cache/package
  tar -xzf "$package" -C .cache/package --strip-components=1
  bin=$PWD/.cache/package/bin
elif [ -x build/bin/ckpt ]; then
  scripts/build.sh --target ckpt >"$log" 2>&1 || {
    cat "$log" >&2
    exit 1
  }
else
  scripts/build.sh --target ckpt
fi
rm -f "$log"
PATH=$bin:$PATH

show() {
  printf '\n$ %s\n' "$*"
  "$@"
}

tp=$(ckpt inspect "$src" --json |
  python3 -c 'import json, sys; print(json.load(sys.stdin)["topology"]["tp"])')

show ckpt inspect "$src"
show ckpt reshard "$src" "$dst" --tp "$tp:$((2 * tp))"
show ckpt verify "$src" "$dst"
show ckpt unshard "$src" "$dst.safetensors"
show ckpt verify "$src" "$dst.safetensors"
if [ $# = 0 ]; then
  printf '\nYour own: scripts/demo.sh SRC DST, or %s --help\n' "$bin/ckpt"
fi
