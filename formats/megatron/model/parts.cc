// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/model/parts.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "ckpt/error.h"
#include "formats/megatron/model/keys.h"
#include "formats/megatron/model/stack.h"
#include "lib/text/format.h"

namespace ckpt::megatron {
namespace {

using std::string_view;

constexpr string_view kMambaInput[] = {"z", "x", "B", "C", "dt"};
constexpr string_view kMambaConv[] = {"x", "B", "C"};
constexpr string_view kDeltaInput[] = {"query", "key",  "value",
                                       "z",     "beta", "alpha"};
constexpr string_view kDeltaConv[] = {"query", "key", "value"};

enum class Mixer : uint8_t { kMamba, kDelta };

// "decoder.layers.3.mixer." and "in_proj.weight" of a name.
struct InMixer {
  Mixer kind;
  string_view prefix;
  string_view rest;
};

std::optional<InMixer> in_mixer(string_view name) {
  for (const string_view module : {"mixer.", "self_attention."}) {
    const size_t at = name.rfind(module);
    if (at == name.npos) continue;
    const size_t end = at + module.size();
    return InMixer{module == "mixer." ? Mixer::kMamba : Mixer::kDelta,
                   name.substr(0, end), name.substr(end)};
  }
  return std::nullopt;
}

std::optional<uint64_t> rows(const Shape* shape) {
  if (!shape || shape->empty()) return std::nullopt;
  return (*shape)[0];
}

// 2 inner + 2 state + heads rows of input, inner + 2 state of convolution.
std::optional<std::vector<uint64_t>> mamba_extents(uint64_t input,
                                                   uint64_t conv,
                                                   uint64_t heads) {
  if (heads == 0 || input < heads || input - heads < conv) return std::nullopt;
  const uint64_t inner = input - heads - conv;
  if (inner == 0 || conv <= inner || (conv - inner) % 2 != 0 ||
      inner % heads != 0)
    return std::nullopt;
  const uint64_t state = (conv - inner) / 2;
  return std::vector<uint64_t>{inner, inner, state, state, heads};
}

// 2 keys + 2 values + 2 heads rows of input, 2 keys + values of convolution.
std::optional<std::vector<uint64_t>> delta_extents(uint64_t input,
                                                   uint64_t conv,
                                                   uint64_t heads) {
  if (heads == 0 || input < conv || (input - conv) / 2 < heads)
    return std::nullopt;
  const uint64_t value = input - conv - 2 * heads;
  if (value == 0 || conv <= value || (conv - value) % 2 != 0 ||
      value % heads != 0)
    return std::nullopt;
  const uint64_t key = (conv - value) / 2;
  return std::vector<uint64_t>{key, key, value, value, heads, heads};
}

bool is_input(string_view rest) { return rest == "in_proj.weight"; }

}  // namespace

std::span<const string_view> parts_of(string_view name) {
  const auto at = in_mixer(name);
  if (!at) return {};
  const bool mamba = at->kind == Mixer::kMamba;
  if (is_input(at->rest)) {
    if (mamba) return kMambaInput;
    return kDeltaInput;
  }
  // Since 2026 the convolution's parameters are the mixer's own.
  const string_view rest = at->rest;
  if (rest != "conv1d.weight" && rest != "conv1d.bias" &&
      rest != "conv1d_weight" && rest != "conv1d_bias")
    return {};
  if (mamba) return kMambaConv;
  return kDeltaConv;
}

std::optional<PartKey> part_key(string_view name) {
  const size_t dot = name.rfind('.');
  if (dot == name.npos) return std::nullopt;
  const auto parts = parts_of(name.substr(0, dot));
  const auto found = std::ranges::find(parts, name.substr(dot + 1));
  if (found == parts.end()) return std::nullopt;
  return PartKey{name.substr(0, dot),
                 static_cast<size_t>(found - parts.begin())};
}

MixerParts::MixerParts(const std::vector<Tensor>& tensors) {
  for (const Tensor& tensor : tensors)
    if (tensor.kind == Kind::model) add(tensor.name, tensor.shape);
}

void MixerParts::add(const std::string& name, const Shape& shape) {
  if (in_mixer(name)) shapes_.emplace(name, shape);
}

std::optional<std::vector<uint64_t>> MixerParts::extents(
    const std::string& name) const {
  const auto at = in_mixer(name);
  if (!at || parts_of(name).empty()) return std::nullopt;
  const auto shape_of = [&](string_view rest) -> const Shape* {
    const auto found =
        shapes_.find(std::string(at->prefix) + std::string(rest));
    return found == shapes_.end() ? nullptr : &found->second;
  };
  const auto input = rows(shape_of("in_proj.weight"));
  auto conv = rows(shape_of("conv1d.weight"));
  if (!conv) conv = rows(shape_of("conv1d_weight"));
  const auto heads = rows(shape_of("A_log"));
  if (!input || !conv || !heads) return std::nullopt;
  const bool mamba = at->kind == Mixer::kMamba;
  auto sizes = mamba ? mamba_extents(*input, *conv, *heads)
                     : delta_extents(*input, *conv, *heads);
  // out_proj takes x, or value.
  const Shape* out = shape_of("out_proj.weight");
  if (sizes && out && out->size() == 2 && (*out)[1] != (*sizes)[mamba ? 1 : 2])
    return std::nullopt;
  if (!sizes || is_input(at->rest)) return sizes;
  if (mamba) return std::vector(sizes->begin() + 1, sizes->begin() + 4);
  return std::vector(sizes->begin(), sizes->begin() + 3);
}

std::vector<uint64_t> MixerParts::need(const std::string& path,
                                       const std::string& name) const {
  auto sizes = extents(name);
  if (sizes) return std::move(*sizes);
  throw unfaithful_error(
      {path, text::printable(name)},
      "where its parts ({}) begin is not known: the rows of in_proj, conv1d "
      "and A_log of its mixer don't say it",
      fmt::join(parts_of(name), ", "));
}

std::optional<std::string> unshared(const std::vector<Tensor>& tensors,
                                    const MixerNumbers& numbers, uint64_t tp) {
  for (const Tensor& tensor : tensors) {
    const std::string& name = parameter_of(tensor);
    const auto key = part_key(name);
    const string_view whole = key ? key->whole : string_view(name);
    const auto at = in_mixer(whole);
    if (!at || !is_input(at->rest)) continue;
    const bool mamba = at->kind == Mixer::kMamba;
    const auto& count = mamba ? numbers.mamba_groups : numbers.delta_keys;
    if (count && *count % tp != 0)
      return fmt::format(
          "{} {} for tp={}", *count,
          mamba ? "groups of Mamba's mixers" : "key heads of delta nets", tp);
  }
  return std::nullopt;
}

const std::string& parameter_of(const Tensor& tensor) {
  return tensor.kind == Kind::optim && !tensor.param.empty() ? tensor.param
                                                             : tensor.name;
}

namespace {

void rename(Tensor& tensor, const std::string& name) {
  if (tensor.kind == Kind::optim && !tensor.param.empty()) {
    tensor.param = name;
    tensor.name = fmt::format("optimizer.state.{}.{}", tensor.state, name);
  } else {
    tensor.name = name;
  }
}

}  // namespace

bool split_parts(Catalog& catalog) {
  const auto is_fused = [](const Tensor& tensor) {
    const std::string& name = parameter_of(tensor);
    if (parts_of(name).empty()) return false;
    const Key key = parse_key(name);
    return key.rooted && !key.tower;
  };
  if (std::ranges::none_of(catalog.tensors, is_fused)) return false;
  const MixerParts known(catalog.tensors);
  std::vector<Tensor> all;
  for (Tensor& tensor : catalog.tensors) {
    if (!is_fused(tensor)) {
      all.push_back(std::move(tensor));
      continue;
    }
    const std::string name = parameter_of(tensor);
    const auto parts = parts_of(name);
    const auto sizes = known.need(catalog.path, name);
    uint64_t sum = 0;
    for (const uint64_t size : sizes) sum += size;
    if (tensor.shape.empty() || tensor.shape[0] != sum)
      throw unfaithful_error({catalog.path, text::printable(tensor.name)},
                             "{} is not made of {} rows",
                             to_string(tensor.shape), fmt::join(sizes, " + "));
    uint64_t begin = 0;
    for (size_t i = 0; i < parts.size(); ++i) {
      Tensor one = range(tensor, 0, begin, sizes[i]);
      one.tp = TpRule::split(0);
      rename(one, fmt::format("{}.{}", name, parts[i]));
      begin += sizes[i];
      all.push_back(std::move(one));
    }
  }
  catalog.tensors = std::move(all);
  return true;
}

void join_parts(Catalog& catalog) {
  struct Whole {
    std::vector<const Tensor*> parts;
    const Tensor* first = nullptr;
  };
  std::unordered_map<std::string, Whole> wholes;
  const auto id = [](const Tensor& tensor, const PartKey& key) {
    return fmt::format("{} {}", tensor.state, key.whole);
  };
  for (const Tensor& tensor : catalog.tensors) {
    const auto key = part_key(parameter_of(tensor));
    if (!key) continue;
    Whole& whole = wholes[id(tensor, *key)];
    whole.parts.resize(parts_of(key->whole).size());
    whole.parts[key->part] = &tensor;
    if (!whole.first) whole.first = &tensor;
  }
  if (wholes.empty()) return;
  locate(catalog);
  std::vector<Tensor> all;
  for (Tensor& tensor : catalog.tensors) {
    const auto key = part_key(parameter_of(tensor));
    if (!key) {
      all.push_back(tensor);
      continue;
    }
    const Whole& whole = wholes.at(id(tensor, *key));
    if (whole.first != &tensor) continue;
    const auto names = parts_of(key->whole);
    for (size_t i = 0; i < names.size(); ++i)
      if (!whole.parts[i] || whole.parts[i]->shape.empty())
        throw unfaithful_error(
            {catalog.path, text::printable(std::string(key->whole))},
            "its part {} is missing", names[i]);
    Tensor made = join(whole.parts, 0);
    rename(made, std::string(key->whole));
    all.push_back(std::move(made));
  }
  catalog.tensors = std::move(all);
}

}  // namespace ckpt::megatron
