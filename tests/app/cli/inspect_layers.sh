# SPDX-License-Identifier: Apache-2.0
ckpt inspect fairseq2_native/llama_tp2dp2_fsdp2/ckpt --layers 1 --exclude '*.exp_avg*' -v
