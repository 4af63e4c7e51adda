// SPDX-License-Identifier: Apache-2.0
#include "convert/rules/trained_experts.h"

#include <array>
#include <optional>
#include <string_view>
#include <utility>

#include "ckpt/error.h"
#include "lib/text/number.h"
#include "models/view.h"

namespace ckpt::families {
namespace {

constexpr std::string_view kGateUp = "mlp.experts.gate_up_proj";
constexpr std::string_view kDown = "mlp.experts.down_proj";
constexpr uint64_t kMostExperts = 65'536;

struct Saved {
  std::string_view module, gate, up, down;
};
constexpr auto kSaved = std::to_array<Saved>({
    {"mlp.experts.", ".gate_proj.weight", ".up_proj.weight",
     ".down_proj.weight"},
    {"block_sparse_moe.experts.", ".w1.weight", ".w3.weight", ".w2.weight"},
});

}  // namespace

bool is_trained_experts(const Tensor& tensor) {
  return tensor.name.ends_with(kGateUp) || tensor.name.ends_with(kDown);
}

std::vector<std::string> saved_experts(
    const std::string& trained, const Shape& shape,
    const std::function<bool(const std::string&)>& there) {
  const bool both = trained.ends_with(kGateUp);
  if ((!both && !trained.ends_with(kDown)) || shape.size() != 3 ||
      shape[0] > kMostExperts)
    return {};
  const std::string stem = trained.substr(
      0, trained.size() - (both ? kGateUp.size() : kDown.size()));
  for (const Saved& saved : kSaved) {
    std::vector<std::string> names;
    for (uint64_t e = 0; e < shape[0]; ++e) {
      const std::string expert =
          stem + std::string(saved.module) + std::to_string(e);
      if (both) names.push_back(expert + std::string(saved.gate));
      names.push_back(expert + std::string(both ? saved.up : saved.down));
    }
    if (!names.empty() && there(names[0])) return names;
  }
  return {};
}

std::vector<Tensor> split_experts(const Tensor& trained,
                                  const std::vector<std::string>& saved) {
  const uint64_t experts = trained.shape[0];
  const uint64_t each = saved.size() / experts;
  const uint64_t rows = trained.shape[1] / each;
  if (trained.shape[1] % each != 0)
    throw unfaithful_error({{}, trained.name}, "shape {} is not of {} halves",
                           to_string(trained.shape), each);
  const View all = View::of(trained);
  std::vector<Tensor> parts;
  for (size_t i = 0; i < saved.size(); ++i) {
    Tensor& one = parts.emplace_back(Tensor{.name = saved[i]});
    all.slice(0, i / each, 1)
        .slice(1, i % each * rows, rows)
        .reshape({rows, trained.shape[2]})
        .into(one);
  }
  return parts;
}

std::vector<Tensor> split_trained(
    std::vector<Tensor> tensors,
    const std::function<bool(const std::string&)>& wanted) {
  std::vector<Tensor> made;
  for (Tensor& tensor : tensors) {
    std::vector<std::string> saved;
    if (is_trained_experts(tensor) && !wanted(tensor.name))
      saved = saved_experts(tensor.name, tensor.shape, wanted);
    if (saved.empty()) {
      made.push_back(std::move(tensor));
      continue;
    }
    for (Tensor& part : split_experts(tensor, saved)) {
      part.kind = tensor.kind;
      made.push_back(std::move(part));
    }
  }
  return made;
}

namespace {

// "model.layers.0.mlp.experts." and 3, from the name of an expert's tensor.
struct Expert {
  std::string stem;
  uint64_t number = 0;
  size_t part = 0;  // gate, up, down
};
std::optional<Expert> expert_of(const std::string& name) {
  constexpr std::string_view kWord = ".mlp.experts.";
  const std::string_view endings[] = {kSaved[0].gate, kSaved[0].up,
                                      kSaved[0].down};
  const size_t at = name.find(kWord);
  if (at == name.npos) return std::nullopt;
  std::string_view rest = std::string_view(name).substr(at + kWord.size());
  const auto number = text::take_number(rest);
  for (size_t part = 0; number && part < 3; ++part)
    if (rest == endings[part])
      return Expert{name.substr(0, at + kWord.size()), *number, part};
  return std::nullopt;
}

using Parts = std::array<std::map<uint64_t, const Tensor*>, 3>;

bool is_whole(const Parts& parts) {
  const size_t count = parts[0].size();
  for (const auto& part : parts)
    if (part.size() != count || part.rbegin()->first + 1 != count) return false;
  return count != 0;
}

}  // namespace

std::vector<Tensor> fuse_experts(std::vector<Tensor> saved,
                                 std::map<std::string, std::string>& fused) {
  std::map<std::string, Parts> layers;
  for (const Tensor& tensor : saved)
    if (const auto one = expert_of(tensor.name))
      layers[one->stem][one->part].emplace(one->number, &tensor);
  std::vector<Tensor> made;
  for (const auto& [stem, parts] : layers) {
    if (!is_whole(parts)) continue;
    std::vector<View> rows, columns;
    for (const auto& [number, gate] : parts[0]) {
      const View both[] = {View::of(*gate), View::of(*parts[1].at(number))};
      rows.push_back(View::concat(both, 0));
      columns.push_back(View::of(*parts[2].at(number)));
    }
    const std::string names[] = {stem + "gate_up_proj", stem + "down_proj"};
    View::stack(rows).into(made.emplace_back(Tensor{.name = names[0]}));
    View::stack(columns).into(made.emplace_back(Tensor{.name = names[1]}));
    for (size_t part = 0; part < 3; ++part)
      for (const auto& [number, tensor] : parts[part])
        fused[tensor->name] = names[part / 2];
  }
  for (Tensor& tensor : saved)
    if (!fused.contains(tensor.name)) made.push_back(std::move(tensor));
  return made;
}

}  // namespace ckpt::families
