ckpt --help
