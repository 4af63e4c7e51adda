#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds ckpt: installs what is missing, configures, compiles. Running it
# again takes seconds. The binary is build/bin/ckpt.
#
#   scripts/build.sh [--preset release|debug|asan|tsan] [--torch | --no-torch]
#                    [-j N] [--target NAME]... [-- CMAKE_ARGUMENT...]
#
# --torch fetches libtorch for the module that casts integers; otherwise the
# module is built if libtorch is there already.
# CC and CXX choose the compiler when a build directory is made first.
set -euo pipefail
. "$(dirname "$0")/common.sh"

usage() { sed -n '3,/^set/{/^set/d;s/^# \{0,1\}//p}' scripts/build.sh; }

preset=release
torch=auto
jobs=()
targets=()
while [ $# -gt 0 ]; do
  case $1 in
    --preset) preset=${2:?--preset needs a name}; shift ;;
    --torch) torch=yes ;;
    --no-torch) torch=no ;;
    --target) targets+=(--target "${2:?--target needs a name}"); shift ;;
    -j) jobs=(-j "${2:?-j needs a number}"); shift ;;
    -h | --help) usage; exit ;;
    --) shift; break ;;
    *) usage >&2; exit 2 ;;
  esac
  shift
done

install_packages "${build_packages[@]}"

# g++ 11 (Ubuntu 22.04) lacks parts of C++20.
if [ -z "${CXX:-}" ] && [ "$(g++ -dumpversion | cut -d. -f1)" -lt 12 ]; then
  install_packages g++-12
  export CC=gcc-12 CXX=g++-12
fi

if [ $torch = no ]; then
  set -- -DCKPT_WITH_TORCH=OFF "$@"
elif [ $torch = yes ] && ! venv_install "$torch_pin"; then
  say "warning: pip could not install $torch_pin; building without it:" \
    "what needs its casts of integers will not be available."
fi

# NCCL carries the exchange between GPUs; it is only useful with nvcc.
if command -v nvcc >/dev/null || [ -x /usr/local/cuda/bin/nvcc ]; then
  if [[ $preset != [at]san ]] && ! venv_install --no-deps "$nccl_pin"; then
    say "warning: pip could not install $nccl_pin; --device cuda will work" \
      "on each rank alone."
  fi
fi

# Needed to cache precompiled headers (asan), and for two checkouts to share
# what either has compiled.
export CCACHE_SLOPPINESS=pch_defines,time_macros
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1

build=build
[ "$preset" = release ] || build=build-$preset
log=$(mktemp)
trap 'rm -f "$log"' EXIT
step "configuring $build"
if ! cmake --preset "$preset" "$@" >"$log" 2>&1; then
  cat "$log" >&2
  die "cmake failed"
fi
# The table of what was found, from the end of cmake's output.
sed -n '/^-- ckpt /,/^-- Configuring/{/^-- Configuring/d;s/^-- *//p}' "$log" >&2

step "compiling"
cmake --build "$build" "${jobs[@]}" "${targets[@]}" >&2
say
say "built $build/bin/ckpt"
