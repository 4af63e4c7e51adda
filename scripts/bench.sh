#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# How fast is it? Makes checkpoints and times ckpt in turn with cp -r of the same
# bytes and with the peers' own tools; writes docs/benchmarks.md.
#
#   scripts/bench.sh [--gib 1] [--rounds 5] [--dir DIR] [--keep]
#   scripts/bench.sh --quick [--gib 4] [--rounds 5] [--tp 4:8] [--dir DIR]
#                    [--keep] [-- OPTION_FOR_RESHARD...]
#   scripts/bench.sh --scale [--rounds 5] [--dir DIR] [--keep]
#   scripts/bench.sh --cold [--gib 2] [--rounds 5] [--dir DIR] [--keep]
#
# --quick: only TP 4 to 8 against cp -r; writes no page.
# --scale: how long checkpoints of 405B parameters over 16,384 ranks take to
# inspect and to plan, warm and cold, against what is promised (rows 11 to 14).
# Their payload is holes.
# --cold: what is not in the page cache, by --io MODE against cat and cp; and
# what a run larger than memory leaves there of another file.
#
# DIR (default: ${TMPDIR:-/tmp}) needs room for fourteen times the size, --quick
# for three times; --scale needs 16 GB and 70,000 inodes, --cold as much as the
# machine has memory.
set -euo pipefail
. "$(dirname "$0")/common.sh"

usage() { sed -n '3,/^set/{/^set/d;s/^# \{0,1\}//p}' scripts/bench.sh; }

gib=
quick=no
rounds=5
tp=4:8
dir=${TMPDIR:-/tmp}
keep=no
scale=no
cold=no
while [ $# -gt 0 ]; do
  case $1 in
    --gib) gib=${2:?}; shift ;;
    --rounds) rounds=${2:?}; shift ;;
    --tp) tp=${2:?}; shift ;;
    --dir) dir=${2:?}; shift ;;
    --keep) keep=yes ;;
    --quick) quick=yes ;;
    --scale) scale=yes ;;
    --cold) cold=yes ;;
    -h | --help) usage; exit ;;
    --) shift; break ;;
    *) usage >&2; exit 2 ;;
  esac
  shift
done

scripts/build.sh --target ckpt

if [ $scale = yes ]; then
  venv_install "$(numpy_pin)" || die "the generator needs numpy"
  folder=$dir/ckpt_bench_scale
  [ $keep = yes ] || trap 'rm -rf "$folder"' EXIT
  .venv/bin/python -B scripts/bench_scale.py --ckpt build/bin/ckpt \
    --folder "$folder" --rounds "$rounds"
  exit
fi

venv_install "$torch_pin" "$(numpy_pin)" || die "the generator needs torch, numpy"

if [ $cold = yes ]; then
  folder=$dir/ckpt_bench_cold
  [ $keep = yes ] || trap 'rm -rf "$folder"' EXIT
  .venv/bin/python -B scripts/bench_cold.py --ckpt build/bin/ckpt \
    --folder "$folder" --gib "${gib:-2}" --rounds "$rounds"
  exit
fi

if [ $quick = no ]; then
  venv_install safetensors==0.8.0 || die "the peers need safetensors"
  venv_install --no-deps fairseq2==0.8.1 packaging==26.3 ||
    say "note: fairseq2 is not to be had; its loader is not measured"
  scripts/build.sh
  folder=$dir/ckpt_bench
  [ $keep = yes ] || trap 'rm -rf "$folder"' EXIT
  .venv/bin/python -B scripts/bench_all.py --ckpt build/bin/ckpt \
    --gib "${gib:-1}" --rounds "$rounds" --folder "$folder" \
    --write docs/benchmarks.md
  exit
fi
gib=${gib:-4}

source=$dir/ckpt_bench_${gib}GiB_tp${tp%%:*}
cleanup() {
  rm -rf "$source.out"
  [ $keep = yes ] || rm -rf "$source"
}
trap cleanup EXIT
if [ ! -e "$source" ]; then
  step "making $gib GiB in $source"
  .venv/bin/python scripts/make_fairseq2.py "$source" --gib "$gib" \
    --tp "${tp%%:*}" || { rm -rf "$source"; die "could not make it"; }
fi

step "measuring"
extra=()
for option in "$@"; do extra+=("--option=$option"); done
.venv/bin/python scripts/bench.py --ckpt build/bin/ckpt --source "$source" \
  --rounds "$rounds" --tp "$tp" "${extra[@]}"
