#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds ckpt if needed and runs all tests: C++ units, and Python tests that
# hold the binary against what torch and safetensors read and write.
#
#   scripts/test.sh [--preset release|debug|asan] [-R REGEX] [-j N]
#                   [-- CMAKE_ARGUMENT...]
set -euo pipefail
. "$(dirname "$0")/common.sh"

usage() { sed -n '3,/^set/{/^set/d;s/^# \{0,1\}//p}' scripts/test.sh; }

preset=release
jobs=$(nproc)
filter=()
while [ $# -gt 0 ]; do
  case $1 in
    --preset) preset=${2:?--preset needs a name}; shift ;;
    -R) filter=(-R "${2:?-R needs a regular expression}"); shift ;;
    -j) jobs=${2:?-j needs a number}; shift ;;
    -h | --help) usage; exit ;;
    --) shift; break ;;
    *) usage >&2; exit 2 ;;
  esac
  shift
done

install_packages "${build_packages[@]}"
pins=("$torch_pin" "$(numpy_pin)" safetensors==0.8.0)
venv_install "${pins[@]}" ||
  die "pip could not install what the Python tests need: ${pins[*]}"
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

  # Another S3 server, which differs where servers may.
  moto=$venv/moto
  [ -d "$moto/moto" ] ||
    "$venv/bin/python" -m pip install --disable-pip-version-check --no-input \
      -q --target "$moto" 'moto[s3,server]==5.2.5' </dev/null >&2 ||
    say "note: moto is not to be had; s3:// is tested on one server"

  # A browser for the pages of --html: half a minute, if Debian has it.
  if ! command -v chromium-headless-shell >/dev/null; then
    (apt-cache show chromium-headless-shell >/dev/null 2>&1 &&
      install_packages chromium-headless-shell) ||
      say "note: no headless Chromium; the pages are parsed, not drawn"
  fi

  # Shells with completion, and readers of man pages and module files: seconds.
  (as_root true && install_packages zsh fish mandoc tcl lua5.4) ||
    say "note: completion is tested in bash alone"
}

# Downloads wait for servers while compilers run.
install_peers &
peers=$!
scripts/build.sh --torch --preset "$preset" -j "$jobs" -- "$@"
wait "$peers" || true

build=build
[ "$preset" = release ] || build=build-$preset
step "testing $build"
status=0
# One more than there are processors, as tests wait for servers, ranks and
# disks.
ctest --test-dir "$build" --output-on-failure -j "$((jobs + 1))" \
  --no-tests=error "${filter[@]}" || status=$?
if [ $status = 0 ]; then
  say "all tests passed ($preset)"
else
  say "tests FAILED ($preset). One test alone, in full:" \
    "ctest --test-dir $build -V -R NAME"
fi
exit $status
