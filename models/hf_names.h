// SPDX-License-Identifier: Apache-2.0
// The two names that transformers 5 has for a tensor: its module's, and the one
// that save_pretrained writes, which the Hub's files have.
//
//   Hub's                                     module's
//   model.layers.0.mlp.experts.E.gate_proj.weight [I, H]  ┐
//   …mlp.experts.gate_up_proj model.layers.0.mlp.experts.E.up_proj.weight   [I,
//   H]  ┘ [E, 2 * I, H] language_model.model.layers.0.…
//   model.language_model.layers.0.…
//
// families/hf_names.json has them by class, as tests/generators/hf_names.py saw
// transformers itself save one of each. In its names {} is any number.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::families {

enum class HfNames { kHub, kModule };

// Gives the model's tensors these names, and cuts or joins experts for it: only
// pieces change. `config` is the model's config.json, whose first architecture
// is the class. A tensor that has its name already keeps it. Places must be
// located. Throws unfaithful_error for a class that the table lacks, names of
// both kinds, experts of which some are missing, or that aren't alike, parts of
// experts that the table does not know (scales), and optimizer state of renamed
// parameters.
void take_hf_names(Catalog& catalog, const nlohmann::json& config,
                   HfNames wanted);

// The Hub's name of a module's tensor; the same where it has no other, or is a
// part of one.
std::string hub_name(const std::string& name, const nlohmann::json& config);

// The first words of the names that transformers looks for in a file of this
// class or of its backbone ("bert", "embeddings", "encoder"); none for a class
// that it lacks, or whose code is the folder's own. families/hf_words.json has
// them by class, as tests/generators/hf_words.py saw its modules.
std::vector<std::string> first_words(const nlohmann::json& config);

// True for types whose layers lack tensors that their neighbours have, by
// design: activations without parameters among them (EnCodec), depths that the
// configuration scales (EfficientNet). families/hf_words.json has those whose
// own class, made by tests/generators/hf_uneven.py, looks like a model that has
// lost some.
bool has_uneven_layers(const nlohmann::json& config);

// True if some tensor has a module's name, of a class whose Hub's names differ.
bool has_module_names(const Catalog& catalog, const nlohmann::json& config);

}  // namespace ckpt::families
