ckpt inspect torch_pt/training_objects/ckpt/ckpt_p2.pt --objects
