# SPDX-License-Identifier: Apache-2.0
ckpt inspect safetensors/hf_sharded/ckpt
