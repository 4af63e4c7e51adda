#include "app/view.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <set>
#include <tuple>

#include "app/console.h"
#include "app/layers.h"
#include "app/pattern.h"
#include "app/report.h"
#include "app/table.h"
#include "formats/peft/config.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::app {
namespace {

using text::iec_size;
using text::printable;

std::string times(uint64_t count) {
  return count == 1 ? "" : "×" + grouped(count);
}

std::string counted(uint64_t count, std::string_view one,
                    std::string_view many) {
  return grouped(count) + " " + std::string(count == 1 ? one : many);
}

// "21 model, 63 optim"
std::string kinds_text(const Totals& sums) {
  std::string text;
  const auto add = [&](uint64_t count, std::string_view kind) {
    if (count == 0) return;
    if (!text.empty()) text += ", ";
    text += fmt::format("{} {}", grouped(count), kind);
  };
  add(sums.model, "model");
  add(sums.optim, "optimizer");
  add(sums.other, "other");
  return text.empty() ? "none" : text;
}

std::string format_text(const Catalog& catalog) {
  std::string text = printable(catalog.format);
  if (!catalog.version.empty()) text += " " + printable(catalog.version);
  return text;
}

std::string family_text(const Catalog& catalog) {
  if (catalog.family.empty() && catalog.dialect.empty()) return "";
  std::string text =
      catalog.family.empty() ? "unknown" : printable(catalog.family);
  if (!catalog.dialect.empty())
    text += " (" + printable(catalog.dialect) + " names)";
  return text;
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
std::string axes_text(const Catalog& catalog, const PatternRow& row) {
  if (row.like_parameter) return {};
  const TpRule& rule = row.first->tp;
  std::string text = stacked_layers(catalog, *row.first) ? "layers dim 0" : "";
  if (rule.state != TpRule::State::kSplit && catalog.topology.tp <= 1)
    return text;
  const std::string split = split_text(rule);
  if (!text.empty() && !split.empty()) text += ", ";
  return text + split;
}

std::string rows_text(const Catalog& catalog,
                      const std::vector<PatternRow>& rows, size_t width) {
  Table table({Align::kLeft, Align::kRight, Align::kLeft, Align::kLeft,
               Align::kRight, Align::kLeft},
              2);
  for (const PatternRow& row : rows) {
    table.row(
        {printable(row.name), times(row.count),
         std::string(name(row.first->dtype)),
         row.like_parameter ? "same as param" : dims_text(row.first->shape),
         iec_size(row.bytes), axes_text(catalog, row)});
  }
  return table.text(width);
}

}  // namespace

std::string short_path(const Catalog& catalog, const std::string& path) {
  if (path == catalog.path) return printable(io::base_name(path));
  const std::string inside = catalog.path + "/";
  return printable(path.starts_with(inside) ? path.substr(inside.size())
                                            : path);
}

std::string summary_text(const Catalog& catalog) {
  const Totals sums = totals(catalog);
  Table table({Align::kLeft, Align::kLeft});
  const auto row = [&](std::string_view label, std::string value) {
    if (!value.empty())
      table.row({styled(label, Style::kBold), std::move(value)});
  };
  row("path", printable(catalog.path));
  if (catalog.root != catalog.path) row("found in", printable(catalog.root));
  row("format", format_text(catalog));
  row("family", family_text(catalog));
  if (const auto adapter = peft::config_of(catalog))
    row("adapter", printable(peft::describe(*adapter)));
  row("topology", to_string(catalog.topology));
  row("tensors", kinds_text(sums));
  if (sums.parameters != 0)
    row("parameters", sums.parameters < 1000
                          ? grouped(sums.parameters)
                          : fmt::format("{} ({})", grouped(sums.parameters),
                                        si_count(sums.parameters)));
  row("size", fmt::format("{} in {}", iec_size(sums.bytes),
                          counted(sums.files, "file", "files")));
  if (!catalog.objects.empty())
    row("objects", grouped(catalog.objects.size()) + " (--objects)");
  return table.text(0);
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
  std::string text = fmt::format(
      "\n{}  {} {}  {}\n", styled(printable(tensor.name), Style::kBold),
      name(tensor.dtype), dims_text(tensor.shape), iec_size(byte_size(tensor)));
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
      remark = remark.empty() ? "replica" : "replica " + remark;
    table.row({std::move(where),
               short_path(catalog, catalog.files[piece.extent.file].path),
               fmt::format("@{}", piece.extent.offset),
               iec_size(piece_bytes(tensor, piece)), std::move(remark)});
  }
  return text + table.text(width);
}

std::string objects_text(const Catalog& catalog, size_t width) {
  constexpr size_t kUnlimited = 100;  // of a value, if the width is
  if (catalog.objects.empty()) return "";
  const size_t most = width != 0 ? std::max<size_t>(width / 2, 20) : kUnlimited;
  const ObjectValues values(catalog);
  Table table({Align::kLeft, Align::kLeft, Align::kLeft}, 2);
  for (const Object& object : catalog.objects) {
    table.row({printable(object.name), printable(type_name(object)),
               cut_end(values.line(object, 4 * most), most)});
  }
  return "\n" + styled("Objects", Style::kBold) + "\n" + table.text(width);
}

}  // namespace ckpt::app
