// SPDX-License-Identifier: Apache-2.0
#include "formats/deepspeed/apart.h"

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>

#include "ckpt/error.h"
#include "containers/torch/tree.h"
#include "formats/deepspeed/expert_names.h"
#include "lib/io/file.h"
#include "lib/lost_file.h"
#include "lib/text/format.h"
#include "lib/text/number.h"

namespace ckpt::deepspeed {
namespace {

using text::printable;

constexpr std::string_view kGate = ".deepspeed_moe.gate.wg.weight";
constexpr std::string_view kExperts =
    ".deepspeed_moe.experts.deepspeed_experts.";

// What is in one MoE layer.
struct MoeLayer {
  std::map<uint64_t, std::map<std::string_view, const Tensor*>> experts;
  std::optional<uint64_t> count;  // by its gate
};

std::map<std::string_view, MoeLayer> layers_of(const Catalog& catalog) {
  std::map<std::string_view, MoeLayer> layers;
  for (const Tensor& tensor : catalog.tensors) {
    const std::string_view name = tensor.name;
    if (tensor.kind != Kind::model) continue;
    if (const auto one = parse_expert_name(name))
      layers[one->layer].experts[one->expert].emplace(one->rest, &tensor);
    else if (name.ends_with(kGate) && !tensor.shape.empty())
      layers[name.substr(0, name.size() - kGate.size())].count =
          tensor.shape[0];
  }
  return layers;
}

// How its files are called: by the number in those that are there.
std::string file_of(const Experts& experts, std::string_view layer,
                    uint64_t expert) {
  for (const auto& [place, slices] : experts)
    for (const auto& [name, ref] : slices.ranks.front())
      if (const auto one = parse_expert_name(name);
          one && one->layer == layer) {
        const std::string file = io::base_name(slices.paths.front());
        const size_t at = file.find("expert_");
        return fmt::format("{}expert_{}_mp_rank_00_model_states.pt",
                           file.substr(0, at), expert);
      }
  return fmt::format("layer_*_expert_{}_mp_rank_00_model_states.pt", expert);
}

void check_layer(const Experts& experts, const Catalog& catalog,
                 std::string_view name, const MoeLayer& layer) {
  const uint64_t last =
      layer.experts.empty() ? 0 : layer.experts.rbegin()->first + 1;
  const uint64_t count = layer.count.value_or(last);
  for (uint64_t e = 0; e < std::max(count, last); ++e) {
    const auto found = layer.experts.find(e);
    if (found == layer.experts.end())
      throw LostFile(input_error({catalog.path, printable(std::string(name))},
                                 "expert {} of {} is missing: there is no {}",
                                 e, std::max(count, last),
                                 file_of(experts, name, e))
                         .with_hint("fetch all files of the checkpoint"));
    if (e >= count)
      throw input_error({catalog.path, printable(std::string(name))},
                        "has an expert {}, its gate chooses among {}", e,
                        count);
    const auto& first = layer.experts.begin()->second;
    const bool alike = std::ranges::equal(
        first, found->second, [](const auto& a, const auto& b) {
          return a.first == b.first && a.second->shape == b.second->shape &&
                 a.second->dtype == b.second->dtype;
        });
    if (!alike)
      throw input_error({catalog.path, printable(std::string(name))},
                        "expert {} has other parameters than expert {}", e,
                        layer.experts.begin()->first);
  }
}

}  // namespace

std::optional<ExpertName> parse_expert_name(std::string_view name) {
  const size_t at = name.find(kExperts);
  if (at == name.npos) return std::nullopt;
  ExpertName out{.layer = name.substr(0, at)};
  name.remove_prefix(at + kExperts.size());
  const auto number = text::take_number(name, UINT32_MAX);
  if (!number || !name.starts_with('.')) return std::nullopt;
  out.expert = *number;
  out.rest = name;
  return out;
}

std::string expert_name(std::string_view layer, uint64_t expert,
                        std::string_view rest) {
  return fmt::format("{}{}{}{}", layer, kExperts, expert, rest);
}

void Slices::take(const FileName& file, const torch::Container& container,
                  const std::string& prefix) {
  if (file.mp != paths.size())
    throw LostFile(
        input_error({container.path, {}},
                    "is tensor-parallel rank {}'s: that of rank {} is missing",
                    file.mp, paths.size())
            .with_hint("fetch all files of the checkpoint"));
  const torch::Tree tree = torch::walk(container, container.document->root());
  paths.push_back(container.path);
  auto& named = ranks.emplace_back();
  for (const torch::NamedTensor& found : tree.tensors)
    named.emplace_back(prefix + found.name, found.ref);
}

void Slices::check(uint64_t tp, const std::string& what) const {
  if (ranks.size() == tp) return;
  throw LostFile(input_error({paths.front(), {}},
                             "{}: {} files, there are {} tensor-parallel ranks",
                             what, ranks.size(), tp)
                     .with_hint("fetch all files of the checkpoint"));
}

void check_experts(const Experts& experts, const Catalog& catalog) {
  const auto check = [](const std::string& path, const std::string& name,
                        uint64_t expert) {
    const auto one = parse_expert_name(name);
    if (!one)
      throw unfaithful_error({path, printable(name)},
                             "is of an expert, and not of DeepSpeed's own MoE "
                             "layers: how such ones are joined is not known");
    if (one->expert != expert)
      throw input_error({path, printable(name)},
                        "is of expert {}, and this is the file of expert {}",
                        one->expert, expert)
          .with_hint("two files were exchanged");
  };
  for (const auto& [place, slices] : experts)
    for (size_t rank = 0; rank < slices.ranks.size(); ++rank)
      for (const auto& [name, ref] : slices.ranks[rank])
        check(slices.paths[rank], name, place.second);
  for (const auto& [name, layer] : layers_of(catalog))
    check_layer(experts, catalog, name, layer);
}

}  // namespace ckpt::deepspeed
