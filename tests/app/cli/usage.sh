# SPDX-License-Identifier: Apache-2.0
# What a wrong command line is told.
# To the end: head would close the pipe while it is written to.
try() { echo "\$ ckpt $*"; ckpt "$@" | sed -n 1,3p; echo "[exit ${PIPESTATUS[0]}]"; }
good=safetensors/hf_sharded/ckpt
try inspct $good
try $good
try -v inspect $good
try inspect
try inspect $good extra
try inspect $good --kesy '*'
try inspect $good --keys
try inspect $good --keys '*.q_prj.*'
try inspect $good --layers 0-9
try inspect $good --layers x
try inspect $good --from safetensor
try inspect $good --from torch --from torch
try inspect $good --color sometimes
try inspect $good --max-mem 3XB
try inspect $good --max-mem 1MiB
try inspect $good -j 0
try inspect $good -q -v
try inspect $good --model-only --optim-only
try reshard $good out --tp 0
try reshard $good out --tp 2:8
