// SPDX-License-Identifier: Apache-2.0
#include "formats/deepspeed/model_states.h"

#include <algorithm>

#include "ckpt/error.h"
#include "containers/torch/tensors.h"
#include "formats/megatron/model/facts.h"
#include "lib/text/format.h"

namespace ckpt::deepspeed {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::Type;
using text::printable;

std::vector<NamedShape> read_shapes(const ModelRank& rank, Id node,
                                    const char* what) {
  const Document& document = *rank.container.document;
  std::vector<NamedShape> out;
  const auto pairs = document.as_pairs(node);
  if (!pairs) throw input_error({rank.path, {}}, "{} is not a dict", what);
  for (size_t i = 0; i + 1 < pairs->size(); i += 2) {
    const Id key = (*pairs)[i];
    const auto ints = torch::as_ints(document, (*pairs)[i + 1]);
    if (!document.is(key, Type::kString) || !ints || ints->size() > kMaxRank ||
        std::ranges::any_of(*ints, [](int64_t n) { return n < 0; }))
      throw input_error({rank.path, {}}, "{} is malformed", what);
    NamedShape entry;
    entry.name = document.text(key);
    for (const int64_t n : *ints)
      entry.shape.push_back(static_cast<uint64_t>(n));
    const auto bytes = byte_size(DType::f64, entry.shape);
    if (!bytes)
      throw input_error({rank.path, printable(entry.name)},
                        "{} says {}: too large", what, to_string(entry.shape));
    entry.numel = *element_count(entry.shape);
    out.push_back(std::move(entry));
  }
  return out;
}

// A list of dicts, one per group; in older versions, one dict.
void read_param_shapes(ModelRank& rank) {
  const Document& document = *rank.container.document;
  const Id node = rank.find("param_shapes");
  if (node == pickle::kNoId || document.is(node, Type::kNone)) return;
  rank.has_shapes = true;
  if (!document.is(node, Type::kList) && !document.is(node, Type::kTuple)) {
    rank.groups.push_back(read_shapes(rank, node, "param_shapes"));
    return;
  }
  for (const Id group : document.items(node))
    rank.groups.push_back(read_shapes(rank, group, "param_shapes"));
}

std::optional<uint64_t> as_size(const Document& document, Id node) {
  const auto value = document.as_int(node);
  if (!value || *value < 1 || *value > (1 << 24)) return std::nullopt;
  return static_cast<uint64_t>(*value);
}

void read_sizes(ModelRank& rank) {
  const Document& document = *rank.container.document;
  const Id sizes = rank.find("checkpoint_parallel_dimensions");
  rank.tp = as_size(document, document.find(sizes, "tp_degree"));
  rank.pp = as_size(document, document.find(sizes, "pp_degree"));
  // A world of pipelines counts stages, too; args say it alone.
  const Id args = megatron::args_dict(document, rank.find("args"));
  for (const char* key : {"tensor_model_parallel_size", "model_parallel_size"})
    if (!rank.tp) rank.tp = as_size(document, document.find(args, key));
  if (!rank.tp) rank.tp = as_size(document, rank.find("mp_world_size"));
  rank.dp_world = as_size(document, rank.find("dp_world_size"));
  const Id zero = document.find(rank.find("ds_config"), "zero_optimization");
  rank.stage = as_size(document, document.find(zero, "stage")).value_or(0);
}

void read_shared(ModelRank& rank) {
  const Document& document = *rank.container.document;
  const Id node = rank.find("shared_params");
  auto pairs = document.as_pairs(node);
  // In older versions, a list of pairs.
  if (!pairs && document.is(node, Type::kList)) {
    pairs.emplace();
    for (const Id item : document.items(node)) {
      const bool pair =
          (document.is(item, Type::kList) || document.is(item, Type::kTuple)) &&
          document.items(item).size() == 2;
      if (!pair)
        throw input_error({rank.path, {}}, "shared_params is malformed");
      pairs->push_back(document.items(item)[0]);
      pairs->push_back(document.items(item)[1]);
    }
  }
  if (!pairs) return;
  for (size_t i = 0; i + 1 < pairs->size(); i += 2) {
    if (!document.is((*pairs)[i], Type::kString) ||
        !document.is((*pairs)[i + 1], Type::kString))
      throw input_error({rank.path, {}}, "shared_params is malformed");
    rank.shared.emplace_back(document.text((*pairs)[i]),
                             document.text((*pairs)[i + 1]));
  }
}

void read_buffers(ModelRank& rank) {
  const Document& document = *rank.container.document;
  const Id node = rank.find("buffer_names");
  if (!document.is(node, Type::kList)) return;
  for (const Id item : document.items(node))
    if (document.is(item, Type::kString))
      rank.buffers.emplace(document.text(item));
}

std::string without(const std::string& name, std::string_view prefix) {
  return name.substr(prefix.size());
}

}  // namespace

ModelRank read_model_rank(torch::Container container) {
  ModelRank rank;
  rank.path = container.path;
  rank.container = std::move(container);
  const Document& document = *rank.container.document;
  if (!document.as_pairs(document.root()))
    throw input_error({rank.path, {}}, "expected a dict");
  rank.tree = torch::walk(rank.container, document.root());
  read_param_shapes(rank);
  const Id frozen = rank.find("frozen_param_shapes");
  if (document.as_pairs(frozen))
    rank.frozen = read_shapes(rank, frozen, "frozen_param_shapes");
  read_shared(rank);
  read_buffers(rank);
  read_sizes(rank);
  std::set<std::string_view> shaped;
  for (const auto& group : rank.groups)
    for (const NamedShape& entry : group) shaped.insert(entry.name);
  for (const NamedShape& entry : rank.frozen) shaped.insert(entry.name);
  for (const torch::NamedTensor& found : rank.tree.tensors) {
    if (found.path.size() < 2) continue;
    if (found.path[0] == "module") {
      std::string name = without(found.name, "module.");
      const bool empty = element_count(found.ref.shape) == 0u;
      if (!empty || !shaped.contains(name))
        rank.module.emplace_back(std::move(name), found.ref);
    } else if (found.path[0] == "frozen_param_fragments") {
      rank.fragments.emplace_back(
          without(found.name, "frozen_param_fragments."), found.ref);
    }
  }
  return rank;
}

}  // namespace ckpt::deepspeed
