#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds the libraries that a portable ckpt has linked in, as static archives:
# Debian's source packages, pinned in sources.sha256, by the compiler of the
# PyPI wheel ziglang against glibc 2.28. What is already built is left alone.
#
#   packaging/deps.sh [--target x86_64|aarch64] [--fetch-only] [--pin] [-j N]
#
# --fetch-only stops before compiling. --pin writes sources.sha256 anew from
# what is downloaded, to be reviewed like any change.
set -euo pipefail
. "$(dirname "$0")/../scripts/common.sh"

usage() { sed -n '3,/^set/{/^set/d;s/^# \{0,1\}//p}' packaging/deps.sh; }

arch=$(uname -m)
jobs=$(nproc)
fetch_only=no
pin=no
while [ $# -gt 0 ]; do
  case $1 in
    --target) arch=${2:?--target needs a name}; shift ;;
    --fetch-only) fetch_only=yes ;;
    --pin) pin=yes ;;
    -j) jobs=${2:?-j needs a number}; shift ;;
    -h | --help) usage; exit ;;
    *) usage >&2; exit 2 ;;
  esac
  shift
done
case $arch in
  x86_64 | aarch64) ;;
  *) die "no portable build for $arch; --target x86_64 or aarch64" ;;
esac

# Name of the source package, as sources.sha256 has its version.
packages=(bzip2 c-blosc cli11 curl fmtlib libisal liburing libzstd lz4
  nlohmann-json3 snappy spdlog yaml-cpp zlib)
zig_pin=ziglang==0.17.1
pins=$PWD/packaging/sources.sha256
cache=$PWD/.cache
downloads=$cache/sources
prefix=$cache/deps/$arch
target=$arch-linux-gnu.2.28

# A list of its own: source packages are seldom among a machine's.
debian=http://deb.debian.org/debian
source_apt() {
  local tool=$1
  shift
  "$tool" -qq -o Dir::Etc::SourceList="$cache/apt/sources.list" \
    -o Dir::Etc::SourceParts=/dev/null \
    -o Dir::State::Lists="$cache/apt/lists" \
    -o Acquire::Retries=3 -o APT::Sandbox::User=root "$@"
}

# The same version as apt names it: with its epoch, which no file's name has.
full_version() {
  source_apt apt-cache showsrc --only-source "$1" |
    sed -n 's/^Version: //p' | awk -v want="$2" \
    '{ bare = $0; sub(/^[0-9]+:/, "", bare) } bare == want { print; exit }'
}

# The version of a package in sources.sha256: NAME_VERSION.dsc
version_of() { sed -n "s/^.*  $1_\(.*\)\.dsc$/\1/p" "$pins"; }

fetch() {
  mkdir -p "$downloads" "$cache/apt/lists/partial"
  [ $pin = yes ] || ! (cd "$downloads" && sha256sum --quiet -c "$pins" \
    >/dev/null 2>&1) || return 0
  step "downloading sources from $debian"
  local key=/usr/share/keyrings/debian-archive-keyring.gpg name version
  printf 'deb-src [signed-by=%s] %s bookworm main\n' "$key" "$debian" \
    >"$cache/apt/sources.list"
  source_apt apt-get update >&2 || die "apt-get update failed for $debian"
  for name in "${packages[@]}"; do
    version=$(version_of "$name")
    if [ $pin = yes ]; then
      version=
    else
      version=$(full_version "$name" "$version")
      [ -n "$version" ] || die "$name $(version_of "$name") is not to be had:" \
        "a newer one took its place; packaging/deps.sh --pin takes what there is"
    fi
    (cd "$downloads" && source_apt apt-get source --download-only \
      "$name${version:+=$version}" >&2) ||
      die "$name $version could not be downloaded from $debian"
  done
  if [ $pin = yes ]; then
    (cd "$downloads" && LC_ALL=C && sha256sum -- *.dsc *.tar.*[!c]) >"$pins"
  fi
  (cd "$downloads" && sha256sum --quiet -c "$pins" >&2) ||
    die "a source is not what packaging/sources.sha256 says"
}

fetch
[ $fetch_only = no ] || exit 0

if [ ! -x "${ZIG:-$venv/zig/ziglang/zig}" ]; then
  make_venv || die "python3 -m venv failed"
  step "installing $zig_pin into .venv/zig"
  venv_pip --no-deps --target "$venv/zig" "$zig_pin" ||
    die "pip could not install $zig_pin"
fi
tools=(cmake ninja-build pkg-config dpkg-dev)
[ "$arch" = aarch64 ] || tools+=(nasm)
install_packages "${tools[@]}"

# What a prefix was built from; another state builds anew.
state=$(cat "$pins" packaging/deps.sh packaging/zig-tool \
  cmake/toolchains/zig*.cmake | sha256sum | cut -d' ' -f1)
if [ "$(cat "$prefix/.state" 2>/dev/null)" = "$state" ]; then
  say "libraries for $target: $prefix"
  exit 0
fi
rm -rf "$prefix"
mkdir -p "$prefix/lib/pkgconfig" "$prefix/include" "$prefix/licenses"
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
log=$work/log
cc=("$PWD/packaging/zig-cc" --target="$target")
ar=$PWD/packaging/zig-ar
toolchain=$PWD/cmake/toolchains/zig-$arch.cmake
export CKPT_DEPS=$prefix
# Paths in assertions say nothing about this machine.
flags=(-O2 -g0 -DNDEBUG -fPIC -ffunction-sections -fdata-sections
  "-ffile-prefix-map=$work/=")

quietly() {
  "$@" >"$log" 2>&1 || { tail -50 "$log" >&2; die "failed: $*"; }
}

unpack() {
  local version
  version=$(version_of "$1")
  # Patches of Debian included. The hashes above are the check of signatures.
  quietly dpkg-source --no-check -x "$downloads/$1_$version.dsc" "$work/$1"
  cp "$work/$1/debian/copyright" "$prefix/licenses/$1"
}

# with_cmake NAME SUBDIR CMAKE_ARGUMENT...
with_cmake() {
  local name=$1 from=$work/$1/$2
  shift 2
  step "$name"
  unpack "$name"
  quietly cmake -S "$from" -B "$work/$name-build" -G Ninja \
    -DCMAKE_TOOLCHAIN_FILE="$toolchain" -DCMAKE_BUILD_TYPE=Release \
    -DCMAKE_C_FLAGS="${flags[*]}" -DCMAKE_CXX_FLAGS="${flags[*]}" \
    -DCMAKE_INSTALL_PREFIX="$prefix" -DCMAKE_INSTALL_LIBDIR=lib \
    -DCMAKE_POSITION_INDEPENDENT_CODE=ON -DBUILD_SHARED_LIBS=OFF \
    -DBUILD_TESTING=OFF -DCMAKE_POLICY_VERSION_MINIMUM=3.5 "$@"
  quietly cmake --build "$work/$name-build" -j "$jobs"
  quietly cmake --install "$work/$name-build"
}

# archive NAME DIRECTORY FLAG... -- SOURCE...: lib/libNAME.a
archive() {
  local name=$1 from=$2 extra=() compiler=zig-cc
  shift 2
  while [ "$1" != -- ]; do extra+=("$1"); shift; done
  shift
  [[ $1 != *.cc ]] || compiler=zig-c++
  local objects=$work/$name-objects
  mkdir -p "$objects"
  local compile=$PWD/packaging/$compiler
  # shellcheck disable=SC2016  # expanded by that shell
  (cd "$from" && printf '%s\n' "$@" | xargs -P "$jobs" -I{} sh -c '
    object=$1/$(echo "$2" | tr / _).o
    shift 2
    exec "$@" "$object"' - "$objects" {} "$compile" \
    --target="$target" "${flags[@]}" "${extra[@]}" -c {} -o) >"$log" 2>&1 ||
    { tail -50 "$log" >&2; die "failed: $name"; }
  quietly "$ar" rcsD "$prefix/lib/lib$name.a" "$objects"/*.o
}

# pkg_config NAME VERSION LIBRARIES
pkg_config() {
  printf 'Name: %s\nDescription: %s\nVersion: %s\nLibs: -L%s %s\nCflags: %s\n' \
    "$1" "$1" "$2" "$prefix/lib" "$3" "-I$prefix/include" \
    >"$prefix/lib/pkgconfig/$1.pc"
}

with_cmake fmtlib . -DFMT_TEST=OFF -DFMT_DOC=OFF
with_cmake spdlog . -DSPDLOG_FMT_EXTERNAL=ON -DSPDLOG_BUILD_EXAMPLE=OFF
with_cmake cli11 . -DCLI11_BUILD_TESTS=OFF -DCLI11_BUILD_EXAMPLES=OFF \
  -DCLI11_BUILD_DOCS=OFF
with_cmake nlohmann-json3 . -DJSON_BuildTests=OFF
with_cmake yaml-cpp . -DYAML_CPP_BUILD_TESTS=OFF -DYAML_CPP_BUILD_TOOLS=OFF \
  -DYAML_CPP_BUILD_CONTRIB=OFF

# Debian's CMake file makes two libraries of one name.
step snappy
unpack snappy
# shellcheck disable=SC2016  # no variable of ours
sed 's/\${PROJECT_VERSION_MAJOR}/1/; s/\${PROJECT_VERSION_MINOR}/1/
  s/\${PROJECT_VERSION_PATCH}/9/; s/\${HAVE_SYS_UIO_H_01}/1/' \
  "$work/snappy/snappy-stubs-public.h.in" >"$work/snappy/snappy-stubs-public.h"
archive snappy "$work/snappy" -std=c++17 -fno-exceptions -fno-rtti \
  -DHAVE_SYS_UIO_H=1 -DHAVE_BUILTIN_CTZ=1 -DHAVE_BUILTIN_EXPECT=1 \
  -DHAVE_FUNC_MMAP=1 -- snappy.cc snappy-c.cc snappy-sinksource.cc \
  snappy-stubs-internal.cc
cp "$work"/snappy/snappy*.h "$prefix/include"

step zlib
unpack zlib
archive z "$work/zlib" -DHAVE_UNISTD_H -DHAVE_STDARG_H -- adler32.c compress.c \
  crc32.c deflate.c gzclose.c gzlib.c gzread.c gzwrite.c infback.c inffast.c \
  inflate.c inftrees.c trees.c uncompr.c zutil.c
cp "$work"/zlib/{zlib.h,zconf.h} "$prefix/include"

step bzip2
unpack bzip2
archive bz2 "$work/bzip2" -D_FILE_OFFSET_BITS=64 -- blocksort.c huffman.c \
  crctable.c randtable.c compress.c decompress.c bzlib.c
cp "$work/bzip2/bzlib.h" "$prefix/include"

step lz4
unpack lz4
archive lz4 "$work/lz4/lib" -- lz4.c lz4hc.c lz4frame.c xxhash.c
cp "$work"/lz4/lib/lz4*.h "$prefix/include"

step libzstd
unpack libzstd
# Its assembly for x86-64 is what makes decoding Huffman codes fast.
(cd "$work/libzstd/lib" && ls common/*.c compress/*.c decompress/*.c \
  decompress/*.S) >"$work/zstd-files"
mapfile -t files <"$work/zstd-files"
archive zstd "$work/libzstd/lib" -DXXH_NAMESPACE=ZSTD_ -- "${files[@]}"
cp "$work"/libzstd/lib/zstd*.h "$prefix/include"
pkg_config libzstd 1.5.4 -lzstd

with_cmake c-blosc . -DBUILD_SHARED=OFF -DBUILD_TESTS=OFF \
  -DBUILD_BENCHMARKS=OFF -DBUILD_FUZZERS=OFF -DPREFER_EXTERNAL_LZ4=ON \
  -DPREFER_EXTERNAL_ZLIB=ON -DPREFER_EXTERNAL_ZSTD=ON \
  -DPREFER_EXTERNAL_SNAPPY=ON -DDEACTIVATE_SNAPPY=OFF
pkg_config blosc 1.21.3 "-lblosc -llz4 -lsnappy -lz -lzstd"

step "libisal (its checksums only)"
unpack libisal
isal=$work/libisal
mkdir -p "$work/isal-objects" "$prefix/include/isa-l"
if [ "$arch" = x86_64 ]; then
  for source in "$isal"/crc/*.asm; do
    quietly nasm -f elf64 -DHAVE_AS_KNOWS_AVX512 -DAS_FEATURE_LEVEL=10 \
      -I "$isal/include/" -I "$isal/crc/" "$source" \
      -o "$work/isal-objects/$(basename "$source" .asm).o"
  done
  archive isal "$isal" -Iinclude -Icrc -- crc/crc_base.c crc/crc64_base.c
  quietly "$ar" rcsD "$prefix/lib/libisal.a" "$work"/isal-objects/*.o
else
  # One header for both languages.
  mapfile -t files < <(cd "$isal" && ls crc/aarch64/*.S)
  archive isal "$isal" -D__ASSEMBLY__ -Iinclude -Icrc -- "${files[@]}"
  archive isal "$isal" -Iinclude -- crc/crc_base.c crc/crc64_base.c \
    crc/aarch64/crc_aarch64_dispatcher.c
fi
cp "$isal"/include/*.h "$prefix/include/isa-l"
pkg_config libisal 2.30.0 -lisal

step liburing
unpack liburing
(cd "$work/liburing" && quietly env CC="${cc[*]}" ./configure \
  --cc="${cc[*]}" --prefix="$prefix")
archive uring "$work/liburing/src" -D_GNU_SOURCE -Iinclude \
  -include ../config-host.h -- setup.c queue.c register.c syscall.c
cp -r "$work/liburing/src/include/"{liburing.h,liburing} "$prefix/include"
pkg_config liburing 2.3 -luring

step "curl (headers only; the library is opened where there is one)"
unpack curl
cp -r "$work/curl/include/curl" "$prefix/include"

# libc++ and its kin are LLVM's.
zig_lib=$(dirname "$(readlink -f "${ZIG:-$venv/zig/ziglang/zig}")")/lib
cp "$zig_lib/libcxx/LICENSE.TXT" "$prefix/licenses/libcxx"

echo "$state" >"$prefix/.state"
say
say "libraries for $target: $prefix"
