// SPDX-License-Identifier: Apache-2.0
// The file names under which libraries look for weights in a folder:
//
//   model.safetensors                         one file
//   model-00001-of-00002.safetensors          a shard
//   model.safetensors.index.json              its index
//   model.fp16.safetensors, model.fp16-00001-of-00002.safetensors,
//   model.safetensors.index.fp16.json         the same of a variant
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "ckpt/catalog.h"

namespace ckpt::formats {

// What a library calls its files, without their endings. Sources:
// SAFE_WEIGHTS_NAME and WEIGHTS_NAME in transformers', diffusers' and PEFT's
// utils, LORA_WEIGHT_NAME in diffusers' loaders, HF_WEIGHTS_NAME in open_clip's
// constants.
struct WeightNames {
  std::string_view library;
  std::string_view safetensors;
  std::string_view torch;  // .bin
};

// In the order in which a folder is searched.
std::span<const WeightNames> weight_names();

// The names of a target's files.
struct Stem {
  std::string name;     // "diffusion_pytorch_model"
  std::string variant;  // "fp16", or ""
  std::string ending;   // ".safetensors" or ".bin"

  std::string file(uint64_t number, uint64_t count) const;  // counts from 1
  std::string index() const;
};

// True if every file of the model's tensors is one that a library looks for: it
// takes the names in them as they are.
bool is_named_for_library(const Catalog& source);

// True for the name of a weights' file that a library looks for.
bool has_loader(std::string_view file);

// True if transformers or diffusers looks for weights, or an index, of this
// name.
bool has_index_loader(std::string_view file);

// Warns ("no_index") if `names` are a folder's files x of N, without an index,
// of a library that does not open such.
void check_has_index(const std::string& directory,
                     std::span<const std::string> names,
                     std::vector<Problem>& problems);

// Warns ("variant_alone") if the weights of a folder with a config.json, or
// their index, are a variant's or of a name that only MLX looks for: the other
// loaders don't open them unasked.
void check_opened_unasked(const std::string& directory, std::string_view file,
                          std::vector<Problem>& problems);

// The names for `source`'s tensors: those of its own files if a library looks
// for them, as that library spells them with this ending; else transformers'. A
// variant that says a dtype is kept while the tensors have it.
Stem stem_like(const Catalog& source, std::string_view ending);

}  // namespace ckpt::formats
