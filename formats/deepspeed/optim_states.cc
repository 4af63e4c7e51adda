// SPDX-License-Identifier: Apache-2.0
#include "formats/deepspeed/optim_states.h"

#include "ckpt/error.h"
#include "containers/torch/tensors.h"
#include "lib/text/format.h"

namespace ckpt::deepspeed {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::Type;
using text::printable;

class Parser {
 public:
  explicit Parser(const torch::Container& container)
      : container_(container), document_(*container.document) {}

  OptimRank parse() {
    OptimRank out;
    out.path = container_.path;
    const Id state = document_.find(document_.root(), "optimizer_state_dict");
    if (!document_.as_pairs(state)) fail("has no optimizer_state_dict");
    const Id flat3 = document_.find(state, "fp32_flat_groups");
    const bool third = flat3 != pickle::kNoId;
    out.stage = stage_of(document_.find(state, "zero_stage"), third);
    if ((out.stage == 3) != third)
      fail("zero_stage {} {} fp32_flat_groups", out.stage,
           third ? "with" : "without");
    read_counts(document_.find(state, "partition_count"), out);
    if (third)
      read_groups(flat3, document_.find(state, "optimizer_state_dict"), out);
    else
      read_groups(document_.find(state, "single_partition_of_fp32_groups"),
                  document_.find(state, "base_optimizer_state"), out);
    if (!third)
      read_mappings(document_.find(state, "param_slice_mappings"), out);
    check_partition_groups(document_.find(state, "ds_zero_partition_groups"));
    return out;
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> text,
                         Args&&... args) const {
    throw input_error({container_.path, {}}, text, std::forward<Args>(args)...);
  }

  bool is_list(Id id) const {
    return document_.is(id, Type::kList) || document_.is(id, Type::kTuple);
  }

  // ZeroStageEnum(n), or n.
  uint32_t stage_of(Id node, bool third) const {
    std::optional<int64_t> stage = document_.as_int(node);
    if (document_.is(node, Type::kCall)) {
      const auto args = document_.items(document_.call(node).args);
      if (args.size() == 1) stage = document_.as_int(args[0]);
    }
    if (!stage) return third ? 3 : 1;
    if (*stage < 1 || *stage > 3) fail("zero_stage is {}", *stage);
    return static_cast<uint32_t>(*stage);
  }

  void read_counts(Id node, OptimRank& out) const {
    if (const auto count = document_.as_int(node)) {
      out.partition_counts.push_back(static_cast<uint64_t>(*count));
    } else if (const auto counts = torch::as_ints(document_, node)) {
      for (const int64_t n : *counts)
        out.partition_counts.push_back(static_cast<uint64_t>(n));
    }
  }

  std::optional<torch::TensorRef> tensor(Id node,
                                         const std::string& name) const {
    return torch::as_tensor(document_, node, container_.storages, name);
  }

  Flat flat_of(const torch::TensorRef& ref, const std::string& name) const {
    if (ref.shape.size() > 1 || !ref.extent.strides.empty() ||
        ref.distributed || element_size(ref.dtype) == 0)
      throw input_error({container_.path, printable(name)},
                        "is {}, not a flat vector", to_string(ref.shape));
    return {ref.dtype, ref.extent.file, ref.extent.offset,
            ref.shape.empty() ? 1 : ref.shape[0], ref.transform};
  }

  void read_groups(Id list, Id optimizer, OptimRank& out) const {
    if (!is_list(list)) fail("has no list of fp32 partitions");
    const size_t count = document_.items(list).size();
    for (size_t g = 0; g < count; ++g) {
      const std::string name = fmt::format("fp32 group {}", g);
      const auto ref = tensor(document_.items(list)[g], name);
      if (!ref)
        throw unfaithful_error({container_.path, name},
                               "is not a tensor: perhaps it was offloaded");
      Group& group = out.groups.emplace_back();
      group.fp32 = flat_of(*ref, name);
      read_states(state_of(optimizer, g), g, group);
    }
  }

  // {"state": {g: …}}, or (elastic checkpoints) a list.
  Id state_of(Id optimizer, size_t g) const {
    if (is_list(optimizer)) {
      const auto items = document_.items(optimizer);
      return g < items.size() ? items[g] : pickle::kNoId;
    }
    const auto pairs = document_.as_pairs(document_.find(optimizer, "state"));
    if (!pairs) return pickle::kNoId;
    for (size_t i = 0; i + 1 < pairs->size(); i += 2)
      if (document_.as_int((*pairs)[i]) == static_cast<int64_t>(g))
        return (*pairs)[i + 1];
    return pickle::kNoId;
  }

  void read_states(Id state, size_t g, Group& group) const {
    const auto pairs = document_.as_pairs(state);
    if (!pairs) return;
    for (size_t i = 0; i + 1 < pairs->size(); i += 2) {
      if (!document_.is((*pairs)[i], Type::kString)) continue;
      const std::string key(document_.text((*pairs)[i]));
      const std::string name = fmt::format("{} of group {}", key, g);
      const auto ref = tensor((*pairs)[i + 1], name);
      if (!ref) continue;  // a number is among the objects
      const Flat flat = flat_of(*ref, name);
      const bool scalar =
          ref->shape.empty() || (flat.numel == 1 && key == "step");
      (scalar ? group.scalars : group.states).emplace(key, flat);
    }
  }

  void read_mappings(Id list, OptimRank& out) const {
    if (!is_list(list)) return;
    if (document_.items(list).size() != out.groups.size())
      fail("param_slice_mappings of {} groups, {} are stored",
           document_.items(list).size(), out.groups.size());
    for (const Id node : document_.items(list)) {
      auto& map = out.mappings.emplace_back();
      const auto pairs = document_.as_pairs(node);
      if (!pairs) fail("param_slice_mappings is malformed");
      for (size_t i = 0; i + 1 < pairs->size(); i += 2)
        add_fragment((*pairs)[i], (*pairs)[i + 1], map);
    }
  }

  void add_fragment(Id key, Id value,
                    std::map<std::string, Fragment>& map) const {
    Id members = value;
    if (document_.is(value, Type::kCall)) members = document_.call(value).state;
    const auto start = document_.as_int(document_.find(members, "start"));
    const auto numel = document_.as_int(document_.find(members, "numel"));
    if (!document_.is(key, Type::kString) || !start || !numel || *start < 0 ||
        *numel < 0)
      fail("param_slice_mappings is malformed");
    if (*numel == 0) return;
    map.emplace(
        std::string(document_.text(key)),
        Fragment{static_cast<uint64_t>(*start), static_cast<uint64_t>(*numel)});
  }

  // AutoEP partitions experts over fewer ranks than other parameters.
  void check_partition_groups(Id node) const {
    if (!is_list(node) || document_.items(node).empty()) return;
    throw unfaithful_error({container_.path, {}},
                           "has ds_zero_partition_groups: sub-groups that are "
                           "cut over different ranks, which ckpt does not "
                           "read")
        .with_hint(
            "convert the checkpoint with DeepSpeed's ds_to_universal, "
            "and open the result");
  }

  const torch::Container& container_;
  const Document& document_;
};

}  // namespace

OptimRank read_optim_rank(const torch::Container& container) {
  return Parser(container).parse();
}

}  // namespace ckpt::deepspeed
