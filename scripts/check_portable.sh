#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Refuses a binary that would not start on an older Linux: libraries besides
# glibc's own, symbols newer than glibc 2.28, a place where it was built, or
# more than 12 MB.
#
#   scripts/check_portable.sh FILE...
set -euo pipefail
. "$(dirname "$0")/common.sh"

newest_allowed=2.28
most_bytes=12000000
allowed='^(linux-vdso|libc|libm|libpthread|libdl|librt|ld-linux-x86-64|ld-linux-aarch64)\.so\.'

status=0
fail() {
  say "error: $*"
  status=1
}

for file in "$@"; do
  needed=$(objdump -p "$file" | sed -n 's/^ *NEEDED *//p')
  while read -r library; do
    [[ -z $library || $library =~ $allowed ]] ||
      fail "$file needs $library; link it in (packaging/deps.sh)"
  done <<<"$needed"
  newest=$(objdump -T "$file" | grep -o 'GLIBC_[0-9.]*' | sort -Vu | tail -1)
  newest=${newest#GLIBC_}
  [ "$(printf '%s\n' "$newest" $newest_allowed | sort -V | tail -1)" = \
    $newest_allowed ] || fail "$file needs glibc $newest"
  ! objdump -p "$file" | grep -E 'R(UN)?PATH' >&2 ||
    fail "$file looks for libraries where it was built"
  bytes=$(stat -L -c %s "$file")
  [ "$bytes" -le $most_bytes ] ||
    fail "$file has $bytes bytes, more than $most_bytes"
  say "$file: $bytes bytes, glibc $newest, needs ${needed//$'\n'/ }"
done
exit $status
