# SPDX-License-Identifier: Apache-2.0
# A dim-0 split over tp and dp at once, and a replicated norm.
ckpt inspect fairseq2_native/llama_tp2dp2_fsdp2/ckpt --shards \
  --keys 'decoder.layers.0.self_attn.q_proj.weight' --keys decoder.layer_norm.weight
