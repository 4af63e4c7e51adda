#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# clang-tidy over what a branch changed, or over FILEs. It parses each file
# alone, 10 to 30 seconds each, and takes over an hour for all of the tree: so
# .ci/run looks at the first --most of a change.
#
#   scripts/tidy.sh [--most N] [--base COMMIT] [FILE.cc | FOLDER]...
#
# COMMIT is where the branch left main; on main itself it is the commit before.
set -euo pipefail
. "$(dirname "$0")/common.sh"

most=1000
base=
files=()
while [ $# -gt 0 ]; do
  case $1 in
    --most) most=${2:?--most needs a number}; shift ;;
    --base) base=${2:?--base needs a commit}; shift ;;
    -h | --help) sed -n '3,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0"; exit ;;
    *) files+=("$1") ;;
  esac
  shift
done

install_packages "${build_packages[@]}" "${lint_packages[@]}"

rooms=(lib containers models formats convert reshard api app)
if [ ${#files[@]} -gt 0 ]; then
  mapfile -t files < <(find "${files[@]}" -name '*.cc' | sort)
else
  [ -n "$base" ] || base=$(branch_base)
  if [ -z "$base" ]; then
    say "note: nothing to compare with; clang-tidy looks at nothing"
    exit 0
  fi
  # A header counts as the file that implements it.
  mapfile -t files < <(git diff --name-only --diff-filter=d "$base" -- \
    "${rooms[@]}" | sed -nE 's/\.(cc|h)$/.cc/p' | sort -u |
    while read -r file; do [ ! -f "$file" ] || echo "$file"; done)
fi
if [ ${#files[@]} = 0 ]; then
  say "clang-tidy: no C++ file changed"
  exit 0
fi
if [ ${#files[@]} -gt "$most" ]; then
  say "note: ${#files[@]} files changed, the first $most are looked at;" \
    "scripts/tidy.sh looks at all"
  files=("${files[@]:0:most}")
fi

# The compile commands of a build without unity files; nothing is compiled.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
CC=clang-14 CXX=clang++-14 cmake --preset debug -B build-tidy \
  -DCKPT_TESTS=OFF -DCKPT_WITH_TORCH=OFF -DCKPT_WITH_CUDA=OFF \
  >"$log" 2>&1 || { cat "$log" >&2; die "cmake failed"; }
printf '%s\0' "${files[@]}" |
  xargs -0 -n 1 -P "$(nproc)" clang-tidy-14 -p build-tidy --quiet \
    2> >(grep -v 'warnings generated\|^Suppressed\|^Use -header' >&2)
say "clang-tidy: ok, ${#files[@]} files"
