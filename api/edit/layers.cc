// SPDX-License-Identifier: Apache-2.0
#include "api/edit/layers.h"

#include <fmt/format.h>

#include <algorithm>

#include "api/edit/number_list.h"
#include "ckpt/error.h"
#include "formats/megatron/model/keys.h"
#include "lib/text/number.h"

namespace ckpt::library {
namespace {

constexpr NumberList kLayerList{.option = "--layers",
                                .what = "a layer number",
                                .example = "0-15,20",
                                .limit = kMostLayers,
                                .plural = "layers"};

// Rows [begin, end) of the source, which go to the target from row `to` on.
struct Run {
  uint64_t begin = 0;
  uint64_t end = 0;
  uint64_t to = 0;
};

// {0, 1, 4} -> rows 0-1 to 0, row 4 to 2
std::vector<Run> runs_of(const std::set<uint32_t>& layers, uint64_t rows) {
  std::vector<Run> runs;
  uint64_t to = 0;
  for (const uint32_t layer : layers) {
    if (layer >= rows) break;
    if (runs.empty() || runs.back().end != layer)
      runs.push_back({layer, layer, to});
    ++runs.back().end;
    ++to;
  }
  return runs;
}

uint64_t row_elements(const Box& box) {
  uint64_t count = 1;
  for (size_t d = 1; d < box.shape.size(); ++d) count *= box.shape[d];
  return count;
}

// The part of a piece in rows [begin, end) of the tensor, if there is any.
std::optional<Piece> narrow(const Piece& piece, const Run& run,
                            uint64_t element) {
  const uint64_t top = piece.box.offset[0];
  const uint64_t begin = std::max(run.begin, top);
  const uint64_t end = std::min(run.end, top + piece.box.shape[0]);
  if (begin >= end) return std::nullopt;
  Piece part = piece;
  part.box.offset[0] = run.to + (begin - run.begin);
  part.box.shape[0] = end - begin;
  const uint64_t row = row_elements(piece.box);
  const uint64_t first = (begin - top) * row;
  if (!piece.flat) {
    const Dims& strides = piece.extent.strides;
    part.extent.offset +=
        (begin - top) * (strides.empty() ? row * element : strides[0]);
    return part;
  }
  const uint64_t from = std::max(piece.flat->begin, first);
  const uint64_t to = std::min(piece.flat->end, (end - top) * row);
  if (from >= to) return std::nullopt;
  part.extent.offset += (from - piece.flat->begin) * element;
  part.flat = FlatRange{from - first, to - first};
  return part;
}

bool cuts_through(const Piece& piece, const std::vector<Run>& runs) {
  const uint64_t top = piece.box.offset[0];
  const uint64_t end = top + piece.box.shape[0];
  return std::ranges::none_of(runs,
                              [&](const Run& run) {
                                return run.begin <= top && end <= run.end;
                              }) &&
         std::ranges::any_of(runs, [&](const Run& run) {
           return run.begin < end && top < run.end;
         });
}

void narrow(Tensor& tensor, const std::vector<Run>& runs) {
  const uint64_t element = element_size(tensor.dtype);
  if (element == 0)
    throw unfaithful_error({{}, tensor.name},
                           "--layers: rows of {} don't begin at a byte",
                           name(tensor.dtype));
  std::vector<Piece> kept;
  for (const Piece& piece : tensor.pieces)
    for (const Run& run : runs)
      if (auto part = narrow(piece, run, element))
        kept.push_back(std::move(*part));
  tensor.pieces = std::move(kept);
  tensor.shape[0] = 0;
  for (const Run& run : runs) tensor.shape[0] += run.end - run.begin;
}

// An object of layer i of L moves to its new place or is removed.
bool keep_object(Object& object, const std::set<uint32_t>& layers,
                 const LayerCount& count) {
  const auto place = megatron::parse_object_key(object.name);
  if (!place || place->grid.empty()) return true;
  if (!megatron::parse_key(place->key).layer_axis || count.aside(place->key))
    return true;
  auto offset = place->offset, grid = place->grid;
  uint64_t kept = 0, before = 0;
  bool stays = false;
  for (const uint32_t layer : layers) {
    if (layer >= grid[0]) break;
    stays |= layer == offset[0];
    before += layer < offset[0];
    ++kept;
  }
  if (!stays) return false;
  offset[0] = before;
  grid[0] = kept;
  object.name = megatron::object_key(place->key, offset, grid);
  return true;
}

}  // namespace

std::vector<uint32_t> parse_layer_order(const std::string& text) {
  const std::vector<uint64_t> layers = parse_numbers(kLayerList, text);
  return {layers.begin(), layers.end()};
}

std::optional<uint32_t> last_layers(const std::string& text) {
  constexpr std::string_view kLast = "last:";
  if (!text.starts_with(kLast)) return {};
  const auto count =
      text::number<uint32_t>(std::string_view(text).substr(kLast.size()));
  if (count.value_or(0) == 0 || *count > kMostLayers)
    throw usage_error({}, "--layers '{}': expected a number of layers", text)
        .with_hint("--layers last:4 keeps the last four, counted from 0");
  return count;
}

void check_layers(const std::string& text) {
  if (!last_layers(text)) parse_layer_order(text);
}

std::string keep_rows(Catalog& catalog, const std::set<uint32_t>& layers,
                      const LayerCount& count, Edits& edits) {
  // A piece of an archive can't be cut before its place in the archive is
  // known.
  const bool cut = std::ranges::any_of(catalog.tensors, [&](const Tensor& t) {
    const auto runs = runs_of(layers, count.stacked(catalog, t));
    return !runs.empty() && std::ranges::any_of(t.pieces, [&](const Piece& p) {
      return p.extent.archive != 0 && cuts_through(p, runs);
    });
  });
  if (cut) locate(catalog);
  uint64_t changed = 0, before = 0;
  std::vector<Run> last;
  for (Tensor& tensor : catalog.tensors) {
    const uint64_t rows = count.stacked(catalog, tensor);
    if (rows == 0) continue;
    const std::vector<Run> runs = runs_of(layers, rows);
    narrow(tensor, runs);
    if (tensor.shape[0] == rows) continue;
    edits[tensor.name] = {tensor.name, true};
    ++changed;
    before = rows;
    last = runs;
  }
  if (changed == 0) return {};
  std::erase_if(catalog.objects, [&](Object& object) {
    return !keep_object(object, layers, count);
  });
  std::vector<std::string> places;
  for (const Run& run : last)
    places.push_back(run.end - run.begin == 1
                         ? fmt::format("layer {} as row {}", run.begin, run.to)
                         : fmt::format("layers {}-{} as rows {}-{}", run.begin,
                                       run.end - 1, run.to,
                                       run.to + (run.end - run.begin) - 1));
  return fmt::format(
      "--layers: axis 0 of {} tensors stacks {} layers; kept are {}", changed,
      before, fmt::join(places, ", "));
}

}  // namespace ckpt::library
