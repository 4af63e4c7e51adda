// SPDX-License-Identifier: Apache-2.0
#include "app/print/view.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <tuple>

#include "api/edit/layer_place.h"
#include "app/print/console.h"
#include "app/print/pattern.h"
#include "app/print/report.h"
#include "app/print/table.h"
#include "lib/io/file.h"
#include "lib/text/format.h"
#include "lib/unruled.h"

namespace ckpt::app {
namespace {

using text::iec_size;
using text::printable;

std::string times(uint64_t count) {
  return count == 1 ? "" : "×" + grouped(count);
}

std::string dims_text(const Dims& dims) { return to_string(dims); }

// "[0:512, 0:1024]"
std::string box_text(const Box& box) {
  std::string text = "[";
  for (size_t d = 0; d < box.shape.size(); ++d)
    text += fmt::format("{}{}:{}", d == 0 ? "" : ", ", box.offset[d],
                        box.offset[d] + box.shape[d]);
  return text + "]";
}

uint64_t piece_bytes(const Tensor& tensor, const Piece& piece) {
  const uint64_t elements =
      piece.flat ? piece.flat->end - piece.flat->begin : volume(piece.box);
  return byte_size(tensor.dtype, Shape{elements}).value_or(0);
}

std::string transform_text(const Piece& piece) {
  std::string text;
  if (piece.transform & kSwapBytes) text += " big-endian";
  if (piece.transform & kNegate) text += " negated";
  if (piece.transform & kConjugate) text += " conjugated";
  if (!piece.extent.strides.empty())
    text += " strides " + dims_text(piece.extent.strides);
  return text.empty() ? text : text.substr(1);
}

std::string_view title(Kind kind) {
  switch (kind) {
    case Kind::model:
      return "Model";
    case Kind::optim:
      return "Optimizer";
    case Kind::other:
      return "Other";
  }
  return "Other";
}

// What the dimensions are: "layers dim 0, tp dim 1".
std::string axes_text(const Catalog& catalog, const PatternRow& row,
                      bool groups, const std::vector<Unruled>& unruled) {
  if (row.like_parameter) return {};
  const auto open = std::ranges::find(unruled, row.first, &Unruled::tensor);
  if (open != unruled.end()) return open->text();
  TpRule rule = row.first->tp;
  if (!groups) rule.groups = 1;
  std::string text =
      library::stacked_layers(catalog, *row.first) ? "layers dim 0" : "";
  if (rule.state != TpRule::State::kSplit && catalog.topology.tp <= 1)
    return text;
  const std::string split = split_text(rule);
  if (!text.empty() && !split.empty()) text += ", ";
  return text + split;
}

Table rows_table(const Catalog& catalog, const std::vector<PatternRow>& rows,
                 bool groups) {
  constexpr size_t kSizes = 4, kSplits = 5;
  Table table({Align::kLeft, Align::kRight, Align::kLeft, Align::kLeft,
               Align::kRight, Align::kLeft},
              2);
  const std::vector<Unruled> unruled = unruled_of(catalog);
  if (unruled.empty())
    table.give_up({kSplits, kSizes});
  else
    table.give_up({kSizes});
  for (const PatternRow& row : rows) {
    table.row(
        {printable(row.name), times(row.count),
         std::string(name(row.first->dtype)),
         row.like_parameter ? "same as param" : dims_text(row.first->shape),
         iec_size(row.bytes), axes_text(catalog, row, groups, unruled)});
  }
  return table;
}

// "in 2 groups" is the first thing that a narrow terminal drops.
std::string rows_text(const Catalog& catalog,
                      const std::vector<PatternRow>& rows, size_t width) {
  const Table full = rows_table(catalog, rows, true);
  if (width == 0 || full.width() <= width) return full.text(width);
  return rows_table(catalog, rows, false).text(width);
}

}  // namespace

std::string short_path(const Catalog& catalog, const std::string& path) {
  if (path == catalog.path) return printable(io::base_name(path));
  const std::string inside = catalog.path + "/";
  return printable(path.starts_with(inside) ? path.substr(inside.size())
                                            : path);
}

std::string pattern_text(const Catalog& catalog, size_t width) {
  std::string text;
  for (const Kind kind : {Kind::model, Kind::optim, Kind::other}) {
    std::vector<PatternRow> rows;
    if (kind == Kind::optim) rows = state_rows(catalog);
    if (rows.empty()) rows = pattern_rows(catalog, kind);
    if (rows.empty()) continue;
    uint64_t bytes = 0;
    for (const PatternRow& row : rows)
      bytes = checked_add(bytes, row.bytes).value_or(UINT64_MAX);
    text += fmt::format("\n{}  {}\n", styled(title(kind), Style::kBold),
                        iec_size(bytes));
    text += rows_text(catalog, rows, width);
  }
  return text;
}

std::string shards_text(const Catalog& catalog, const Tensor& tensor,
                        size_t width) {
  const std::string about =
      fmt::format("{} {}  {}", name(tensor.dtype), dims_text(tensor.shape),
                  iec_size(byte_size(tensor)));
  const std::string title = printable(tensor.name);
  const bool wide = width != 0 && display_width(title + "  " + about) > width;
  Table head({Align::kLeft});
  head.row({styled(title, Style::kBold) + (wide ? "" : "  " + about)});
  std::string text = "\n" + head.text(width);
  if (wide) text += "  " + about + "\n";
  Table table(
      {Align::kLeft, Align::kLeft, Align::kRight, Align::kRight, Align::kLeft},
      2);
  table.shrink_column(1);
  using Place = std::tuple<Dims, Dims, uint64_t, uint64_t>;
  std::set<Place> seen;
  for (const Piece& piece : tensor.pieces) {
    std::string where = box_text(piece.box);
    const FlatRange flat = piece.flat.value_or(FlatRange{});
    if (piece.flat)
      where += fmt::format(" elements {}-{}", flat.begin, flat.end);
    std::string remark = transform_text(piece);
    if (!seen.insert({piece.box.offset, piece.box.shape, flat.begin, flat.end})
             .second)
      remark.insert(0, remark.empty() ? "replica" : "replica ");
    table.row({std::move(where),
               short_path(catalog, catalog.files[piece.extent.file].path),
               fmt::format("@{}", piece.extent.offset),
               iec_size(piece_bytes(tensor, piece)), std::move(remark)});
  }
  return text + table.text(width);
}

namespace {

// Objects shown in one row: their names differ only in numbers, type and value
// are the same.
struct ObjectRow {
  std::string name, type, value;
  uint64_t count = 0;
};

// "rng_state/shard_0.1_2.2" -> "rng_state/shard_#.#_#.#": whole numbers between
// any of the separators in names.
std::string object_pattern(const std::string& name) {
  constexpr std::string_view kBetween = "._/-";
  std::string text;
  for (size_t at = 0; at < name.size();) {
    const size_t end = std::min(name.find_first_of(kBetween, at), name.size());
    const std::string part = name.substr(at, end - at);
    const bool number =
        !part.empty() && part.find_first_not_of("0123456789") == part.npos;
    text += number ? "#" : part;
    if (end < name.size()) text += name[end];
    at = end + 1;
  }
  return text;
}

// The names of parameters, as optimizers list their options by them.
std::set<std::string, std::less<>> parameter_names(const Catalog& catalog) {
  std::set<std::string, std::less<>> names;
  for (const Tensor& tensor : catalog.tensors) {
    if (tensor.kind == Kind::model) names.insert(tensor.name);
    if (!tensor.param.empty()) names.insert(tensor.param);
  }
  return names;
}

// "param_groups.layers.0.wq.weight.lr" -> "param_groups.*.lr", as the states
// of an optimizer are one row. Whole names only, and the longest one.
std::string without_parameter(
    const std::string& name,
    const std::set<std::string, std::less<>>& parameters) {
  constexpr size_t kMostDots = 32;
  std::vector<size_t> dots;
  for (size_t at = name.find('.'); at != name.npos; at = name.find('.', at + 1))
    dots.push_back(at);
  if (parameters.empty() || dots.size() > kMostDots) return name;
  for (size_t first = 0; first < dots.size(); ++first)
    for (size_t last = dots.size(); --last > first;) {
      const size_t begin = dots[first] + 1;
      if (parameters.contains(
              std::string_view(name).substr(begin, dots[last] - begin)))
        return name.substr(0, begin) + "*" + name.substr(dots[last]);
    }
  return name;
}

std::vector<ObjectRow> object_rows(const Catalog& catalog, size_t most) {
  const ObjectValues values(catalog);
  const auto parameters = parameter_names(catalog);
  std::vector<ObjectRow> rows;
  std::map<std::tuple<std::string, std::string, std::string>, size_t> index;
  for (const Object& object : catalog.objects) {
    const std::string value = values.line(object, 4 * most);
    auto key =
        std::tuple(object_pattern(without_parameter(object.name, parameters)),
                   type_name(object), value);
    const auto [at, fresh] = index.try_emplace(key, rows.size());
    if (fresh)
      rows.push_back(
          {.name = object.name, .type = std::get<1>(key), .value = value});
    else
      rows[at->second].name = std::get<0>(key);
    ++rows[at->second].count;
  }
  return rows;
}

}  // namespace

std::string objects_text(const Catalog& catalog, size_t width) {
  constexpr size_t kUnlimited = 100;  // of a value if the width is unlimited
  if (catalog.objects.empty()) return "";
  const size_t most = width != 0 ? std::max<size_t>(width / 2, 20) : kUnlimited;
  Table table({Align::kLeft, Align::kRight, Align::kLeft, Align::kLeft}, 2);
  table.give_up({2});
  for (const ObjectRow& row : object_rows(catalog, most))
    table.row({printable(row.name), times(row.count), printable(row.type),
               cut_end(row.value, most)});
  return "\n" + styled("Objects", Style::kBold) + "\n" + table.text(width);
}

}  // namespace ckpt::app
