#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# How much of each room the first tier of the tests reaches, beside all suites:
# lines and branches, by clang's source-based coverage.
#
#   scripts/coverage.sh [--first]     --first: without the second run
#
# Builds in build-coverage. Takes over an hour on two cores; prints a table. Of
# all suites, those run again that the first tier runs in part: the rest of the
# second column is the first's.
set -euo pipefail
. "$(dirname "$0")/common.sh"

first=no
case ${1:-} in
  '') ;;
  --first) first=yes ;;
  *) sed -n '3,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0" >&2; exit 2 ;;
esac

install_packages "${build_packages[@]}" clang-14 llvm-14 libclang-rt-14-dev
CC=clang-14 CXX=clang++-14 scripts/build.sh --torch --preset coverage

build="build-coverage"
report() {  # NAME FOLDER...
  local name=$1 objects=() file raw=()
  shift
  for file in "$@"; do raw+=("$build/$file"/*.profraw); done
  llvm-profdata-14 merge -sparse -o $build/"$name".profdata "${raw[@]}"
  for file in "$build"/bin/*_test "$build"/bin/*.so; do
    objects+=(-object "$file")
  done
  llvm-cov-14 export -summary-only -instr-profile $build/"$name".profdata \
    $build/bin/ckpt "${objects[@]}" >$build/"$name".json
}
run() {  # NAME OPTION...
  local name=$1
  shift
  rm -rf "${build:?}/$name"
  mkdir $build/"$name"
  "$venv/bin/python" -B tests/run.py --build $build --profile $build/"$name" \
    "$@" || say "note: suites failed; what they ran is counted"
}
run first
report first first
if [ $first = no ]; then
  mapfile -t more < <(awk '!/^#/ && $4 > $3 || $2 == "turn" { print $1 }' \
    tests/suites.txt)
  run rest --whole "${more[@]}"
  report whole first rest
fi

python3 - $build/first.json $build/whole.json <<'END'
import json
import os
import sys


def rooms(path):
    """room -> {"lines" | "branches": (covered, all)}"""
    found = {}
    for row in json.load(open(path))["data"][0]["files"]:
        room = os.path.relpath(row["filename"]).split("/")[0]
        for kind in ("lines", "branches"):
            summary = row["summary"][kind]
            sums = found.setdefault(room, {}).setdefault(kind, [0, 0])
            sums[0] += summary["covered"]
            sums[1] += summary["count"]
    return found


tables = [rooms(path) for path in sys.argv[1:] if os.path.exists(path)]
for room in ("formats", "convert", "api", "reshard", "lib", "containers",
             "models", "app"):
    for kind in ("lines", "branches"):
        cells = [f"{100 * t[room][kind][0] / t[room][kind][1]:6.2f} %"
                 for t in tables]
        print(f"{room:11} {kind:9}", *cells)
END
