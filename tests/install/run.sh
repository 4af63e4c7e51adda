#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
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

# What is installed opens where it lies now: libtorch is found by RUNPATH.
if "$work/prefix/bin/ckpt" --version | grep "can't be opened"; then
  exit 1
fi
mkdir "$work/broken"
echo "no library" >"$work/broken/libckpt_mpi.so"
CKPT_LAUNCHER=none CKPT_MODULE_PATH=$work/broken \
  "$work/prefix/bin/ckpt" --version | grep -q "mpi .*can't be opened" ||
  { echo "--version lists a module that can't be opened" >&2; exit 1; }
for file in man/man1/ckpt-inspect.1 bash-completion/completions/ckpt \
  zsh/site-functions/_ckpt fish/vendor_completions.d/ckpt.fish; do
  test -s "$work/prefix/share/$file"
done
