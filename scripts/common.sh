# SPDX-License-Identifier: Apache-2.0
# Shared by the other scripts; sourced, not run.
# shellcheck shell=bash disable=SC2034  # others read what is assigned here

cd "$(dirname "${BASH_SOURCE[0]}")/.." || exit

say() { printf '%s\n' "$*" >&2; }
step() { printf '\n== %s\n' "$*" >&2; }
die() {
  say "error: $*"
  exit 1
}

# What the build needs on Debian 12 and Ubuntu 22.04 or later.
build_packages=(g++ cmake ninja-build ccache pkg-config python3-venv
  libcli11-dev nlohmann-json3-dev libspdlog-dev libfmt-dev
  libisal-dev zlib1g-dev libbz2-dev liblzma-dev libzstd-dev libblosc-dev libyaml-cpp-dev
  doctest-dev libopenmpi-dev openmpi-bin liburing-dev
  libcurl4-openssl-dev)
lint_packages=(clang-14 clang-format-14 clang-tidy-14 shellcheck)

# branch_base: the commit where this branch left main; on main itself, the one
# before. Empty where there is none.
branch_base() {
  local base="" branch
  for branch in origin/main main; do
    [ -n "$base" ] || base=$(git merge-base HEAD "$branch" 2>/dev/null || true)
  done
  if [ -z "$base" ] || [ "$base" = "$(git rev-parse HEAD)" ]; then
    base=$(git rev-parse -q --verify 'HEAD^1' || true)
  fi
  echo "$base"
}

# as_root COMMAND...: runs it if this user may, without asking for a password.
as_root() {
  if [ "$(id -u)" = 0 ]; then
    "$@"
  elif sudo -n true 2>/dev/null; then
    sudo -n "$@"
  else
    return 125
  fi
}

# Its output is long, so it is shown only on failure.
apt_get() {
  local log status=0
  log=$(mktemp)
  as_root env DEBIAN_FRONTEND=noninteractive \
    apt-get -o DPkg::Lock::Timeout=300 -o Acquire::Retries=3 -qq "$@" \
    </dev/null >"$log" 2>&1 || status=$?
  [ $status = 0 ] || cat "$log" >&2
  rm -f "$log"
  return $status
}

# install_packages NAME...: installs those that are missing, or says how to.
# Asking dpkg takes milliseconds; apt-get runs only when something is missing.
install_packages() {
  if ! command -v dpkg-query >/dev/null; then
    say "note: no dpkg here; these must be there already: $*"
    return 0
  fi
  local missing=() name
  for name in "$@"; do
    [ "$(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null)" = \
      installed ] || missing+=("$name")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  if [ "$(id -u)" != 0 ] && ! sudo -n true 2>/dev/null; then
    say "error: packages are missing, and this user can't install them. Run"
    say
    say "    sudo apt-get install -y --no-install-recommends ${missing[*]}"
    say
    say "and then this script again."
    exit 1
  fi
  step "installing ${missing[*]}"
  apt_get install -y --no-install-recommends "${missing[@]}" && return 0
  # Often the package lists are just missing or old.
  apt_get update || die "apt-get update failed"
  apt_get install -y --no-install-recommends "${missing[@]}" ||
    die "apt-get could not install: ${missing[*]}"
}

# One for all checkouts, since it takes 2.4 GB and a minute to make.
test_cache=${CKPT_TEST_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/ckpt-tests}
venv=$PWD/.venv
torch_pin=torch==2.13.0
ruff_pin=ruff==0.17.6
nccl_pin=nvidia_nccl_cu13==2.32.3  # as pip names its directory
# The newest numpy for each Python.
numpy_pin() {
  python3 -c 'import sys
print("numpy==" + ("2.4.6" if sys.version_info >= (3, 11) else "2.2.6"))'
}

# venv_has NAME==VERSION [FOLDER]: true if exactly that is installed in the
# venv, or in a folder of it. Looks at file names only: importing torch takes seconds.
venv_has() {
  local name=${1%%==*} version=${1##*==} folder
  name=${name%%[*}
  name=${name//-/_}  # as directories are named
  folder=${2:-$venv/lib/python3*/site-packages}
  compgen -G "$folder/$name-$version*.dist-info" >/dev/null
}

# make_venv: the private venv, if it is not there; false if Python can't.
make_venv() {
  [ ! -x "$venv/bin/python" ] || return 0
  local place
  place=$test_cache/$(python3 -c 'import sys
print("python%d.%d" % sys.version_info[:2])')
  mkdir -p "$test_cache" || return 1
  # Lints and builds run side by side.
  (
    flock 9
    [ -x "$place/bin/pip" ] || python3 -m venv "$place" >&2
  ) 9>"$test_cache/lock" || return 1
  ln -sfn "$place" "$venv"
}

# venv_pip ARGUMENT...: pip's install into the venv, one at a time.
venv_pip() {
  flock "$venv/pyvenv.cfg" "$venv/bin/python" -m pip install \
    --disable-pip-version-check --no-input --no-warn-conflicts -q "$@" \
    </dev/null >&2
}

# absent FILE [FOLDER]: true if the venv, or the folder, lacks what FILE lists.
absent() {
  local pin
  while read -r pin; do
    venv_has "$pin" ${2:+"$2"} || return 0
  done < <(grep -v '^#' "$1")
  return 1
}

# say_downloads: what scripts/test.sh is about to fetch, how large and what for.
say_downloads() {
  local file folder total=0 lines=() size
  if ! venv_has "$torch_pin"; then
    total=1300
    lines+=("$(printf '  %5d MB  torch: what ckpt casts integers with, and the peer of most suites' 1300)")
  fi
  for file in tests/requirements/*.txt; do
    folder=$(sed -n 's/^# folder: //p' "$file")
    absent "$file" "${folder:+$venv/$folder}" || continue
    size=$(sed -n 's/^# size: \([0-9]*\) MB$/\1/p' "$file")
    total=$((total + size))
    lines+=("$(printf '  %5d MB  %s; without it: %s' "$size" \
      "$(basename "$file" .txt)" "$(sed -n 's/^# without it: //p' "$file")")")
  done
  [ ${#lines[@]} -gt 0 ] || return 0
  say "about to download what the suites compare ckpt with, $total MB, into" \
    "$test_cache (CKPT_TEST_CACHE):"
  printf '%s\n' "${lines[@]}" >&2
}

# venv_requirements FILE [FOLDER]: what a requirements file lists, without
# dependencies, into the venv or into a folder of it; false if pip can't. Pip
# gets what follows "# pip: " in the file, too.
venv_requirements() {
  local options=() file=$1 folder=${2:-}
  absent "$file" ${folder:+"$folder"} || return 0
  make_venv || return 1
  read -ra options < <(sed -n 's/^# pip: //p' "$file") || true
  grep -q '^# dependencies: all$' "$file" || options+=(--no-deps)
  step "installing $file into .venv${folder#"$venv"}"
  venv_pip ${folder:+--upgrade --target "$folder"} "${options[@]}" -r "$file"
}

# venv_install [--no-deps] NAME==VERSION...: into the private venv; false if
# pip can't.
venv_install() {
  local missing=() pin options=()
  if [ "$1" = --no-deps ]; then
    options=(--no-deps)
    shift
  fi
  for pin in "$@"; do
    venv_has "$pin" || missing+=("$pin")
  done
  [ ${#missing[@]} -gt 0 ] || return 0
  make_venv || return 1
  step "installing ${missing[*]} into .venv"
  venv_pip "${options[@]}" "${missing[@]}"
}
