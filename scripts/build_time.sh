#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What compiling costs, from nothing and without the compiler cache: the table of
# docs/architecture.md ("Building"). Needs a machine that does nothing else.
#
#   scripts/build_time.sh [-j N] [--both]
#
# --both: also with each file alone (CKPT_UNITY=OFF), three times as long.
set -euo pipefail
. "$(dirname "$0")/common.sh"

jobs=$(nproc)
ways=(ON)
while [ $# -gt 0 ]; do
  case $1 in
    -j) jobs=${2:?-j needs a number}; shift ;;
    --both) ways=(ON OFF) ;;
    *) sed -n '3,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0"; exit 2 ;;
  esac
  shift
done

folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
export CCACHE_DISABLE=1
for unity in "${ways[@]}"; do
  rm -rf "$folder/build"
  cmake --preset release -B "$folder/build" -DCKPT_TESTS=OFF \
    -DCKPT_WITH_TORCH=OFF -DCKPT_UNITY="$unity" >"$folder/log" 2>&1 || {
    cat "$folder/log" >&2
    die "cmake failed"
  }
  units=$(ninja -C "$folder/build" -n ckpt | grep -c 'Building CXX')
  TIMEFORMAT='%R %U'
  read -r wall processor < <({ time cmake --build "$folder/build" -j "$jobs" \
    --target ckpt >"$folder/log" 2>&1; } 2>&1 | tail -1)
  echo "ckpt alone, no ccache: CKPT_UNITY=$unity, -j $jobs: $units units," \
    "$wall s, $processor s of processor time"
done
