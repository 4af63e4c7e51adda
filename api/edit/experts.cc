// SPDX-License-Identifier: Apache-2.0
#include "api/edit/experts.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>

#include "api/edit/layers.h"
#include "api/edit/number_list.h"
#include "ckpt/error.h"
#include "formats/megatron/model/keys.h"
#include "lib/text/format.h"
#include "lib/text/number.h"
#include "models/view.h"

namespace ckpt::library {
namespace {

using What = ExpertName::What;

constexpr NumberList kExpertList{.option = "--experts",
                                 .what = "a number of an expert",
                                 .example = "0-31,40",
                                 .limit = kMostExperts,
                                 .plural = "experts"};

// The first component of a text, which is cut off from it.
std::string_view next_part(std::string_view& rest) {
  const size_t dot = rest.find('.');
  const std::string_view part = rest.substr(0, dot);
  rest = dot == rest.npos ? std::string_view() : rest.substr(dot + 1);
  return part;
}

// "linear_fc1.weight7": the place of its digits. Nothing for other ends.
std::optional<size_t> digits_at_end(std::string_view name) {
  const size_t dot = name.rfind('.') + 1;  // npos + 1 is 0
  for (const std::string_view word : {"weight", "bias"})
    if (name.substr(dot).starts_with(word) &&
        text::number(name.substr(dot + word.size())))
      return dot + word.size();
  return std::nullopt;
}

ExpertName numbered(std::string_view name, std::string_view module,
                    size_t begin, size_t end) {
  const auto expert = text::number(name.substr(begin, end - begin));
  return {What::kNumbered, module, expert.value_or(0), begin, end};
}

// What comes after "….experts.".
ExpertName of_expert(std::string_view name, std::string_view module,
                     std::string_view rest) {
  std::string_view tail = rest;
  // vLLM's fused layer holds what every token goes through as well.
  if (rest.starts_with("_shared_experts.")) return {};
  while (!tail.empty()) {
    const size_t begin = name.size() - tail.size();
    const std::string_view part = next_part(tail);
    if (text::number(part))
      return numbered(name, module, begin, begin + part.size());
    if (part != "experts" && part != "local_experts") break;
  }
  if (const auto digits = digits_at_end(name))
    return numbered(name, module, *digits, name.size());
  return {What::kStacked, module, 0, 0, 0};
}

// Of GraniteMoe: block_sparse_moe.{input,output}_linear.weight [E, …].
bool is_stacked_linear(std::string_view before, std::string_view part) {
  return before == "block_sparse_moe" &&
         (part == "input_linear" || part == "output_linear");
}

// A router's part, or what it adds to its scores.
bool is_router_part(std::string_view part) {
  constexpr std::string_view kParts[] = {
      "gate",        "router",    "router_DE",
      "expert_bias", "gate_bias", "e_score_correction_bias",
      "moe_statics"};
  return std::ranges::find(kParts, part) != std::end(kParts);
}

// "model.layers.3.mlp.gate.weight" -> "gate", if the module before it has
// experts; "" if none has.
std::string_view router_part(
    std::string_view name, const std::set<std::string, std::less<>>& modules) {
  for (size_t dot = name.find('.'); dot != name.npos;
       dot = name.find('.', dot + 1)) {
    if (!modules.contains(name.substr(0, dot))) continue;
    std::string_view rest = name.substr(dot + 1);
    // Gemma's scales the input, and has nothing of an expert.
    if (rest == "router.scale") return {};
    const std::string_view part = next_part(rest);
    if (is_router_part(part)) return part;
  }
  return {};
}

// Optimizer state goes by its parameter, whatever its own name is.
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

  std::string run() {
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
    rename();
    keep_objects();
    follow_experts(catalog_, experts_, kept_.size());
    return fmt::format("--experts {}: {} of {} experts kept, as 0 to {}", list_,
                       kept_.size(), experts_, kept_.size() - 1);
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
  void rename();
  void keep_objects();
  bool keep_object(Object& object) const;
  std::optional<uint64_t> new_number(uint64_t expert) const;
  // The name with its expert's new number; nothing if that expert goes.
  std::optional<std::string> renamed(const std::string& name) const;
  uint32_t first_axis(const Tensor& tensor) const {
    return stacked_layers(catalog_, tensor) != 0 ? 1 : 0;
  }

  Catalog& catalog_;
  const std::string& list_;
  Edits& edits_;
  std::vector<uint64_t> kept_;
  uint64_t experts_ = 0;
  std::set<std::string, std::less<>> modules_;  // that have experts
  std::set<std::string, std::less<>> routed_;   // … and a router that was cut
  uint64_t numbers_ = 0;  // one more than the highest in a name
  std::string numbered_;  // a tensor that has it
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

// A buffer that many parameters lie in one after the other.
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

// The dimension that counts experts. `last`: it is looked for from behind.
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
  const auto axis = name.what == What::kStacked
                        ? std::optional(first)
                        : axis_of(tensor, part == "router_DE");
  if (axis && tensor.shape[*axis] == experts_) {
    keep_rows(tensor, *axis, 1);
  } else if (const uint64_t rows = tensor.shape[first];
             tensor.shape.size() <= first + 2 && rows % experts_ == 0 &&
             rows != 0) {
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

// `rows` of them are an expert's.
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

// What picks among more experts than there are fails on the first token.
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

std::optional<uint64_t> Cut::new_number(uint64_t expert) const {
  const auto found = std::ranges::lower_bound(kept_, expert);
  if (found == kept_.end() || *found != expert) return std::nullopt;
  return static_cast<uint64_t>(found - kept_.begin());
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
  // No tensor has that name: it was left out.
  for (auto& [node, name] : catalog_.skeleton->tensors)
    name = renamed(name).value_or("");
}

void Cut::keep_objects() {
  std::erase_if(catalog_.objects,
                [&](Object& object) { return !keep_object(object); });
}

// An object of a grid of experts stays as that of its new place, or goes.
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

std::vector<uint64_t> parse_experts(const std::string& list) {
  std::set<uint64_t> experts;
  for (const uint64_t expert : parse_numbers(kExpertList, list))
    if (!experts.insert(expert).second)
      throw usage_error({}, "--experts {}: expert {} is named twice", list,
                        expert);
  return {experts.begin(), experts.end()};
}

ExpertName parse_expert_name(std::string_view name) {
  std::string_view rest = name, before;
  while (!rest.empty()) {
    const size_t begin = name.size() - rest.size();
    const std::string_view part = next_part(rest);
    const std::string_view module = name.substr(0, begin == 0 ? 0 : begin - 1);
    if (part == "experts" || part == "local_experts")
      return of_expert(name, module, rest);
    if (is_stacked_linear(before, part))
      return {What::kStacked, module, 0, 0, 0};
    before = part;
  }
  return {};
}

std::string keep_experts(Catalog& catalog, const std::string& list,
                         Edits& edits) {
  return Cut(catalog, list, edits).run();
}

}  // namespace ckpt::library
