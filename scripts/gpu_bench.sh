#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What a GPU is worth here: the kernels of --device cuda against a copy on the
# device, the bus, and whole runs against --device cpu. Where there is no GPU
# it says so; its exit status is 77 then.
#
#   scripts/gpu_bench.sh [--build DIR] [--dir DIR] [--mib N]
#
# DIR is where files are made (default: /dev/shm, so that no disk is measured),
# N the size of the source (default 2048).
set -euo pipefail
. "$(dirname "$0")/common.sh"

build=build dir=/dev/shm mib=2048
while [ $# -gt 0 ]; do
  case $1 in
    --build) build=${2:?--build needs a directory}; shift ;;
    --dir) dir=${2:?--dir needs a directory}; shift ;;
    --mib) mib=${2:?--mib needs a number}; shift ;;
    *) sed -n '3,/^set/{/^set/d;s/^# \{0,1\}//p}' scripts/gpu_bench.sh; exit 2 ;;
  esac
  shift
done
[ -x "$build/bin/cuda_bench" ] || {
  say "skipped: no $build/bin/cuda_bench; it is built where nvcc is"
  exit 77
}
"$build/bin/cuda_bench" || exit $?

work=$(mktemp -d "$dir/ckpt-gpu-bench.XXXXXX")
trap 'rm -rf "$work"' EXIT
python3 - "$work/f32.safetensors" "$mib" <<'EOF'
import json, os, struct, sys
path, mib = sys.argv[1], int(sys.argv[2])
rows, names = 16 << 20 >> 14, max(1, mib // 16)  # tensors of 16 MiB
header = {f"layers.{i}.weight": {"dtype": "F32", "shape": [rows, 4096],
          "data_offsets": [i << 24, (i + 1) << 24]} for i in range(names)}
text = json.dumps(header).encode()
text += b" " * (-len(text) % 8)
with open(path, "wb") as file:
    file.write(struct.pack("<Q", len(text)) + text)
    for _ in range(names):
        # Random exponents would give occasional NaNs and infinities.
        file.write(bytes(b & 0xBF for b in os.urandom(1 << 16)) * 256)
EOF

# seconds COMMAND...: the best of three.
seconds() {
  python3 - "$@" <<'EOF'
import subprocess, sys, time
best = 1e9
for _ in range(3):
    begin = time.perf_counter()
    subprocess.run(sys.argv[1:], check=True, stdout=subprocess.DEVNULL)
    best = min(best, time.perf_counter() - begin)
print(f"{best:.3f}")
EOF
}

# row NAME ARGUMENTS...: the same conversion on each device.
row() {
  local name=$1 device times=()
  shift
  for device in cpu cuda; do
    times+=("$(seconds "$build/bin/ckpt" "$@" "$work/out.$device" -q \
      --overwrite --no-fsync --device $device)")
  done
  diff -r "$work/out.cpu" "$work/out.cuda" >/dev/null ||
    die "$name: the two devices wrote different bytes"
  awk -v n="$name" -v c="${times[0]}" -v g="${times[1]}" -v m="$mib" 'BEGIN {
    printf "%-34s %8.2f GB/s on the CPU, %8.2f on the GPU: %.2fx\n",
      n, m / 953.67 / c, m / 953.67 / g, c / g }'
  rm -rf "$work"/out.*
}

row "cast f32 to bf16" convert "$work/f32.safetensors" --to dcp --dtype bf16
row "cast f32 to bf16, 8 files" convert "$work/f32.safetensors" --to dcp \
  --dp 8 --dtype bf16
row "no cast, 8 files" convert "$work/f32.safetensors" --to dcp --dp 8
