#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Command lines and exactly what they print: X.sh runs in tests/data, with
# ckpt on the PATH and an empty directory $TMP; X.out is its output, stdout
# and stderr together. --update writes the .out files anew.
#
#   tests/app/cli/run.sh path/to/ckpt [--update]
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
ckpt=$(realpath "$1")
update=${2:-}
export NO_COLOR=1 COLUMNS=100 TERM=dumb LC_ALL=C.UTF-8 PATH="${ckpt%/*}:$PATH"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
status=0
for script in "$here"/*.sh; do
  name=$(basename "$script" .sh)
  [ "$name" != run ] || continue
  mkdir "$work/$name"
  (
    cd "$here/../../data"
    TMP="$work/$name" bash "$script" || echo "[exit $?]"
  ) >"$work/$name.out" 2>&1 </dev/null
  sed -i "s|$work/$name|\$TMP|g; s|^\(saved  *\).*|\1(when)|" "$work/$name.out"
  if [ "$update" = --update ]; then
    cp "$work/$name.out" "$here/$name.out"
  elif ! diff -u "$here/$name.out" "$work/$name.out"; then
    echo "FAILED: $name"
    status=1
  fi
done
[ $status -ne 0 ] || echo "command lines: ok"
exit $status
