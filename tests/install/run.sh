#!/usr/bin/env bash
# Installs a build into a temporary prefix, builds a project against it with
# find_package(ckpt), and runs that.
#
#   tests/install/run.sh BUILD_DIR CHECKPOINT
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
build=$1
checkpoint=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build" --prefix "$work/prefix" >"$work/log" ||
  { cat "$work/log" >&2; exit 1; }
cmake -S "$here" -B "$work/build" -G Ninja -DCMAKE_PREFIX_PATH="$work/prefix" \
  >"$work/log" 2>&1 || { cat "$work/log" >&2; exit 1; }
cmake --build "$work/build" >"$work/log" 2>&1 ||
  { cat "$work/log" >&2; exit 1; }
export LD_LIBRARY_PATH=$work/prefix/lib${LD_LIBRARY_PATH:+:$LD_LIBRARY_PATH}
"$work/build/consumer" "$checkpoint" | grep " bytes in "
"$work/prefix/bin/ckpt" inspect "$checkpoint" >/dev/null
