// SPDX-License-Identifier: Apache-2.0
// An adapter of any dialect (formats/peft/names.h) under PEFT's names, for the
// modules of its base in transformers' names:
//
//   kohya       lora_unet_a_0_b.lora_up.weight base_model.model.a.0.b.lora_B.…
//   torchtune   layers.0.attn.q_proj.lora_b      …, with transformers' rotary
//   mlx         M.lora_a [in, r]                 [r, in]
//   bridge      ….linear_qkv.adapter.linear_out  three factors, by the family's
//   litgpt      ….attn.qkv.lora_B                rules; those of q, k and v
//
// Nothing is read but single numbers (alpha): factors are views.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "convert/adapters/base.h"
#include "formats/peft/config.h"

namespace ckpt::families {

struct PeftForm {
  Catalog catalog;
  peft::Config config;
  // Components with factors for another model than the base: "te" of kohya's.
  std::vector<std::string> elsewhere;
  // The frozen base of a live model that was saved with the adapter in it.
  std::vector<Tensor> frozen;
};

// Throws unfaithful_error, naming module and next step, for what has no place
// in the base, and for an adapter whose alpha nothing says: `alpha` says it
// (--adapter-alpha), before any file.
PeftForm in_peft_form(Catalog source, const AdapterBase& base,
                      std::optional<double> alpha);

// adapter_config.json for it.
std::string peft_config_text(const PeftForm& form);

}  // namespace ckpt::families
