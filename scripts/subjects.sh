#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Checks the subjects of a branch's commits: `room: what`, at most 60
# characters. Those of main are history.
#
#   scripts/subjects.sh [--install | FILE]
#
# FILE holds one message, as git gives it to a hook; --install makes that hook.
set -euo pipefail
. "$(dirname "$0")/common.sh"

# check SUBJECT: says what is wrong with it.
check() {
  case $1 in 'Merge '* | 'fixup! '* | 'Revert '*) return 0 ;; esac
  [ ${#1} -le 60 ] || { say "subject of ${#1} characters, 60 at most: $1"; return 1; }
  [[ $1 =~ ^[a-z0-9_./-]+:\ [a-z] ]] ||
    { say "subject is not 'room: what', in lower case: $1"; return 1; }
}

case ${1:-} in
  --install)
    hook=$(git rev-parse --git-path hooks)/commit-msg
    # shellcheck disable=SC2016  # the hook expands it
    printf '#!/bin/sh\nexec scripts/subjects.sh "$1"\n' >"$hook"
    chmod +x "$hook"
    say "made $hook"
    ;;
  -h | --help) sed -n '3,/^set/{/^set/d;s/^# \{0,1\}//p}' "$0" ;;
  '')
    status=0
    base=$(branch_base)
    [ -n "$base" ] || exit 0
    while IFS= read -r subject; do
      check "$subject" || status=1
    done < <(git log --no-merges --format=%s "$base..HEAD")
    exit $status
    ;;
  *) check "$(head -1 "$1")" ;;
esac
