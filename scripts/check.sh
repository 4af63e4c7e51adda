#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What can be said of a change without building it, in about two minutes:
# format, lints, rooms, commit subjects, links of the docs, and clang-tidy over
# the first files that changed.
#
#   scripts/check.sh [--most N]      N files for clang-tidy, 3 unless told
set -euo pipefail
. "$(dirname "$0")/common.sh"

most=3
while [ $# -gt 0 ]; do
  case $1 in
    --most) most=${2:?--most needs a number}; shift ;;
    -h | --help) sed -n '3,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0"; exit ;;
    *) die "unknown option $1; scripts/check.sh --help lists them" ;;
  esac
  shift
done

install_packages "${build_packages[@]}" "${lint_packages[@]}"

status=0
fail() {
  say "FAILED: $*"
  status=1
}

step "format"
git ls-files -z '*.cc' '*.h' | xargs -0 -P "$(nproc)" -n 100 \
  clang-format-14 --dry-run -Werror || fail "clang-format-14"

step "lint"
git ls-files -z 'scripts/*.sh' 'packaging/*.sh' packaging/zig-tool \
  'examples/slurm/*' '*/run.sh' .ci/run .ci/packages |
  xargs -0 shellcheck || fail "shellcheck"
if venv_install --no-deps "$ruff_pin"; then
  "$venv/bin/ruff" check tests scripts packaging || fail "ruff"
else
  say "note: ruff is not to be had; Python is not linted"
fi

step "rooms"
scripts/check_rooms.sh || fail "rooms"

step "commits"
scripts/subjects.sh || fail "commit subjects"

step "docs"
scripts/docs.sh || fail "docs"

step "clang-tidy"
scripts/tidy.sh --most "$most" || fail "clang-tidy"

exit $status
