// SPDX-License-Identifier: Apache-2.0
#include "formats/dcp/kinds.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace ckpt::dcp {
namespace {

constexpr std::string_view kModel = "model.";
constexpr std::string_view kState = "state.";
constexpr std::string_view kGroups = "param_groups.";

constexpr auto kOptimizers =
    std::to_array<std::string_view>({"optim", "optimizer", "optimizers"});
// States that reveal an optimizer without a word of its own.
constexpr auto kStates = std::to_array<std::string_view>(
    {"exp_avg", "exp_avg_sq", "max_exp_avg_sq", "momentum_buffer", "step",
     "square_avg", "sum", "acc_delta", "fp32_param"});
constexpr auto kOthers = std::to_array<std::string_view>(
    {"rng", "rng_state", "rng_states", "random_state", "cuda_rng_state",
     "dataloader", "data_loader", "dataloaders", "lr_scheduler",
     "train_state"});
// What transformers' models have beside "model."; beside a state dict's entry
// "model" none of these is one.
constexpr auto kBesideModel = std::to_array<std::string_view>(
    {"lm_head", "embed_out", "score", "classifier", "qa_outputs", "mtp",
     "visual", "vision_tower", "vision_model", "audio_tower", "language_model",
     "multi_modal_projector"});

bool contains(std::span<const std::string_view> words, std::string_view word) {
  return std::ranges::find(words, word) != words.end();
}

bool all_digits(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == text.npos;
}

// The text between `at` and the next dot.
std::string_view component(std::string_view name, size_t at) {
  return name.substr(at, name.find('.', at) - at);
}

// Where an optimizer's "state." or "param_groups." begins: after its word, or
// after its word and number (optimizers.0.state.…). npos if absent.
size_t optimizer_part(std::string_view name) {
  for (size_t at = 0; at < name.size();) {
    const std::string_view word = component(name, at);
    at += word.size() + 1;
    if (at >= name.size() || !contains(kOptimizers, word)) continue;
    size_t next = at;
    if (all_digits(component(name, next)))
      next += component(name, next).size() + 1;
    if (next >= name.size()) continue;
    const std::string_view rest = name.substr(next);
    if (rest.starts_with(kState) || rest.starts_with(kGroups)) return next;
  }
  return name.npos;
}

class Kinds {
 public:
  explicit Kinds(Catalog& catalog) : catalog_(catalog) {
    bare_ = std::ranges::any_of(catalog.objects, [](const Object& object) {
      return object.name.starts_with(kGroups);
    });
    for (const Tensor& tensor : catalog.tensors) {
      has_model_ = has_model_ || tensor.name.starts_with(kModel);
      names_.emplace(tensor.name, &tensor);
      const std::string_view name = tensor.name;
      if (const size_t part = optimizer_part(name); part != name.npos)
        add_trained(name.substr(part));
    }
  }

  void set() {
    for (Tensor& tensor : catalog_.tensors) set(tensor);
  }

 private:
  void set(Tensor& tensor) {
    const std::string_view name = tensor.name;
    size_t part = optimizer_part(name);
    if (part == name.npos && is_bare(name)) part = 0;
    if (part != name.npos) {
      tensor.kind = Kind::optim;
      const std::string_view rest = name.substr(part);
      if (rest.starts_with(kState))
        split(tensor, name.substr(0, part), rest.substr(kState.size()));
    } else if (is_beside_parameter(name)) {
      tensor.kind = Kind::optim;
      tensor.param = name.substr(0, name.rfind('.'));
      tensor.state = name.substr(name.rfind('.') + 1);
    } else if (contains(kOthers, component(name, 0)) ||
               (has_model_ && !name.starts_with(kModel) &&
                !contains(kBesideModel, component(name, 0)) &&
                !trained_.contains(name))) {
      tensor.kind = Kind::other;
    } else {
      tensor.kind = Kind::model;
    }
  }

  // "model.norm.weight.exp_avg" beside "model.norm.weight": what was Megatron's
  // becomes that.
  bool is_beside_parameter(std::string_view name) const {
    const size_t dot = name.rfind('.');
    return dot != name.npos && contains(kStates, name.substr(dot + 1)) &&
           names_.contains(name.substr(0, dot));
  }

  // "state.lm_head.weight.exp_avg"
  void add_trained(std::string_view rest) {
    const size_t dot = rest.rfind('.');
    if (rest.starts_with(kState) && dot > kState.size())
      trained_.insert(rest.substr(kState.size(), dot - kState.size()));
  }

  bool is_bare(std::string_view name) const {
    if (name.starts_with(kGroups)) return bare_;
    if (!name.starts_with(kState)) return false;
    const std::string_view last = name.substr(name.rfind('.') + 1);
    return bare_ || contains(kStates, last);
  }

  // "layers.0.w.exp_avg": the parameter is the longest prefix that is a
  // parameter's name, or else all but the last word.
  void split(Tensor& tensor, std::string_view words, std::string_view rest) {
    // "app.optim." -> "app."
    std::string_view above;
    if (words.size() > 1) {
      words.remove_suffix(1);
      size_t dot = words.rfind('.');
      if (dot != words.npos && all_digits(words.substr(dot + 1)))
        dot = dot == 0 ? words.npos : words.rfind('.', dot - 1);
      if (dot != words.npos) above = words.substr(0, dot + 1);
    }
    for (size_t dot = rest.rfind('.'); dot != rest.npos && dot > 0;
         dot = rest.rfind('.', dot - 1)) {
      const std::string_view param = rest.substr(0, dot);
      const std::string* known = find(above, param);
      if (known == nullptr) continue;
      tensor.param = *known;
      tensor.state = rest.substr(dot + 1);
      return;
    }
    const size_t dot = rest.rfind('.');
    if (dot == rest.npos) return;
    tensor.param = rest.substr(0, dot);
    tensor.state = rest.substr(dot + 1);
  }

  const std::string* find(std::string_view above, std::string_view param) {
    for (const std::string_view model : {kModel, std::string_view()}) {
      key_.assign(above).append(model).append(param);
      const auto found = names_.find(key_);
      if (found != names_.end()) return &found->second->name;
    }
    return nullptr;
  }

  Catalog& catalog_;
  std::unordered_map<std::string_view, const Tensor*> names_;
  std::unordered_set<std::string_view> trained_;  // parameters with states
  bool bare_ = false;       // param_groups without an optimizer's word
  bool has_model_ = false;  // some names are below "model."
  std::string key_;
};

}  // namespace

void set_kinds(Catalog& catalog) { Kinds(catalog).set(); }

}  // namespace ckpt::dcp
