// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/model/grouped.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_map>

#include "ckpt/error.h"
#include "formats/megatron/model/keys.h"
#include "models/view.h"

namespace ckpt::megatron {
namespace {

using families::View;

constexpr std::string_view kFirst = "mlp.experts.weight1";
constexpr std::string_view kSecond = "mlp.experts.weight2";

bool is_grouped(std::string_view name) {
  return name.ends_with(kFirst) || name.ends_with(kSecond);
}

// What comes before "mlp.".
std::string layer_of(std::string_view name) {
  return std::string(name.substr(0, name.rfind("mlp.")));
}

std::string model_name(const Tensor& tensor) {
  return tensor.param.empty() ? tensor.name : tensor.param;
}

// Rows of the routers, by layer.
std::unordered_map<std::string, uint64_t> experts_of(const Catalog& catalog) {
  std::unordered_map<std::string, uint64_t> experts;
  for (const Tensor& tensor : catalog.tensors)
    if (tensor.kind == Kind::model &&
        tensor.name.ends_with("mlp.router.weight") && !tensor.shape.empty())
      experts[layer_of(tensor.name)] = tensor.shape[0];
  return experts;
}

// The elements of expert `e` in a matrix of all experts, transposed.
View expert_view(const View& all, bool first, uint64_t experts, uint64_t e) {
  const Shape& shape = all.shape();
  const Shape each = first ? Shape{shape[0], shape[1] / experts}
                           : Shape{shape[0] / experts, shape[1]};
  return all.reshape({experts, each[0], each[1]})
      .slice(0, e, 1)
      .reshape(each)
      .permute({1, 0});
}

void split(const Tensor& tensor, uint64_t experts, std::vector<Tensor>& all) {
  constexpr uint64_t kMost = uint64_t{1} << 20;
  const std::string name = model_name(tensor);
  const bool first = name.ends_with(kFirst);
  const size_t axis = first ? 1 : 0;
  if (tensor.shape.size() != 2 || experts == 0 || experts > kMost ||
      tensor.shape[axis] % experts != 0)
    throw unfaithful_error({{}, tensor.name},
                           "shape {} does not hold {} experts of one size",
                           to_string(tensor.shape), experts);
  const View view = View::of(tensor);
  for (uint64_t e = 0; e < experts; ++e) {
    Tensor one = tensor;
    one.tp = {};
    const std::string module = fmt::format("{}mlp.experts.linear_fc{}.weight{}",
                                           layer_of(name), first ? 1 : 2, e);
    one.name = tensor.kind == Kind::optim
                   ? fmt::format("optimizer.state.{}.{}", tensor.state, module)
                   : module;
    if (!one.param.empty()) one.param = module;
    expert_view(view, first, experts, e).into(one);
    all.push_back(std::move(one));
  }
}

}  // namespace

void split_grouped_experts(Catalog& catalog, const Facts& facts) {
  const auto grouped = [](const Tensor& tensor) {
    return is_grouped(model_name(tensor));
  };
  if (std::ranges::none_of(catalog.tensors, grouped)) return;
  locate(catalog);
  const auto experts = experts_of(catalog);
  std::vector<Tensor> all;
  for (Tensor& tensor : catalog.tensors) {
    if (!grouped(tensor)) {
      all.push_back(std::move(tensor));
      continue;
    }
    const auto found = experts.find(layer_of(model_name(tensor)));
    const uint64_t count =
        found == experts.end() ? facts.num_experts.value_or(0) : found->second;
    if (count == 0)
      throw unfaithful_error({catalog.path, tensor.name},
                             "holds several experts; how many is not known")
          .with_hint("the args or the layer's router would say it");
    split(tensor, count, all);
  }
  catalog.tensors = std::move(all);
}

}  // namespace ckpt::megatron
