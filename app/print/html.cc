// SPDX-License-Identifier: Apache-2.0
#include "app/print/html.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <string_view>

#include "api/edit/layer_place.h"
#include "app/print/html_page.h"
#include "app/print/json_writer.h"
#include "app/print/pattern.h"
#include "app/print/report.h"
#include "app/print/table.h"
#include "app/print/view.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::app {
namespace {

template <class... Args>
void append(std::string& out, fmt::format_string<Args...> text,
            Args&&... args) {
  fmt::format_to(std::back_inserter(out), text, std::forward<Args>(args)...);
}

struct Row {
  Kind kind;
  PatternRow pattern;
};

std::vector<Row> all_rows(const Catalog& catalog) {
  std::vector<Row> rows;
  for (const Kind kind : {Kind::model, Kind::optim, Kind::other})
    for (PatternRow& row : pattern_rows(catalog, kind))
      rows.push_back({kind, std::move(row)});
  return rows;
}

// Keeps the largest rows that a page has room for, in their order.
uint64_t keep_largest(std::vector<Row>& rows) {
  if (rows.size() <= kMostRows) return 0;
  std::vector<uint64_t> sizes;
  for (const Row& row : rows) sizes.push_back(row.pattern.bytes);
  std::ranges::nth_element(sizes, sizes.begin() + kMostRows - 1,
                           std::greater());
  const uint64_t least = sizes[kMostRows - 1];
  auto equal = static_cast<uint64_t>(
      kMostRows - std::ranges::count_if(rows, [&](const Row& r) {
        return r.pattern.bytes > least;
      }));
  return std::erase_if(rows, [&](const Row& row) {
    if (row.pattern.bytes > least) return false;
    if (row.pattern.bytes < least || equal == 0) return true;
    --equal;
    return false;
  });
}

std::string warning_html(std::string_view what, std::string_view message) {
  return fmt::format("<p class=\"warn\">{}: {}</p>\n", escaped(what),
                     escaped(message));
}

std::string summary_html(const Catalog& catalog) {
  std::vector<std::pair<std::string, std::string>> cards;
  for (SummaryRow& row : summary_rows(catalog)) {
    // The path is the heading; an age would be the page's.
    if (row.label == "path" || row.label == "saved" || row.label == "objects")
      continue;
    cards.emplace_back(row.label, std::move(row.value));
  }
  std::string out = cards_html(cards);
  for (const Problem& problem : catalog.problems)
    out += warning_html(problem.tensor.empty() ? problem.kind : problem.tensor,
                        problem.message);
  return out;
}

// Bytes of each layer in each file. Many files, or layers, share a
// row or a column.
struct Heat {
  std::vector<std::string> files, columns;
  std::map<std::pair<size_t, size_t>, uint64_t> cells;
};

Heat heat_of(const Catalog& catalog) {
  constexpr size_t kMostFiles = 128, kMostColumns = 64;
  Heat heat;
  std::vector<size_t> row(catalog.files.size(), SIZE_MAX);
  size_t more = 0;
  uint64_t layers = 0;
  // The layers that a piece has, [first, last); of a stack it may have many.
  using Layers = std::pair<uint64_t, uint64_t>;
  const auto layers_of = [&](const Tensor& tensor,
                             const Piece& piece) -> std::optional<Layers> {
    if (library::stacked_layers(catalog, tensor) != 0 &&
        !piece.box.offset.empty() && tensor.grid.empty()) {
      const uint64_t first = piece.box.offset[0];
      const uint64_t many = piece.flat ? 1 : piece.box.shape[0];
      return Layers{first, first + std::max<uint64_t>(many, 1)};
    }
    const auto layer = library::layer_of(tensor);
    if (!layer) return std::nullopt;
    return Layers{*layer, *layer + 1ul};
  };
  for (const Tensor& tensor : catalog.tensors)
    for (const Piece& piece : tensor.pieces)
      if (const auto found = layers_of(tensor, piece))
        layers = std::max(layers, found->second);
  const uint64_t each = (layers + kMostColumns - 1) / kMostColumns;
  for (uint64_t l = 0; l < layers; l += each)
    heat.columns.push_back(each == 1
                               ? fmt::format("layer {}", l)
                               : fmt::format("layers {} to {}", l,
                                             std::min(l + each, layers) - 1));
  heat.columns.push_back("other tensors");
  for (const Tensor& tensor : catalog.tensors) {
    for (const Piece& piece : tensor.pieces) {
      size_t& at = row[piece.extent.file];
      if (at == SIZE_MAX) {
        at = std::min(heat.files.size(), kMostFiles);
        if (at < kMostFiles)
          heat.files.push_back(
              short_path(catalog, catalog.files[piece.extent.file].path));
        else
          ++more;
      }
      const uint64_t count =
          piece.flat ? piece.flat->end - piece.flat->begin : volume(piece.box);
      const uint64_t bytes = byte_size(tensor.dtype, Shape{count}).value_or(0);
      const auto found = layers_of(tensor, piece);
      if (!found) {
        heat.cells[{at, heat.columns.size() - 1}] += bytes;
        continue;
      }
      const auto [first, last] = *found;
      for (uint64_t column = first / each; column * each < last; ++column) {
        const uint64_t begin = std::max(first, column * each);
        const uint64_t end = std::min(last, (column + 1) * each);
        heat.cells[{at, column}] += bytes / (last - first) * (end - begin);
      }
    }
  }
  if (more != 0) heat.files.push_back(fmt::format("{} more files", more));
  return heat;
}

// [min, max, mean, std, norm, zeros, NaNs, infinities, [elements by magnitude]]
void write_numbers(JsonWriter& json, const reshard::Stats& stats) {
  json.begin_array();
  if (stats.count > stats.nans + stats.infs)
    json.value(stats.min).value(stats.max).value(reshard::mean(stats));
  else
    json.null().null().null();
  json.value(reshard::deviation(stats)).value(reshard::norm(stats));
  json.value(stats.zeros).value(stats.nans).value(stats.infs);
  json.begin_array();
  for (const uint64_t count : stats.magnitudes) json.value(count);
  json.end_array().end_array();
}

using AllStats = std::span<const reshard::Stats>;

void write_row(JsonWriter& json, const Catalog& catalog, const Row& row,
               AllStats stats, bool names, bool live) {
  const Tensor& tensor = *row.pattern.first;
  json.begin_object();
  json.member("name", page_name(row.pattern.name));
  if (live) json.member("first", tensor.name);  // needed to ask for one
  json.member("kind", name(row.kind));
  json.member("dtype", name(tensor.dtype));
  json.member("shape", to_string(tensor.shape));
  json.member("count", row.pattern.count);
  json.member("bytes", row.pattern.bytes);
  json.member("split", split_text(tensor.tp));
  // To ask for a tensor on a live page, its exact name is needed.
  const bool exact =
      !live || std::ranges::all_of(row.pattern.members, [&](uint32_t at) {
        return page_name(catalog.tensors[at].name) == catalog.tensors[at].name;
      });
  if (names && exact && row.pattern.count > 1) {
    json.key("names").begin_array();
    for (const uint32_t at : row.pattern.members)
      json.value(page_name(catalog.tensors[at].name));
    json.end_array();
    if (!stats.empty()) {
      json.key("each").begin_array();
      for (const uint32_t at : row.pattern.members)
        write_numbers(json, stats[at]);
      json.end_array();
    }
  }
  if (!stats.empty()) {
    reshard::Stats sum;
    for (const uint32_t at : row.pattern.members) sum += stats[at];
    json.key("stats");
    write_numbers(json, sum);
  }
  json.end_object();
}

// Writes what the script draws.
void write_data(JsonWriter& json, const Catalog& catalog,
                const std::vector<Row>& rows, const Heat& heat, AllStats stats,
                bool live) {
  const bool names = catalog.tensors.size() <= kMostRows;
  json.begin_object().key("rows").begin_array();
  for (const Row& row : rows) write_row(json, catalog, row, stats, names, live);
  json.end_array().key("heat").begin_object().key("files").begin_array();
  for (const std::string& file : heat.files) json.value(page_name(file));
  json.end_array().key("columns").begin_array();
  for (const std::string& column : heat.columns) json.value(column);
  json.end_array().key("cells").begin_array();
  for (const auto& [at, bytes] : heat.cells) {
    json.begin_array().value(uint64_t{at.first}).value(uint64_t{at.second});
    json.value(bytes).end_array();
  }
  json.end_array().end_object().end_object();
}

std::string values_html(std::string_view heading,
                        std::vector<NamedStats> rows) {
  return fmt::format(
      "<section class=\"long\"><div class=\"head\"><h2>Values</h2><span>norms, "
      "and elements of each magnitude</span></div>"
      "<div class=\"scroll\">{}</div></section>\n",
      plot_svg(heading, std::move(rows), false));
}

std::string frames_html(const Catalog& catalog, AllStats stats) {
  std::vector<std::pair<std::string_view, std::string_view>> columns = {
      {"name", ""},       {"count", "n lesser"}, {"kind", "lesser"},
      {"dtype", ""},      {"shape", "lesser"},   {"bytes", "n"},
      {"split", "lesser"}};
  std::string values;
  if (!stats.empty()) {
    for (const char* const head : {"norm", "max / rms", "NaN, inf"})
      columns.emplace_back(head, "n");
    columns.emplace_back("magnitudes", "lesser");
    values = values_html("", plotted_stats(catalog, stats));
  }
  return values + map_html("Where the bytes are") +
         "<div class=\"pair\"><section><div class=\"head\"><h2>Types</h2>"
         "<span>bytes of each dtype</span></div>"
         "<div class=\"bars\" id=\"dtypes\"></div></section>\n<section>"
         "<div class=\"head\"><h2>Sizes</h2><span>of one tensor</span></div>"
         "<div class=\"bars\" id=\"sizes\"></div></section></div>\n"
         "<section><div class=\"head\"><h2>Who holds what</h2><span>bytes of "
         "each layer: 0<i class=\"ramp\"></i><b id=\"heat-most\"></b></span>"
         "<div class=\"tabs\" id=\"heat-by\"></div></div>"
         "<div class=\"scroll\"><table id=\"heat\"></table></div>"
         "<p class=\"soft keys\" id=\"heat-say\">Point at a cell, or walk with "
         "the arrow keys.</p></section>\n" +
         table_html("Tensors", columns);
}

void write_objects(std::string& out, const Catalog& catalog) {
  constexpr size_t kLongest = 2000, kMost = 2000;
  if (catalog.objects.empty()) return;
  append(out,
         "<section class=\"long\"><h2>Objects</h2><div class=\"scroll\"><table>"
         "<thead><tr><th>name</th><th class=\"lesser\">type</th><th>value</th>"
         "</tr></thead>"
         "<tbody>\n");
  const ObjectValues values(catalog);
  size_t written = 0;
  for (const Object& object : catalog.objects) {
    if (written++ == kMost) break;
    append(out,
           "<tr><td class=\"c\">{}</td><td class=\"lesser\">{}</td><td "
           "class=\"c\">{}</td></tr>\n",
           breakable(escaped(cut_middle(object.name, kLongestName))),
           escaped(cut_middle(type_name(object), kLongestName)),
           escaped(cut_middle(values.line(object, kLongest), kLongest)));
  }
  append(out, "</tbody></table></div>");
  if (catalog.objects.size() > kMost)
    append(out,
           "<p class=\"soft\">the first {} of {}; ckpt inspect --objects has "
           "all</p>",
           grouped(kMost), grouped(catalog.objects.size()));
  append(out, "</section>\n");
}

PageParts parts_of(const Catalog& catalog, AllStats stats, bool live) {
  std::vector<Row> rows = all_rows(catalog);
  const uint64_t left = keep_largest(rows);
  PageParts parts{.title = io::base_name(catalog.path),
                  .subtitle = catalog.path,
                  .body = summary_html(catalog),
                  .data = {},
                  .scripts = {"common", "map", "inspect"}};
  if (left != 0)
    parts.body +=
        warning_html("not on this page", text::counted(left, "smaller row") +
                                             "; ckpt ls has them all");
  parts.body += frames_html(catalog, stats);
  write_objects(parts.body, catalog);
  write_data(parts.data, catalog, rows, heat_of(catalog), stats, live);
  return parts;
}

}  // namespace

std::string inspect_html(const Catalog& catalog,
                         std::span<const reshard::Stats> stats) {
  return page_text(parts_of(catalog, stats, false));
}

std::string steps_html(const std::string& root,
                       const std::vector<NamedStats>& steps) {
  PageParts parts{.title = io::base_name(root),
                  .subtitle = root,
                  .body = values_html("", steps),
                  .data = {},
                  .scripts = {"common"}};
  parts.data.begin_object().end_object();
  return page_text(std::move(parts));
}

std::string live_policy(const std::string& nonce) { return page_policy(nonce); }

std::string live_html(const Catalog& catalog, const std::string& nonce) {
  return page_text(parts_of(catalog, {}, true), "live", nonce);
}

}  // namespace ckpt::app
