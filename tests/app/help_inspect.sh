ckpt inspect --help
