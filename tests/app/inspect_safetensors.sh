ckpt inspect safetensors/hf_sharded/ckpt
