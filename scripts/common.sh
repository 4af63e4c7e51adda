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
  libisal-dev zlib1g-dev libbz2-dev libzstd-dev libblosc-dev libyaml-cpp-dev
  doctest-dev libopenmpi-dev openmpi-bin liburing-dev
  libcurl4-openssl-dev)

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
  name=${name//-/_}  # as directories are named
  folder=${2:-$venv/lib/python3*/site-packages}
  compgen -G "$folder/$name-$version*.dist-info" >/dev/null
}

# venv_requirements FILE [FOLDER]: what a requirements file lists, without
# dependencies, into the venv or into a folder of it; false if pip can't. Pip
# gets what follows "# pip: " in the file, too.
venv_requirements() {
  local options=() file=$1 folder=${2:-} pin absent=
  read -ra options < <(sed -n 's/^# pip: //p' "$file") || true
  while read -r pin; do
    venv_has "$pin" ${folder:+"$folder"} || absent=yes
  done < <(grep -v '^#' "$file")
  [ -n "$absent" ] || return 0
  step "installing $file into .venv${folder#"$venv"}"
  "$venv/bin/python" -m pip install --disable-pip-version-check --no-input \
    -q --no-deps ${folder:+--upgrade --target "$folder"} "${options[@]}" \
    -r "$file" \
    </dev/null >&2
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
  if [ ! -x "$venv/bin/python" ]; then
    python3 -m venv "$venv" >&2 || return 1
  fi
  step "installing ${missing[*]} into .venv"
  "$venv/bin/python" -m pip install --disable-pip-version-check \
    --no-input -q "${options[@]}" "${missing[@]}" </dev/null >&2
}
