# SPDX-License-Identifier: Apache-2.0
ckpt inspect torch_pt/training_objects/ckpt/ckpt_p2.pt --objects
