# SPDX-License-Identifier: Apache-2.0
ckpt inspect torch_pt/torch2.7.1/ckpt/model.pt --json
