#!/usr/bin/env bash
# Runs the fuzzers, with the address and undefined-behaviour sanitizers:
#
#   scripts/fuzz.sh [--seconds N] [--jobs N] [TARGET...]     default: all, 60 s
#
# Builds them in build-fuzz (clang). What they learn stays in
# build-fuzz/corpus; what they find, in build-fuzz/found, and ends the script
# with 1. The last lines say how much each one ran and covered.
set -euo pipefail
cd "$(dirname "$0")/.."
seconds=60
jobs=1
targets=()
while [ $# -gt 0 ]; do
  case "$1" in
    --seconds) seconds=$2; shift 2 ;;
    --jobs) jobs=$2; shift 2 ;;
    -h | --help) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 0 ;;
    *) targets+=("$1"); shift ;;
  esac
done

CC=clang-14 CXX=clang++-14 cmake -G Ninja -B build-fuzz \
  -DCMAKE_BUILD_TYPE=RelWithDebInfo \
  -DCMAKE_CXX_FLAGS_RELWITHDEBINFO="-O1 -gline-tables-only" \
  -DCKPT_PRECOMPILE=ON -DCKPT_UNITY=ON -DCKPT_WITH_CUDA=OFF \
  -DCKPT_WITH_TORCH=OFF -DCKPT_WITH_MPI=OFF \
  -DCKPT_SANITIZE=address,undefined -DCKPT_FUZZ=ON >build-fuzz.log 2>&1 ||
  { cat build-fuzz.log; exit 1; }
mv build-fuzz.log build-fuzz/configure.log
if [ ${#targets[@]} = 0 ]; then
  ninja -C build-fuzz fuzzers
  for path in build-fuzz/bin/*_fuzz; do
    targets+=("$(basename "$path" _fuzz)")
  done
else
  ninja -C build-fuzz "${targets[@]/%/_fuzz}"
fi
python3 tests/fuzz/corpus.py build-fuzz/seeds

export CKPT_FUZZ_DATA=$PWD/tests/data
export ASAN_OPTIONS=detect_leaks=0:allocator_may_return_null=1
export UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1
run() {
  local name=$1
  mkdir -p "build-fuzz/corpus/$name" "build-fuzz/found/$name" \
    "build-fuzz/seeds/$name"
  build-fuzz/bin/"${name}_fuzz" -max_total_time="$seconds" -timeout=20 \
    -rss_limit_mb=2048 -max_len=65536 -print_final_stats=1 \
    -artifact_prefix="build-fuzz/found/$name/" \
    "build-fuzz/corpus/$name" "build-fuzz/seeds/$name" \
    >"build-fuzz/$name.log" 2>&1
}
summary() {
  awk -v name="$1" '
    / cov: / { for (i = 1; i < NF; ++i) { if ($i == "cov:") cov = $(i + 1)
                                          if ($i == "ft:") ft = $(i + 1) } }
    /number_of_executed_units/ { runs = $2 }
    END { printf "%-12s %10d executions, %6d edges, %6d features\n",
                 name, runs, cov, ft }' "build-fuzz/$1.log"
}

status=0
running=()
finish() {  # NAME PID
  if ! wait "$2"; then
    tail -40 "build-fuzz/$1.log"
    echo "$1: FOUND something: build-fuzz/found/$1"
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
