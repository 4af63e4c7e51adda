// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/optimizer/naming.h"

#include <algorithm>

#include "formats/runs/find/pattern.h"
#include "models/wrapper.h"

namespace ckpt::runs {
namespace {

// The rest of `text` after the first prefix (a pattern) that it starts with.
std::optional<std::string_view> after(
    std::string_view text, const std::vector<std::string>& prefixes) {
  for (const std::string& prefix : prefixes) {
    if (prefix.find('{') == prefix.npos) {
      if (text.starts_with(prefix)) return text.substr(prefix.size());
      continue;
    }
    // "optimizer_{i}.": up to the last dot of the pattern.
    const auto dots = std::ranges::count(prefix, '.');
    size_t end = 0;
    for (auto i = dots; i > 0 && end != text.npos; --i) {
      end = text.find('.', end);
      if (end != text.npos) ++end;
    }
    if (end != text.npos && match(prefix, text.substr(0, end)))
      return text.substr(end);
  }
  return std::nullopt;
}

}  // namespace

std::string_view bare_state(std::string_view state) {
  constexpr std::string_view kWrapped = "__bnb_optimizer_quant_state__.";
  if (state.starts_with(kWrapped)) state.remove_prefix(kWrapped.size());
  return state;
}

std::optional<std::string> place_of(const std::set<std::string>& names,
                                    const std::set<std::string>& model) {
  if (names.empty() || std::ranges::any_of(names, [&](const std::string& name) {
        return model.contains(name);
      }))
    return "";
  const std::string& first = *names.begin();
  std::optional<std::string> place;
  for (const std::string& name : model) {
    if (!name.ends_with("." + first)) continue;
    const std::string above = name.substr(0, name.size() - first.size());
    if (!std::ranges::all_of(names, [&](const std::string& one) {
          return model.contains(above + one);
        }))
      continue;
    if (place) return std::nullopt;
    place = above;
  }
  return place;
}

void Namer::name(std::span<Tensor> tensors) {
  for (Tensor& tensor : tensors) classify(tensor);
  for (const Tensor& tensor : tensors)
    if (tensor.kind == Kind::model) model_.insert(tensor.name);
  for (Tensor& tensor : tensors)
    if (tensor.kind == Kind::optim) name_state(tensor);
  for (Tensor& tensor : tensors) {
    if (tensor.kind != Kind::optim) {
      tensor.name = role_ + tensor.name;
      continue;
    }
    if (!tensor.param.empty()) tensor.param = role_ + tensor.param;
    tensor.name = role_ + tensor.name;
  }
}

void Namer::classify(Tensor& tensor) {
  if (const auto rest = after(tensor.name, source_.optimizers);
      rest && (tensor.kind == Kind::optim || !source_.optimizers[0].empty())) {
    tensor.kind = Kind::optim;
    rest_[&tensor] = *rest;
  } else if (after(tensor.name, source_.others)) {
    tensor.kind = Kind::other;
  } else if (tensor.kind != Kind::optim) {
    const auto model = after(tensor.name, source_.prefixes);
    tensor.kind = model ? Kind::model : Kind::other;
    if (model) tensor.name = families::without_wrappers(std::string(*model));
  }
}

// "<parameter>.<state>": the longest parameter that the model has, else all but
// the last word. If a reader has found both, they are kept.
void Namer::name_state(Tensor& tensor) {
  const auto found = rest_.find(&tensor);
  const bool known = !tensor.param.empty() && !tensor.state.empty();
  if (found != rest_.end() && !(known && source_.optimizers[0].empty())) {
    const std::string rest =
        families::without_wrappers(std::string(found->second));
    size_t dot = rest.rfind('.');
    for (size_t at = dot; at != rest.npos && at > 0;
         at = rest.rfind('.', at - 1))
      if (model_.contains(rest.substr(0, at))) {
        dot = at;
        break;
      }
    if (dot == rest.npos) return;
    tensor.param = rest.substr(0, dot);
    tensor.state =
        std::string(bare_state(std::string_view(rest).substr(dot + 1)));
  } else if (!known) {
    return;
  }
  tensor.param = families::without_wrappers(tensor.param);
  tensor.name = tensor.param + "." + tensor.state;
}

}  // namespace ckpt::runs
