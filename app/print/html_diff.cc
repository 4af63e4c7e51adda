// SPDX-License-Identifier: Apache-2.0
#include "app/print/html_diff.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>

#include "api/check/facts.h"
#include "app/print/html_page.h"
#include "app/print/report.h"
#include "app/print/table.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::app {
namespace {

// Besides rows: values that are not tensors, and facts.
constexpr size_t kMostLines = 500;

// What the page colours by; "" for differences that are not about a tensor.
std::string_view status_of(const Difference& difference) {
  if (is_note(difference)) return "note";
  for (const std::string_view kind :
       {"only_in_a", "only_in_b", "dtype", "shape", "arrangement"})
    if (difference.kind == kind) return kind;
  return difference.kind == "values" || difference.kind == "replica"
             ? std::string_view("values")
             : std::string_view();
}

std::string line_html(std::string_view text) {
  return fmt::format("<p class=\"warn\">{}</p>\n",
                     escaped(cut_middle(text, 4 * kLongestName)));
}

// The differences of each tensor; those about none go to `lines`.
using ByTensor = std::map<std::string_view, std::vector<const Difference*>>;

ByTensor by_tensor(const std::vector<Difference>& differences,
                   std::vector<std::string>& lines) {
  ByTensor found;
  for (const Difference& difference : differences) {
    if (status_of(difference).empty())
      lines.push_back(difference.tensor + ": " + difference.message);
    else
      found[difference.tensor].push_back(&difference);
  }
  return found;
}

// "a and b": as much of their paths as distinguishes them.
std::string titles(const std::string& a, const std::string& b) {
  std::string left = io::base_name(a), right = io::base_name(b);
  std::string above_a = io::parent(a), above_b = io::parent(b);
  constexpr int kMost = 4;
  for (int level = 0; left == right && level < kMost; ++level) {
    if (above_a == io::parent(above_a) || above_b == io::parent(above_b)) break;
    left = io::join(io::base_name(above_a), left);
    right = io::join(io::base_name(above_b), right);
    above_a = io::parent(above_a);
    above_b = io::parent(above_b);
  }
  return left + " and " + right;
}

std::string frames_html() {
  return map_html("What differs, by size") +
         "<div class=\"pair\"><section><div class=\"head\"><h2>Tensors</h2>"
         "<span>by what became of them</span></div><div class=\"bars\" "
         "id=\"kinds\"></div></section>\n<section><div class=\"head\">"
         "<h2>Furthest apart</h2><span>relative L2</span>"
         "</div><div class=\"bars\" id=\"far\"></div></section></div>\n" +
         table_html("Tensor by tensor", {{"name", ""},
                                         {"difference", ""},
                                         {"dtype", "lesser"},
                                         {"shape", "lesser"},
                                         {"bytes", "n lesser least"},
                                         {"relative L2", "n"},
                                         {"differ", "n lesser"},
                                         {"at most", "n lesser"},
                                         {"cosine", "n lesser least"},
                                         {"", "lesser"}});
}

void write_differences(JsonWriter& json,
                       const std::vector<const Difference*>& differences) {
  std::string message;
  for (const Difference* one : differences)
    message += (message.empty() ? "" : "; ") +
               (one->file.empty() ? "" : one->file + ": ") + one->message;
  json.member("status", status_of(*differences.front()));
  json.member("message", text::printable(cut_middle(message, kLongestName)));
  if (!differences.front()->distance) return;
  if (!differences.front()->why.empty()) json.member("why", true);
  write_distance(json, *differences.front()->distance);
}

}  // namespace

DiffPage::DiffPage(const Catalog& a, const Catalog& b)
    : a_(a.path), b_(b.path) {
  for (const Catalog* side : {&a, &b})
    for (const Tensor& tensor : side->tensors) add(tensor);
  keep_largest();
}

void DiffPage::add(const Tensor& tensor) {
  const auto [at, fresh] = index_.try_emplace(tensor.name, rows_.size());
  if (!fresh) {
    Row& row = rows_[at->second];
    row.bytes = std::max(row.bytes, byte_size(tensor));
    return;
  }
  rows_.push_back({.name = tensor.name,
                   .dtype = tensor.dtype,
                   .shape = tensor.shape,
                   .bytes = byte_size(tensor)});
  // Sorts at most twice as many as a page holds, not all of them.
  if (rows_.size() >= 2 * kMostRows) keep_largest();
}

void DiffPage::keep_largest() {
  if (rows_.size() <= kMostRows) return;
  std::ranges::nth_element(rows_, rows_.begin() + kMostRows, std::greater(),
                           &Row::bytes);
  left_out_ += rows_.size() - kMostRows;
  rows_.resize(kMostRows);
  index_.clear();
  for (size_t i = 0; i < rows_.size(); ++i) index_.emplace(rows_[i].name, i);
}

std::string DiffPage::text(
    const Comparison& result,
    const std::vector<families::FactDifference>& facts) const {
  PageParts parts{.title = titles(a_, b_),
                  .subtitle = "A " + a_ + " · B " + b_,
                  .body = {},
                  .data = {},
                  .scripts = {"common", "map", "diff"}};
  std::vector<std::string> lines;
  for (const families::FactDifference& fact : facts)
    lines.push_back("fact " + fact.name + ": " + library::fact_text(fact));
  const ByTensor found = by_tensor(result.differences, lines);
  const auto notes =
      static_cast<size_t>(std::ranges::count_if(result.differences, is_note));
  parts.body =
      cards_html({{"A", a_},
                  {"B", b_},
                  {"compared", text::counted(result.tensors, "tensor")},
                  {"differences",
                   grouped(result.differences.size() - notes + facts.size())}});
  for (size_t i = 0; i < lines.size() && i < kMostLines; ++i)
    parts.body += line_html(lines[i]);
  if (lines.size() > kMostLines)
    parts.body += line_html(fmt::format("and {} more; ckpt diff --json has all",
                                        grouped(lines.size() - kMostLines)));
  if (left_out_ != 0)
    parts.body += line_html(
        "not on this page: " + text::counted(left_out_, "smaller tensor") +
        "; those that differ are below");
  parts.body += frames_html();

  JsonWriter& json = parts.data;
  json.begin_object().key("rows").begin_array();
  const auto begin = [&](const Row& row) {
    json.begin_object().member("name", page_name(row.name));
    json.member("dtype", ckpt::name(row.dtype));
    json.member("shape", to_string(row.shape));
    json.member("bytes", row.bytes);
  };
  for (const Row& row : rows_) {
    begin(row);
    const auto at = found.find(row.name);
    if (at == found.end())
      json.member("status", "same");
    else
      write_differences(json, at->second);
    json.end_object();
  }
  size_t more = 0;  // that differ but were too small to keep
  for (const auto& [name, differences] : found) {
    if (index_.contains(std::string(name)) || ++more > kMostRows) continue;
    const Difference& first = *differences.front();
    const Side side = first.a.value_or(first.b.value_or(Side{}));
    begin({.name = std::string(name),
           .dtype = side.dtype,
           .shape = side.shape,
           .bytes = byte_size(side.dtype, side.shape).value_or(0)});
    write_differences(json, differences);
    json.end_object();
  }
  json.end_array().end_object();
  return page_text(std::move(parts));
}

}  // namespace ckpt::app
