#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs the fuzzers, with the address and undefined-behaviour sanitizers:
#
#   scripts/fuzz.sh [--seconds N] [--jobs N] [TARGET...]     default: all, 60 s
#
# --seconds 0 runs the seeds, and what was learnt before, once.
#
# Builds them in build-asan (clang). What they learn stays in
# build-asan/fuzz/corpus; what they find, in build-asan/fuzz/found, and ends the
# script with 1. Its last lines say how much each one ran and covered.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=60
jobs=1
targets=()
while [ $# -gt 0 ]; do
  case "$1" in
    --seconds) seconds=$2; shift 2 ;;
    --jobs) jobs=$2; shift 2 ;;
    -h | --help) sed -n '3,10s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) targets+=("$1"); shift ;;
  esac
done

# Shares the build of scripts/test.sh --preset asan, so that neither recompiles
# what the other has; its own part is the rooms and one file per target.
log=$(mktemp)
trap 'rm -f "$log"' EXIT
CC=clang-14 CXX=clang++-14 cmake --preset asan -DCKPT_FUZZ=ON >"$log" 2>&1 ||
  { cat "$log"; exit 1; }
if [ ${#targets[@]} = 0 ]; then
  cmake --build build-asan --target fuzzers
  for path in build-asan/bin/*_fuzz; do
    targets+=("$(basename "$path" _fuzz)")
  done
else
  cmake --build build-asan --target "${targets[@]/%/_fuzz}"
fi
work=build-asan/fuzz
mkdir -p $work
python3 -B tests/fuzz/corpus.py $work/seeds

export CKPT_FUZZ_DATA=$PWD/tests/data
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
run() {
  local name=$1
  mkdir -p "$work/corpus/$name" "$work/found/$name" \
    "$work/seeds/$name"
  local bound=(-max_total_time="$seconds")
  [ "$seconds" != 0 ] || bound=(-runs=0)
  build-asan/bin/"${name}_fuzz" "${bound[@]}" -timeout=20 \
    -rss_limit_mb=2048 -max_len=65536 -print_final_stats=1 \
    -artifact_prefix="$work/found/$name/" \
    "$work/corpus/$name" "$work/seeds/$name" \
    >"$work/$name.log" 2>&1
}
summary() {
  awk -v name="$1" '
    / cov: / { for (i = 1; i < NF; ++i) { if ($i == "cov:") cov = $(i + 1)
                                          if ($i == "ft:") ft = $(i + 1) } }
    /number_of_executed_units/ { runs = $2 }
    END { printf "%-12s %10d executions, %6d edges, %6d features\n",
                 name, runs, cov, ft }' "$work/$1.log"
}

status=0
running=()
finish() {  # NAME PID
  if ! wait "$2"; then
    tail -40 "$work/$1.log"
    echo "$1: FOUND something: $work/found/$1"
    status=1
  fi
  summary "$1"
}
for name in "${targets[@]}"; do
  run "$name" &
  running+=("$name $!")
  if [ ${#running[@]} -ge "$jobs" ]; then
    # shellcheck disable=SC2086  # a name and a process
    finish ${running[0]}
    running=("${running[@]:1}")
  fi
done
# shellcheck disable=SC2086
for one in "${running[@]}"; do finish $one; done
exit $status
