// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/optimizer/order.h"

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "ckpt/error.h"
#include "formats/runs/find/trainer.h"
#include "formats/unrecognized.h"
#include "lib/embedded.h"
#include "lib/io/file.h"
#include "lib/io/remote.h"
#include "lib/text/format.h"
#include "lib/text/json.h"
#include "lib/text/number.h"

namespace ckpt::runs {
namespace {

using Json = nlohmann::json;
using Strings = std::vector<std::string>;

constexpr std::string_view kAdapter = "base_model.model.";

// A module or a single parameter; with `each`, a list of numbered modules:
// "model.layers.", and what each contains.
struct Module {
  std::string at;
  std::vector<Module> each;
};

struct Order {
  Strings types;
  uint64_t since = 0;  // transformers version; 0: any
  std::vector<Module> modules;
  Strings norms;    // nn.LayerNorms whose name does not say so
  Strings buffers;  // saved with the parameters, never trained
};

std::vector<Module> read_modules(const Json& json) {
  std::vector<Module> modules;
  for (const Json& one : json)
    if (one.is_string())
      modules.push_back({.at = one, .each = {}});
    else
      modules.push_back(
          {.at = one.at("at"), .each = read_modules(one.at("each"))});
  return modules;
}

std::vector<Order> read_orders() {
  const Json json = text::parse_json(embedded_text("orders"), "orders.json");
  std::vector<Order> all;
  for (const Json& one : json.at("orders"))
    all.push_back({.types = one.at("types"),
                   .since = one.value("since", uint64_t{0}),
                   .modules = read_modules(one.at("modules")),
                   .norms = one.value("norms", Strings{}),
                   .buffers = one.value("buffers", Strings{})});
  return all;
}

const std::vector<Order>& orders() {
  static const std::vector<Order> all = read_orders();
  return all;
}

// The index of a module in its list, its number if it is numbered, the index in
// its own list …; last, the index of the parameter in the module.
using Place = std::vector<uint64_t>;

// A module's parameters in registration order. LoRA's come after those of the
// layer that they wrap (which are frozen).
constexpr std::string_view kLeaves[] = {"weight",
                                        "bias",
                                        "base_layer.weight",
                                        "base_layer.bias",
                                        "lora_A.weight",
                                        "lora_A.bias",
                                        "lora_B.weight",
                                        "lora_B.bias",
                                        "lora_embedding_A",
                                        "lora_embedding_B",
                                        "lora_magnitude_vector",
                                        "ia3_l",
                                        "token_adapter.trainable_tokens_delta"};

// Which parameter of the module at `at` is named by `rest`.
std::optional<uint64_t> leaf_of(std::string_view at, std::string_view rest) {
  if (!rest.starts_with(at)) return std::nullopt;
  rest.remove_prefix(at.size());
  if (rest.empty()) return 0;  // a bare parameter
  if (!at.empty()) {
    if (rest[0] != '.') return std::nullopt;
    rest.remove_prefix(1);
  }
  const auto found = std::ranges::find(kLeaves, rest);
  if (found == std::end(kLeaves)) return std::nullopt;
  return static_cast<uint64_t>(found - std::begin(kLeaves));
}

// Finds the place of `rest`, "self_attn.q_proj.weight", among the modules.
bool find_place(const std::vector<Module>& modules, std::string_view rest,
                Place& place) {
  const size_t depth = place.size();
  for (size_t m = 0; m < modules.size(); ++m) {
    const Module& module = modules[m];
    place.resize(depth);
    place.push_back(m);
    if (module.each.empty()) {
      const auto leaf = leaf_of(module.at, rest);
      if (!leaf) continue;
      place.push_back(*leaf);
      return true;
    }
    if (!rest.starts_with(module.at)) continue;
    std::string_view inner = rest.substr(module.at.size());
    const auto number = text::take_number(inner);
    if (!number || !inner.starts_with('.')) continue;
    place.push_back(*number);
    if (find_place(module.each, inner.substr(1), place)) return true;
  }
  return false;
}

std::optional<Place> place_of(const Order& order, std::string_view name) {
  if (name.starts_with(kAdapter)) name.remove_prefix(kAdapter.size());
  Place place;
  if (!find_place(order.modules, name, place)) return std::nullopt;
  return place;
}

bool is_norm(const Order& order, const std::string& name) {
  return std::ranges::any_of(order.norms, [&](const std::string& norm) {
    const size_t at = name.rfind(norm + ".");
    return at != name.npos && (at == 0 || name[at - 1] == '.');
  });
}

// "…mlp.experts.3.gate_proj.weight" -> ("…mlp.experts.", 3, "gate_proj").
struct Expert {
  std::string stem;
  uint64_t number = 0;
  std::string which;
};
std::optional<Expert> expert_of(std::string_view name) {
  constexpr std::string_view kWord = ".experts.";
  const size_t at = name.find(kWord);
  if (at == name.npos) return std::nullopt;
  Expert expert{.stem = std::string(name.substr(0, at + kWord.size())),
                .number = 0,
                .which = {}};
  std::string_view rest = name.substr(at + kWord.size());
  const auto number = text::take_number(rest);
  if (!number || !rest.ends_with(".weight")) return std::nullopt;
  expert.number = *number;
  rest.remove_suffix(7);
  if (!rest.starts_with('.')) return std::nullopt;
  expert.which = rest.substr(1);
  return expert;
}

// The fused parameters that transformers 5 trains instead of each expert's.
// Nothing if they are not alike.
bool fuse_experts(std::vector<Parameter>& parameters) {
  struct Layer {
    std::map<std::string, std::map<uint64_t, Shape>> which;
  };
  std::map<std::string, Layer> layers;
  for (const Parameter& one : parameters)
    if (const auto expert = expert_of(one.name))
      layers[expert->stem].which[expert->which][expert->number] = one.shape;
  if (layers.empty()) return true;
  std::erase_if(parameters,
                [](const Parameter& one) { return expert_of(one.name); });
  for (const auto& [stem, layer] : layers) {
    const auto gate = layer.which.find("gate_proj");
    const auto up = layer.which.find("up_proj");
    const auto down = layer.which.find("down_proj");
    if (layer.which.size() != 3 || gate == layer.which.end() ||
        up == layer.which.end() || down == layer.which.end())
      return false;
    const auto alike = [&](const std::map<uint64_t, Shape>& all) {
      return all.size() == gate->second.size() &&
             all.rbegin()->first + 1 == all.size() &&
             std::ranges::all_of(all, [&](const auto& one) {
               return one.second == all.begin()->second &&
                      one.second.size() == 2;
             });
    };
    if (!alike(gate->second) || !alike(up->second) || !alike(down->second))
      return false;
    const Shape& first = gate->second.begin()->second;
    const Shape& second = up->second.begin()->second;
    const Shape& last = down->second.begin()->second;
    const auto rows = checked_add(first[0], second[0]);
    if (!rows || first[1] != second[1]) return false;
    const uint64_t count = gate->second.size();
    parameters.push_back(
        {stem + "gate_up_proj", Shape({count, *rows, first[1]}), true});
    parameters.push_back(
        {stem + "down_proj", Shape({count, last[0], last[1]}), true});
  }
  return true;
}

bool is_buffer(const Order& order, std::string_view name) {
  return std::ranges::any_of(order.buffers, [&](const std::string& buffer) {
    return name == buffer || name.ends_with("." + buffer);
  });
}

std::optional<ParameterOrder> by_order(const Order& order,
                                       std::vector<Parameter> parameters) {
  std::erase_if(parameters, [&](const Parameter& one) {
    return is_buffer(order, one.name);
  });
  std::vector<std::pair<Place, size_t>> places;
  for (size_t i = 0; i < parameters.size(); ++i) {
    const auto place = place_of(order, parameters[i].name);
    if (!place) return std::nullopt;
    places.emplace_back(*place, i);
    parameters[i].decays =
        parameters[i].decays && !is_norm(order, parameters[i].name);
    parameters[i].certain = true;
  }
  std::ranges::sort(places);
  ParameterOrder result;
  for (const auto& [place, i] : places)
    result.parameters.push_back(std::move(parameters[i]));
  return result;
}

bool is_floating(DType dtype) {
  const std::string_view word = name(dtype);
  return word.starts_with('f') || word.starts_with("bf");
}

bool same_order(const ParameterOrder& a, const ParameterOrder& b) {
  return std::ranges::equal(a.parameters, b.parameters,
                            [](const Parameter& x, const Parameter& y) {
                              return x.name == y.name && x.decays == y.decays;
                            });
}

}  // namespace

bool decays(const std::string& name) {
  std::string lower = name;
  for (char& c : lower)
    if (c >= 'A' && c <= 'Z') c = static_cast<char>(c - 'A' + 'a');
  for (const char* word : {"bias", "layernorm", "rmsnorm"})
    if (lower.find(word) != lower.npos) return false;
  std::string_view rest = lower;
  while (!rest.empty()) {
    const std::string_view part = rest.substr(0, rest.find('.'));
    if (part == "norm" || part.ends_with("_norm")) return false;
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
  }
  return true;
}

namespace {

// torch's batch norms count their batches beside two averages, and these are
// never parameters.
std::set<std::string> averages_in(std::span<const Tensor* const> tensors) {
  constexpr std::string_view kCount = "num_batches_tracked";
  std::set<std::string> names;
  for (const Tensor* tensor : tensors) {
    const std::string_view name = tensor->name;
    if (!name.ends_with(kCount) || !tensor->shape.empty()) continue;
    const std::string stem(name.substr(0, name.size() - kCount.size()));
    names.insert(stem + "running_mean");
    names.insert(stem + "running_var");
  }
  return names;
}

// A norm's weight has one dimension, or the shape of the bias beside it.
void mark_uncertain(std::vector<Parameter>& parameters) {
  std::map<std::string_view, const Shape*> shapes;
  for (const Parameter& one : parameters) shapes.emplace(one.name, &one.shape);
  for (Parameter& one : parameters) {
    const std::string beside =
        one.name.substr(0, one.name.rfind('.') + 1) + "bias";
    const auto bias = shapes.find(beside);
    const bool alike = bias != shapes.end() && *bias->second == one.shape;
    one.certain = !one.decays || (one.shape.size() > 1 && !alike);
  }
}

}  // namespace

ParameterOrder stored_order(std::span<const Tensor* const> tensors) {
  ParameterOrder order{.parameters = {}, .why = "the order in the pickle"};
  std::set<std::tuple<uint32_t, uint64_t, Dims>> seen;
  const std::set<std::string> averages = averages_in(tensors);
  for (const Tensor* tensor : tensors) {
    if (!is_floating(tensor->dtype) || averages.contains(tensor->name))
      continue;
    if (!tensor->pieces.empty() && element_count(tensor->shape) != 0) {
      const Extent& extent = tensor->pieces[0].extent;
      if (!seen.emplace(extent.file, extent.offset, tensor->shape).second)
        continue;
    }
    order.parameters.push_back(
        {tensor->name, tensor->shape, decays(tensor->name)});
  }
  mark_uncertain(order.parameters);
  return order;
}

std::optional<ParameterOrder> without_tied_head(const ParameterOrder& order) {
  const auto head =
      std::ranges::find_if(order.parameters, [](const Parameter& one) {
        return one.name.ends_with("lm_head.weight");
      });
  if (head == order.parameters.end()) return std::nullopt;
  const bool tied =
      std::any_of(order.parameters.begin(), head, [&](const Parameter& one) {
        return one.shape == head->shape &&
               (one.name.find("embed") != one.name.npos ||
                one.name.find("wte") != one.name.npos);
      });
  if (!tied) return std::nullopt;
  ParameterOrder rest = order;
  rest.parameters.erase(rest.parameters.begin() +
                        (head - order.parameters.begin()));
  return rest;
}

std::optional<ParameterOrder> family_order(
    std::span<const Tensor* const> tensors, const ModelFacts& facts,
    std::string& why_not) {
  const ParameterOrder stored = stored_order(tensors);
  std::optional<ParameterOrder> result;
  if (stored.parameters.size() == 1)
    return ParameterOrder{stored.parameters, "the only one of the model"};
  bool known = false;
  for (const Order& order : orders()) {
    const bool asked =
        std::ranges::find(order.types, facts.type) != order.types.end();
    if (!facts.type.empty() && !asked) continue;
    known = known || asked;
    if (order.since > 0 && facts.version != 0 && facts.version < order.since)
      continue;
    std::vector<Parameter> parameters = stored.parameters;
    if (order.since >= 5 && !fuse_experts(parameters)) continue;
    auto one = by_order(order, std::move(parameters));
    if (!one) continue;
    if (result && !same_order(*result, *one)) {
      why_not = "the names fit families with unlike orders of modules";
      return std::nullopt;
    }
    result = std::move(one);
  }
  if (result)
    result->why = facts.type.empty()
                      ? "the modules of the families with such names"
                      : "the modules of " + text::printable(facts.type);
  else
    why_not = facts.type.empty() || known
                  ? "some names are of modules whose order is not known"
                  : "the order of the modules of " +
                        text::printable(facts.type) + " is not known";
  return result;
}

void check_order(const std::string& text) {
  if (text == "module" || text == "decay" || io::is_file(text)) return;
  if (io::is_url(text)) formats::check_named(text);
  throw usage_error({text, {}}, "--assume-order: neither a rule nor a file")
      .with_hint("module, decay, or a file with a name on each line");
}

Asked asked_order(const std::string& text,
                  std::span<const Tensor* const> model) {
  constexpr uint64_t kMaxFile = uint64_t{64} << 20;
  Asked asked{.rule = text, .order = stored_order(model)};
  asked.order.why = "the order that --assume-order says";
  check_order(text);
  if (text == "module" || text == "decay") return asked;
  asked.rule = "module";
  std::map<std::string, Parameter> known;
  for (const Parameter& one : asked.order.parameters) known[one.name] = one;
  asked.order.parameters.clear();
  const std::string all = io::read_file(text, kMaxFile);
  for (size_t at = 0; at < all.size();) {
    size_t end = std::min(all.find('\n', at), all.size());
    std::string name = all.substr(at, end - at);
    at = end + 1;
    while (!name.empty() && (name.back() == '\r' || name.back() == ' '))
      name.pop_back();
    if (name.empty()) continue;
    const auto found = known.find(name);
    if (found == known.end())
      throw usage_error(
          {text, text::printable(name)},
          "--assume-order: the model doesn't have this parameter");
    asked.order.parameters.push_back(found->second);
  }
  return asked;
}

}  // namespace ckpt::runs
