// SPDX-License-Identifier: Apache-2.0
#include "api/edit/layer_order.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "api/edit/layer_place.h"
#include "ckpt/error.h"
#include "formats/megatron/model/keys.h"
#include "models/view.h"

namespace ckpt::library {
namespace {

using Places = std::map<uint32_t, std::vector<uint32_t>>;  // old -> all new

std::string with_layer(const std::string& name, uint32_t layer) {
  const auto place = layer_place(name);
  if (!place) return name;
  return name.substr(0, place->begin) + std::to_string(layer) +
         name.substr(place->end);
}

// With encoder and decoder, the list can apply to only one of them. (A tower's
// layers are not counted, but a decoder's encoder is none.)
void check_one_stack(const Catalog& catalog, const LayerCount& count) {
  std::set<std::string> stacks, all;
  for (const Tensor& tensor : catalog.tensors)
    if (const auto place = layer_place(tensor.name);
        place && tensor.kind == Kind::model) {
      const std::string stack = tensor.name.substr(0, place->begin);
      if (count.layer_of(tensor)) stacks.insert(stack);
      all.insert(stack);
    }
  for (const std::string& stack : std::set(stacks))
    if (const size_t at = stack.find("decoder."); at != stack.npos)
      if (const auto encoder =
              all.find(std::string(stack).replace(at, 2, "en"));
          encoder != all.end())
        stacks.insert(*encoder);
  if (stacks.size() > 1)
    throw unfaithful_error({catalog.path, {}},
                           "--layers: {} are counted each for themselves",
                           fmt::join(stacks, " and "))
        .with_hint("--keys or --exclude leaves one of them");
}

void order_rows(Tensor& tensor, const std::vector<uint32_t>& order) {
  const families::View all = families::View::of(tensor);
  std::vector<families::View> parts;
  for (size_t i = 0; i < order.size();) {
    size_t end = i + 1;
    while (end < order.size() && order[end] == order[end - 1] + 1) ++end;
    parts.push_back(all.slice(0, order[i], end - i));
    i = end;
  }
  families::View::concat(parts, 0).into(tensor);
}

void add_copies(const Catalog& catalog, const Tensor& tensor,
                const std::vector<uint32_t>& places, std::vector<Tensor>& made,
                Edits& edits) {
  if (!layer_of(std::string_view(tensor.name)))
    throw unfaithful_error({catalog.path, tensor.name},
                           "--layers: is the state of {}, and its name has no "
                           "number to count anew",
                           tensor.param)
        .with_hint("--model-only leaves the optimizer out");
  for (const uint32_t layer : places) {
    Tensor& copy = made.emplace_back(tensor);
    copy.name = with_layer(tensor.name, layer);
    copy.param = with_layer(tensor.param, layer);
    edits[copy.name] = {tensor.name, false};
    copy.tie = 0;  // copies are trained apart, so they are stored apart
  }
}

void order_tensors(Catalog& catalog, const std::vector<uint32_t>& order,
                   const Places& places, const LayerCount& count,
                   Edits& edits) {
  std::vector<Tensor> made;
  for (Tensor& tensor : catalog.tensors) {
    const auto layer = count.layer_of(tensor);
    if (count.stacked(catalog, tensor) != 0) {
      order_rows(tensor, order);
      edits[tensor.name] = {tensor.name, true};
      made.push_back(std::move(tensor));
    } else if (!layer) {
      made.push_back(std::move(tensor));
    } else if (const auto found = places.find(*layer); found != places.end()) {
      add_copies(catalog, tensor, found->second, made, edits);
    }
  }
  catalog.tensors = std::move(made);
}

void order_claims(Catalog& catalog, const Places& places,
                  const LayerCount& count) {
  std::vector<Claim> made;
  for (const Claim& claim : catalog.claims) {
    const auto layer = count.layer_of(std::string_view(claim.rounded));
    const auto found = layer ? places.find(*layer) : places.end();
    if (!layer) made.push_back(claim);
    if (found == places.end()) continue;
    for (const uint32_t to : found->second)
      made.push_back({with_layer(claim.exact, to),
                      with_layer(claim.rounded, to), claim.why});
  }
  catalog.claims = std::move(made);
}

// Adds the objects of a layer, found by a number in the name or a place in a
// grid.
void add_objects(const Object& object, const std::vector<uint32_t>& order,
                 const Places& places, const LayerCount& count,
                 std::vector<Object>& made) {
  const auto add = [&](std::string name) {
    made.push_back(object);
    made.back().name = std::move(name);
  };
  const auto place = megatron::parse_object_key(object.name);
  if (place && !place->grid.empty() &&
      megatron::parse_key(place->key).layer_axis && !count.aside(place->key)) {
    auto offset = place->offset, grid = place->grid;
    const uint64_t from = offset[0];
    grid[0] = order.size();
    for (size_t i = 0; i < order.size(); ++i) {
      if (order[i] != from) continue;
      offset[0] = i;
      add(megatron::object_key(place->key, offset, grid));
    }
    return;
  }
  const auto layer = count.layer_of(std::string_view(object.name));
  if (!layer) return add(object.name);
  const auto found = places.find(*layer);
  if (found == places.end()) return;
  for (const uint32_t to : found->second) add(with_layer(object.name, to));
}

}  // namespace

bool counts_anew(const std::vector<uint32_t>& order) {
  return std::ranges::adjacent_find(order, std::greater_equal()) != order.end();
}

std::string order_layers(Catalog& catalog, const std::vector<uint32_t>& order,
                         const LayerCount& count, Edits& edits) {
  check_one_stack(catalog, count);
  locate(catalog);
  Places places;
  for (uint32_t i = 0; i < order.size(); ++i) places[order[i]].push_back(i);
  order_tensors(catalog, order, places, count, edits);
  order_claims(catalog, places, count);
  std::vector<Object> objects;
  for (const Object& object : catalog.objects)
    add_objects(object, order, places, count, objects);
  catalog.objects = std::move(objects);
  if (catalog.skeleton)
    for (auto& [node, name] : catalog.skeleton->tensors)
      if (const auto layer = count.layer_of(std::string_view(name))) {
        const auto found = places.find(*layer);
        name = found == places.end() ? ""
                                     : with_layer(name, found->second.front());
      }
  follow_order(catalog, order);
  return fmt::format("--layers: counted anew, {} layers of {} of the source",
                     order.size(), places.size());
}

}  // namespace ckpt::library
