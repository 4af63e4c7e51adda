// SPDX-License-Identifier: Apache-2.0
#include "app/print/html.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <string_view>

#include "api/edit/layers.h"
#include "app/print/html_page.h"
#include "app/print/json_writer.h"
#include "app/print/pattern.h"
#include "app/print/report.h"
#include "app/print/table.h"
#include "app/print/view.h"
#include "lib/text/format.h"

namespace ckpt::app {
namespace {

std::string escaped(std::string_view raw) {
  std::string out;
  for (const char c : text::printable(raw)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

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

void write_summary(std::string& out, const Catalog& catalog) {
  const Totals sums = totals(catalog);
  append(out, "<dl>");
  const auto row = [&](std::string_view label, std::string_view value) {
    append(out, "<dt>{}</dt><dd>{}</dd>\n", label, escaped(value));
  };
  row("format", catalog.format + " " + catalog.version);
  row("family", catalog.family.empty() ? "unknown" : catalog.family);
  row("topology", to_string(catalog.topology));
  row("tensors",
      fmt::format("{} model, {} optimizer, {} other", grouped(sums.model),
                  grouped(sums.optim), grouped(sums.other)));
  row("parameters", fmt::format("{} ({})", grouped(sums.parameters),
                                si_count(sums.parameters)));
  row("size", fmt::format("{} in {} files", text::iec_size(sums.bytes),
                          grouped(sums.files)));
  append(out, "</dl>\n");
  for (const Problem& problem : catalog.problems)
    append(out, "<p class=\"warn\">{}: {}</p>\n",
           escaped(problem.tensor.empty() ? problem.kind : problem.tensor),
           escaped(problem.message));
}

// Which file has how many bytes of which layer. Many files, or layers, share a
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
  const auto layer_at = [&](const Tensor& tensor, const Piece& piece) {
    if (library::stacked_layers(catalog, tensor) != 0 &&
        !piece.box.offset.empty() && tensor.grid.empty())
      return std::optional<uint64_t>(piece.box.offset[0]);
    const auto layer = library::layer_of(tensor);
    return layer ? std::optional<uint64_t>(*layer) : std::nullopt;
  };
  for (const Tensor& tensor : catalog.tensors)
    for (const Piece& piece : tensor.pieces)
      layers = std::max(layers, layer_at(tensor, piece).value_or(0) + 1);
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
      const auto layer = layer_at(tensor, piece);
      const uint64_t count =
          piece.flat ? piece.flat->end - piece.flat->begin : volume(piece.box);
      heat.cells[{at, layer ? *layer / each : heat.columns.size() - 1}] +=
          byte_size(tensor.dtype, Shape{count}).value_or(0);
    }
  }
  if (more != 0) heat.files.push_back(fmt::format("{} more files", more));
  return heat;
}

// What the script draws. No "<" is in it, so no name ends the element.
void write_data(std::string& out, const std::vector<Row>& rows,
                const Heat& heat, bool live) {
  JsonWriter json;
  json.begin_object().key("rows").begin_array();
  for (const Row& row : rows) {
    const Tensor& tensor = *row.pattern.first;
    json.begin_object();
    json.member("name", text::printable(row.pattern.name));
    if (live) json.member("first", tensor.name);  // who asks needs one of them
    json.member("kind", name(row.kind));
    json.member("dtype", name(tensor.dtype));
    json.member("shape", to_string(tensor.shape));
    json.member("count", row.pattern.count);
    json.member("bytes", row.pattern.bytes);
    json.member("split", split_text(tensor.tp)).end_object();
  }
  json.end_array().key("heat").begin_object().key("files").begin_array();
  for (const std::string& file : heat.files) json.value(text::printable(file));
  json.end_array().key("columns").begin_array();
  for (const std::string& column : heat.columns) json.value(column);
  json.end_array().key("cells").begin_array();
  for (const auto& [at, bytes] : heat.cells) {
    json.begin_array().value(uint64_t{at.first}).value(uint64_t{at.second});
    json.value(bytes).end_array();
  }
  json.end_array().end_object().end_object();
  append(out, "<script type=\"application/json\" id=\"data\">");
  for (const char c : std::move(json).text()) {
    if (c == '<')
      out += "\\u003c";
    else
      out += c;
  }
  append(out, "</script>\n");
}

void write_frames(std::string& out) {
  append(out,
         "<h2>Where the bytes are</h2><div id=\"path\"></div>"
         "<div id=\"map\"></div>\n<h2>Types</h2>"
         "<div class=\"bars\" id=\"dtypes\"></div>\n<h2>Sizes</h2>"
         "<div class=\"bars\" id=\"sizes\"></div>\n<h2>Files and layers</h2>"
         "<div class=\"scroll\"><table id=\"heat\"></table></div>\n"
         "<h2>Tensors</h2><input id=\"q\" placeholder=\"filter by name\" "
         "aria-label=\"filter by name\"> <span id=\"more\"></span>"
         "<div class=\"scroll\"><table id=\"t\"><thead><tr>");
  constexpr std::pair<std::string_view, std::string_view> kColumns[] = {
      {"name", ""},  {"count", "n"}, {"kind", ""}, {"dtype", ""},
      {"shape", ""}, {"bytes", "n"}, {"split", ""}};
  for (const auto& [column, style] : kColumns)
    append(out, "<th class=\"{}\"><button>{}</button></th>", style, column);
  append(out,
         "</tr></thead><tbody></tbody></table></div>\n"
         "<noscript><p class=\"warn\">The map and the table need "
         "JavaScript.</p></noscript>\n");
}

void write_objects(std::string& out, const Catalog& catalog) {
  constexpr size_t kLongest = 2000;
  if (catalog.objects.empty()) return;
  append(out,
         "<h2>Objects</h2><table><thead><tr><th>name</th><th>type</th>"
         "<th>value</th></tr></thead><tbody>\n");
  const ObjectValues values(catalog);
  for (const Object& object : catalog.objects) {
    append(out,
           "<tr><td class=\"c\">{}</td><td>{}</td><td class=\"c\">{}</td>"
           "</tr>\n",
           escaped(object.name), escaped(type_name(object)),
           escaped(cut_middle(values.line(object, kLongest), kLongest)));
  }
  append(out, "</tbody></table>\n");
}

// The page, up to its scripts.
std::string page_body(const Catalog& catalog, bool live) {
  const std::vector<Row> rows = all_rows(catalog);
  std::string out;
  append(out, "<title>{}</title></head><body>\n<h1>{}</h1>\n",
         escaped(catalog.path), escaped(catalog.path));
  write_summary(out, catalog);
  write_frames(out);
  write_objects(out, catalog);
  append(out, "<p>made by ckpt {}</p>\n", CKPT_VERSION);
  write_data(out, rows, heat_of(catalog), live);
  return out;
}

// A script of ours as an element that the policy lets run.
std::string with_nonce(std::string_view script, const std::string& nonce) {
  constexpr std::string_view kTag = "<script";
  return fmt::format("{} nonce=\"{}\"{}", kTag, nonce,
                     script.substr(kTag.size()));
}

constexpr std::string_view kPageEnd = "</body></html>\n";

}  // namespace

std::string inspect_html(const Catalog& catalog) {
  std::string out(kHtmlStart);
  out += kHtmlPolicy;
  out += kHtmlHead;
  out += page_body(catalog, false);
  out += kHtmlScript;
  return out += kPageEnd;
}

std::string live_policy(const std::string& nonce) {
  return fmt::format(
      "default-src 'none'; style-src 'unsafe-inline'; script-src 'nonce-{}'; "
      "connect-src 'self'; base-uri 'none'; form-action 'none'; "
      "frame-ancestors 'none'",
      nonce);
}

std::string live_html(const Catalog& catalog, const std::string& nonce) {
  std::string out(kHtmlStart);  // the policy is a header here
  out += kHtmlHead;
  out += page_body(catalog, true);
  out += with_nonce(kHtmlLiveScript, nonce);
  out += with_nonce(kHtmlScript, nonce);
  return out += kPageEnd;
}

}  // namespace ckpt::app
