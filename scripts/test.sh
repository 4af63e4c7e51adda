#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds ckpt if needed and tests it: units in C++, and suites in Python that
# hold the binary against what torch, transformers, Megatron and others read and
# write. tests/suites.txt lists the suites, tests/run.py runs them.
#
#   scripts/test.sh [--preset release|debug|asan] [OPTION...] [SUITE...]
#                   [-- CMAKE_ARGUMENT...]
#
#   (none)            what proves the product on one machine: ten minutes
#   --all [--resume]  every case of every suite: a night
#   -R REGEX, SUITE   some suites; -k CASE and -v: some cases of them, aloud
#   --stress N        beside N busy processes, in random order; --times M
#   -j N              suites side by side
#
# Peers are kept in ~/.cache/ckpt-tests (CKPT_TEST_CACHE) for all checkouts.
set -euo pipefail
. "$(dirname "$0")/common.sh"

usage() { sed -n '3,/^set/{/^set/d;s/^# \{0,1\}//p}' scripts/test.sh; }

preset=release
options=()
while [ $# -gt 0 ]; do
  case $1 in
    --preset) preset=${2:?--preset needs a name}; shift ;;
    -h | --help) usage; exit ;;
    --) shift; break ;;
    *) options+=("$1") ;;
  esac
  shift
done

install_packages "${build_packages[@]}"

# Peers, pinned in tests/requirements. A file lists everything that the tests
# need, so no dependencies are installed.
install_peers() {
  local file folder without
  for file in tests/requirements/*.txt; do
    folder=$(sed -n 's/^# folder: //p' "$file")
    without=$(sed -n 's/^# without it: //p' "$file")
    venv_requirements "$file" "${folder:+$venv/$folder}" ||
      say "note: pip can't install $file: $without"
  done

  # A browser for the pages of --html, if Debian has it.
  if ! command -v chromium-headless-shell >/dev/null; then
    (apt-cache show chromium-headless-shell >/dev/null 2>&1 &&
      install_packages chromium-headless-shell) ||
      say "note: no headless Chromium; the pages are parsed, not drawn"
  fi

  # Shells with completion, and readers of man pages and module files: seconds.
  (as_root true && install_packages zsh fish mandoc tcl lua5.4) ||
    say "note: completion is tested in bash alone"
}

pins=("$torch_pin" "$(numpy_pin)" safetensors==0.8.0)
say_downloads
torch=--torch
venv_install "${pins[@]}" || {
  say "note: pip can't install ${pins[*]}; suites in Python are skipped"
  torch=--no-torch
}
# Downloads wait for servers while compilers run.
install_peers &
peers=$!
scripts/build.sh $torch --preset "$preset" -- "$@"
wait "$peers" || true

build=build
[ "$preset" = release ] || build=build-$preset
step "testing $build"
python=$venv/bin/python
[ -x "$python" ] || python=python3
"$python" -B tests/run.py --build "$build" "${options[@]}"
