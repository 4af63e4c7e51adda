// SPDX-License-Identifier: Apache-2.0
// The tensors of an adapter, by the modules of the base model that they
// change.
//
//   base_model.model.MODULE.lora_A.weight             [rank, in]
//   base_model.model.MODULE.lora_B.weight (.bias)     [out, rank]
//   base_model.model.MODULE.lora_embedding_A          [rank, rows]
//   base_model.model.MODULE.lora_embedding_B          [width, rank]
//   base_model.model.MODULE.lora_magnitude_vector     [out]: DoRA
//   base_model.model.MODULE.hada_w1_a, hada_w1_b      LoHa: [out, rank] and
//                          .hada_w2_a, hada_w2_b      [rank, in], two of each
//   base_model.model.MODULE.lokr_w1, lokr_w2          LoKr, each of which may
//                                                     be two: _a and _b
//   base_model.model.MODULE.weight                    a tensor that is whole
//   base_model.model.MODULE.base_layer.weight         the base's own, to which
//                                                     the factors are added:
//                                                     embeddings and heads, and
//                                                     .bias of `bias: all`
//
// A state dict has the adapter's name in it (lora_A.default.weight); a file
// that PEFT saved does not.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "ckpt/error.h"
#include "formats/peft/config.h"

namespace ckpt::peft {

struct Module {
  std::string name;  // PEFT's, which patterns of ranks and alphas are for
  const Tensor* a = nullptr;
  const Tensor* b = nullptr;
  const Tensor* bias = nullptr;  // of b
  // LoHa, LoKr: of the second product. Of LoKr's, b alone may be all of it.
  const Tensor* a2 = nullptr;
  const Tensor* b2 = nullptr;
  bool kronecker = false;  // LoKr
  const Tensor* magnitude = nullptr;
  bool embedding = false;
};

struct Adapter {
  Config config;
  Catalog catalog;                              // of the file
  std::map<std::string, Module> modules;        // by the base's names
  std::map<std::string, const Tensor*> wholes;  // likewise, of tensors
  std::map<std::string, const Tensor*> bases;   // before factors are added
};

// The tensors of an adapter, as they are: those of PEFT's files, if a folder
// has them, else of whatever format it is of.
Catalog open_files(const std::string& path);

// An adapter of PEFT's names (convert/adapters/peft_form.h). Throws
// unfaithful_error for parts that are not LoRA's, input_error for a factor
// without the other or with another rank than the configuration's.
Adapter sorted(Catalog catalog, const Config& config);

// What an adapter of any dialect lacks of what it needs, or promises: a factor
// without the other, one of another rank than the configuration's, one that is
// no number; modules that the configuration names and that nothing here is of,
// which peft warns of (adapter_bare). Reads no payload.
std::vector<Problem> check_parts(const Catalog& catalog, const Config& config);

// The first tensor of PEFT's own file that PEFT does not find: it looks for its
// prefix, the base's names and no adapter's name, and leaves the base as it is
// where there are others.
std::optional<Problem> other_names(const Catalog& catalog);

// Gives the modules the names of the base's tensors: some files prefix them
// with `model.` and some don't. Throws unfaithful_error naming what changes no
// tensor of `base`.
void meet_base(Adapter& adapter, const Catalog& base);

}  // namespace ckpt::peft
