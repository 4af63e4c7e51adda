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
# The C interface, with an adapter of peft's that was trained on another base.
status=0
"$work/build/adapter" "$checkpoint" \
  "$here/../data/runs/hf_trainer_lora/ckpt/checkpoint-4" \
  >"$work/said" || status=$?
grep '"kind":"LORA","names":"peft"' "$work/said" >/dev/null
if [ "$status" != 5 ] || ! grep -q '"kind":"unfaithful"' "$work/said"; then
  cat "$work/said"
  exit 1
fi

# The steps of a run, by C.
for step in 10 20 30; do
  mkdir -p "$work/run"
  cp -r "$here/../data/runs/hf_trainer_qwen2/ckpt/checkpoint-10" \
    "$work/run/checkpoint-$step"
done
"$work/build/keep" "$work"

# Nothing of it makes the loader look in the current directory.
python3 "$here/elf.py" "$work/prefix"

# What is installed opens where it lies now: libtorch is found by RUNPATH.
if "$work/prefix/bin/ckpt" --version | grep "can't be opened"; then
  exit 1
fi
mkdir "$work/broken"
echo "no library" >"$work/broken/libckpt_mpi.so"
CKPT_LAUNCHER=none CKPT_MODULE_PATH=$work/broken \
  "$work/prefix/bin/ckpt" --version | grep "mpi .*can't be opened" >/dev/null ||
  { echo "--version lists a module that can't be opened" >&2; exit 1; }
for file in man/man1/ckpt-inspect.1 bash-completion/completions/ckpt \
  zsh/site-functions/_ckpt fish/vendor_completions.d/ckpt.fish; do
  test -s "$work/prefix/share/$file"
done

# A format of one's own: built against the package, loaded by the program, and
# what it wrote is read by numpy.
cmake -S "$here/../../examples/format_module" -B "$work/module" -G Ninja \
  -DCMAKE_PREFIX_PATH="$work/prefix" >"$work/log" 2>&1 ||
  { cat "$work/log" >&2; exit 1; }
cmake --build "$work/module" >"$work/log" 2>&1 ||
  { cat "$work/log" >&2; exit 1; }
ckpt=$work/prefix/bin/ckpt
export CKPT_MODULE_PATH=$work/module
"$ckpt" --help | grep '^  npy_folder  *read, write ' >/dev/null
"$ckpt" convert "$checkpoint" "$work/npy" --to npy_folder --dtype f32 -q
"$ckpt" convert "$checkpoint" "$work/f32.safetensors" --dtype f32 -q
"$ckpt" inspect "$work/npy" --json | grep '"format": *"npy_folder"' >/dev/null
"$ckpt" verify "$work/npy" -q
"$ckpt" verify "$work/f32.safetensors" "$work/npy" -q
"$ckpt" convert "$work/npy" "$work/back.safetensors" -q
"$ckpt" verify "$work/f32.safetensors" "$work/back.safetensors" -q
if python=$here/../../.venv/bin/python && [ -x "$python" ]; then
  "$python" - "$work/npy" "$work/f32.safetensors" <<'END'
import sys
from pathlib import Path

import numpy
from safetensors.numpy import load_file

expected = load_file(sys.argv[2])
files = sorted(Path(sys.argv[1]).glob("*.npy"))
assert {file.stem for file in files} == set(expected), files
for file in files:
    numpy.testing.assert_array_equal(numpy.load(file), expected[file.stem])
END
fi
# A backend of Megatron-Core's by that name is of that format, in that version.
cp -r "$work/npy" "$work/backend"
echo '{"sharded_backend": "npy", "sharded_backend_version": 1}' \
  >"$work/backend/metadata.json"
"$ckpt" inspect "$work/backend" -v 2>&1 |
  grep 'format npy_folder: metadata.json says sharded_backend npy 1' >/dev/null
echo '{"sharded_backend": "npy", "sharded_backend_version": 2}' \
  >"$work/backend/metadata.json"
rm "$work/backend/"*.npy
status=0
"$ckpt" inspect "$work/backend" 2>"$work/log" || status=$?
[ $status = 4 ] && grep -q 'supported are torch_dist 1, zarr 1, npy 1' "$work/log"
# Its family is known before any checkpoint is opened, and converts.
"$ckpt" family list | grep npy_llama >/dev/null
cp -r "$here/../data/hf/llama/ckpt" "$work/llama"
sed -i 's/"llama"/"npy_llama"/; s/"LlamaForCausalLM"/"NpyLlama"/' \
  "$work/llama/config.json"
"$ckpt" convert "$work/llama" "$work/megatron" --to megatron_torch_dist --tp 2 -q
"$ckpt" convert "$work/megatron" "$work/again" --to safetensors -q
"$ckpt" verify "$work/llama" "$work/again" -q
# One that lies of its bytes is refused, and so is what is not a module.
mkdir "$work/short" "$work/wrong"
first=$(find "$work/npy" -name '*.npy' | sort | head -1)
head -c "$(($(stat -c %s "$first") - 1))" "$first" \
  >"$work/short/$(basename "$first")"
status=0
"$ckpt" inspect "$work/short" 2>"$work/log" || status=$?
[ $status = 4 ] && grep -q 'bytes at' "$work/log"
cp "$work/prefix/lib/libckpt.so" "$work/wrong/libckpt_format_wrong.so"
status=0
CKPT_MODULE_PATH=$work/wrong "$ckpt" inspect "$work/npy" 2>"$work/log" ||
  status=$?
[ $status = 7 ] && grep -q 'registers none' "$work/log"
