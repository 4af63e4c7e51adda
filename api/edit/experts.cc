// SPDX-License-Identifier: Apache-2.0
#include "api/edit/experts.h"

#include <fmt/format.h>

#include <algorithm>

#include "api/edit/layer_place.h"
#include "ckpt/error.h"
#include "formats/megatron/model/keys.h"
#include "lib/text/format.h"
#include "lib/text/number.h"
#include "models/view.h"

namespace ckpt::library {
namespace {

using What = ExpertName::What;

// DeepSeek V4's first layers look up the experts of a token (tid2eid).
bool is_index(DType dtype) {
  return dtype == DType::i64 || dtype == DType::i32;
}

// True if the rows belong to one expert after another: in dbrx and OLMo-core,
// and in Llama 4, whose names say so (moe_w_in_eD_F). Elsewhere, a size
// divisible by the number of experts is a coincidence.
bool has_expert_blocks(const Tensor& tensor, std::string_view key,
                       std::string_view router) {
  if (tensor.kind == Kind::optim) return true;
  if (!router.empty())
    return tensor.shape.size() == 1 && key.ends_with(".router.weight");
  return key.find("experts.mlp.") != key.npos ||
         key.find("experts.moe_w_") != key.npos;
}

// Optimizer state is treated like its parameter, whatever its own name is.
std::string_view key_of(const Tensor& tensor) {
  const std::string& name = tensor.param.empty() ? tensor.name : tensor.param;
  const megatron::Key key = megatron::parse_key(name);
  return key.rooted ? key.name : std::string_view(name);
}

class Cut {
 public:
  Cut(Catalog& catalog, const std::string& list, Edits& edits)
      : catalog_(catalog),
        list_(list),
        edits_(edits),
        kept_(parse_experts(list)) {}

  KeptExperts run() {
    survey();
    count();
    check_flat();
    if (std::ranges::any_of(catalog_.tensors, [&](const Tensor& tensor) {
          return cuts(tensor) &&
                 std::ranges::any_of(tensor.pieces, [](const Piece& piece) {
                   return piece.extent.archive != 0;
                 });
        }))
      locate(catalog_);
    for (Tensor& tensor : catalog_.tensors) cut(tensor);
    check_routers();
    check_rest();
    rename();
    keep_objects();
    return {fmt::format("--experts {}: {} of {} experts kept, as 0 to {}",
                        list_, kept_.size(), experts_, kept_.size() - 1),
            follow_experts(catalog_, experts_, kept_)};
  }

 private:
  void survey();
  void count();
  void check_flat() const;
  bool cuts(const Tensor& tensor) const;
  void cut(Tensor& tensor);
  void keep_rows(Tensor& tensor, uint32_t axis, uint64_t rows);
  std::optional<uint32_t> axis_of(const Tensor& tensor, bool last) const;
  void check_routers() const;
  void check_rest() const;
  bool may_count(const Tensor& tensor, std::string_view key) const;
  void rename();
  void keep_objects();
  bool keep_object(Object& object) const;
  std::optional<uint64_t> new_number(uint64_t expert) const;
  // The name with its expert's new number; nothing if that expert is removed.
  std::optional<std::string> renamed(const std::string& name) const;
  uint32_t first_axis(const Tensor& tensor) const {
    return stacked_layers(catalog_, tensor) != 0 ? 1 : 0;
  }

  Catalog& catalog_;
  const std::string& list_;
  Edits& edits_;
  std::vector<uint64_t> kept_;
  uint64_t experts_ = 0;
  std::set<std::string, std::less<>> modules_;  // modules with experts
  std::set<std::string, std::less<>> routed_;   // … whose router was cut
  uint64_t numbers_ = 0;  // one more than the highest number in a name
  std::string numbered_;  // a tensor with that number
  uint64_t rows_ = 0;     // of a stacked tensor of three dimensions
};

void Cut::survey() {
  for (const Tensor& tensor : catalog_.tensors) {
    const ExpertName name = parse_expert_name(key_of(tensor));
    if (name.what == What::kNone) continue;
    modules_.emplace(name.module);
    if (name.what == What::kNumbered && name.expert >= numbers_) {
      numbers_ = name.expert + 1;
      numbered_ = tensor.name;
    }
    const uint32_t axis = first_axis(tensor);
    if (name.what == What::kStacked && tensor.shape.size() == axis + 3)
      rows_ = tensor.shape[axis];
  }
  if (modules_.empty())
    throw unfaithful_error({catalog_.path, {}},
                           "--experts {}: no tensor name has an expert", list_)
        .with_hint(
            "only mixtures of experts have them; inspect shows the "
            "names");
}

void Cut::count() {
  experts_ = experts_in_config(catalog_);
  if (experts_ == 0) experts_ = std::max(numbers_, rows_);
  if (experts_ == 0)
    throw unfaithful_error({catalog_.path, {}},
                           "--experts {}: neither names nor a configuration "
                           "say how many experts there are",
                           list_);
  if (numbers_ > experts_)
    throw unfaithful_error({catalog_.path, numbered_},
                           "is of expert {}, the configuration has {} experts",
                           numbers_ - 1, experts_);
  if (kept_.back() >= experts_)
    throw usage_error({catalog_.path, {}},
                      "--experts {}: there is no expert {}; the source has {}, "
                      "0 to {}",
                      list_, kept_.back(), experts_, experts_ - 1);
}

// Checks for a buffer that holds many parameters, one after another.
void Cut::check_flat() const {
  for (const Tensor& tensor : catalog_.tensors)
    if (megatron::is_bucket_key(tensor.name))
      throw unfaithful_error({catalog_.path, tensor.name},
                             "--experts: a flat buffer holds the optimizer "
                             "state of all experts")
          .with_hint(
              "--model-only, or first a reshard with --optim "
              "fully_reshardable");
}

bool Cut::cuts(const Tensor& tensor) const {
  const std::string_view key = key_of(tensor);
  return parse_expert_name(key).what == What::kStacked ||
         !router_part(key, modules_).empty();
}

// The dimension that counts experts. `last`: search from the last one.
std::optional<uint32_t> Cut::axis_of(const Tensor& tensor, bool last) const {
  const auto rank = static_cast<uint32_t>(tensor.shape.size());
  std::optional<uint32_t> found;
  for (uint32_t axis = first_axis(tensor); axis < rank; ++axis)
    if (tensor.shape[axis] == experts_ && (last || !found)) found = axis;
  return found;
}

void Cut::cut(Tensor& tensor) {
  const std::string_view key = key_of(tensor);
  const ExpertName name = parse_expert_name(key);
  if (name.what == What::kNumbered) return;
  const std::string_view part =
      name.what == What::kNone ? router_part(key, modules_) : "";
  if (name.what == What::kNone && part.empty()) return;
  const uint32_t first = first_axis(tensor);
  if (tensor.shape.size() <= first) return;  // an optimizer's step
  if (!part.empty() && is_index(tensor.dtype))
    throw unfaithful_error({catalog_.path, tensor.name},
                           "--experts: a table of {} picks experts by their "
                           "numbers, which change",
                           ckpt::name(tensor.dtype));
  const auto axis = name.what == What::kStacked
                        ? std::optional(first)
                        : axis_of(tensor, part == "router_DE");
  if (axis && tensor.shape[*axis] == experts_) {
    keep_rows(tensor, *axis, 1);
  } else if (const uint64_t rows = tensor.shape[first];
             tensor.shape.size() <= first + 2 && rows % experts_ == 0 &&
             rows != 0 && has_expert_blocks(tensor, key, part)) {
    keep_rows(tensor, first, rows / experts_);
  } else {
    throw unfaithful_error({catalog_.path, tensor.name},
                           "--experts: {} has no dimension of {} experts",
                           to_string(tensor.shape), experts_);
  }
  if (!part.empty())
    routed_.emplace(
        key.substr(0, static_cast<size_t>(part.data() - key.data()) - 1));
}

// Each expert has `rows` of them.
void Cut::keep_rows(Tensor& tensor, uint32_t axis, uint64_t rows) {
  const families::View all = families::View::of(tensor);
  std::vector<families::View> parts;
  for (size_t i = 0; i < kept_.size();) {
    size_t end = i + 1;
    while (end < kept_.size() && kept_[end] == kept_[end - 1] + 1) ++end;
    parts.push_back(all.slice(axis, kept_[i] * rows, (end - i) * rows));
    i = end;
  }
  families::View::concat(parts, axis).into(tensor);
  edits_[tensor.name] = {edit_of(edits_, tensor.name).stored, true};
}

// A router that picks among more experts than exist fails on the first token.
void Cut::check_routers() const {
  const bool whole =
      std::ranges::any_of(catalog_.tensors, [&](const Tensor& tensor) {
        return !router_part(key_of(tensor), modules_).empty();
      });
  if (!whole) return;  // --keys left none
  for (const std::string& module : modules_)
    if (!routed_.contains(module))
      throw unfaithful_error({catalog_.path, module},
                             "--experts: no router of these experts is known")
          .with_hint("inspect shows the names beside them");
}

// Looks for tensors that stayed whole but count experts: matrices stacked under
// another name, a router with another name, or what that adds to its scores.
void Cut::check_rest() const {
  for (const Tensor& tensor : catalog_.tensors) {
    const std::string_view key = key_of(tensor);
    if (tensor.kind == Kind::optim || cuts(tensor) ||
        parse_expert_name(key).what != What::kNone || !may_count(tensor, key))
      continue;
    throw unfaithful_error({catalog_.path, tensor.name},
                           "--experts: {} has as many rows as there are "
                           "experts, and nothing says whether they are theirs",
                           to_string(tensor.shape))
        .with_hint("--exclude leaves it out");
  }
}

bool Cut::may_count(const Tensor& tensor, std::string_view key) const {
  const uint32_t first = first_axis(tensor);
  const size_t rank = tensor.shape.size();
  if (rank <= first || tensor.shape[first] != experts_) return false;
  if (rank == first + 3)
    return layer_of(key).has_value() && key.find("conv") == key.npos;
  const size_t dot = key.rfind('.');
  if (rank == first + 1)
    return dot != key.npos && modules_.contains(key.substr(0, dot));
  return std::ranges::any_of(modules_, [&](const std::string& module) {
    return !routed_.contains(module) && key.starts_with(module) &&
           key.substr(module.size()).starts_with('.') &&
           key.find("shared") == key.npos;
  });
}

std::optional<uint64_t> Cut::new_number(uint64_t expert) const {
  return new_expert(kept_, expert);
}

std::optional<std::string> Cut::renamed(const std::string& name) const {
  const ExpertName parsed = parse_expert_name(name);
  if (parsed.what != What::kNumbered) return name;
  const auto number = new_number(parsed.expert);
  if (!number) return std::nullopt;
  return name.substr(0, parsed.begin) + std::to_string(*number) +
         name.substr(parsed.end);
}

void Cut::rename() {
  Edits edits;
  std::erase_if(catalog_.tensors, [&](Tensor& tensor) {
    const auto name = renamed(tensor.name), param = renamed(tensor.param);
    if (!name || !param) return true;
    edits[*name] = edit_of(edits_, tensor.name);
    tensor.name = *name;
    tensor.param = *param;
    return false;
  });
  edits_ = std::move(edits);
  std::erase_if(catalog_.claims, [&](Claim& claim) {
    const auto exact = renamed(claim.exact), rounded = renamed(claim.rounded);
    if (!exact || !rounded) return true;
    claim.exact = *exact;
    claim.rounded = *rounded;
    return false;
  });
  if (!catalog_.skeleton) return;
  // No tensor has that name because it was left out.
  for (auto& [node, name] : catalog_.skeleton->tensors)
    name = renamed(name).value_or("");
}

void Cut::keep_objects() {
  std::erase_if(catalog_.objects,
                [&](Object& object) { return !keep_object(object); });
}

// An object in a grid of experts moves to its new place or is removed.
bool Cut::keep_object(Object& object) const {
  const auto place = megatron::parse_object_key(object.name);
  if (!place || place->grid.empty()) {
    const auto name = renamed(object.name);
    if (name) object.name = *name;
    return name.has_value();
  }
  const megatron::Key key = megatron::parse_key(place->key);
  if (parse_expert_name(key.name).what == What::kNumbered) {
    const auto name = renamed(std::string(place->key));
    if (name)
      object.name = megatron::object_key(*name, place->offset, place->grid);
    return name.has_value();
  }
  const size_t axis = key.layer_axis ? 1 : 0;
  if (parse_expert_name(key.name).what != What::kStacked ||
      place->grid.size() <= axis || place->grid[axis] != experts_)
    return true;
  const auto number = new_number(place->offset[axis]);
  if (!number) return false;
  auto offset = place->offset, grid = place->grid;
  offset[axis] = *number;
  grid[axis] = kept_.size();
  object.name = megatron::object_key(place->key, offset, grid);
  return true;
}

}  // namespace

KeptExperts keep_experts(Catalog& catalog, const std::string& list,
                         Edits& edits) {
  return Cut(catalog, list, edits).run();
}

}  // namespace ckpt::library
