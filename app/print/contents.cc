// SPDX-License-Identifier: Apache-2.0
#include "app/print/contents.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "app/print/console.h"
#include "app/print/plot.h"
#include "app/print/table.h"
#include "lib/text/format.h"

namespace ckpt::app {
namespace {

// "2^-12 ▁▃█▂ 2^-4": how many elements there are of each magnitude, from the
// smallest to the largest.
std::string magnitudes_text(const reshard::Stats& stats) {
  constexpr std::string_view kBars[] = {" ", "▁", "▂", "▃", "▄",
                                        "▅", "▆", "▇", "█"};
  const auto some = [](uint64_t count) { return count != 0; };
  const auto begin = std::ranges::find_if(stats.magnitudes, some);
  if (begin == stats.magnitudes.end()) return "-";
  auto end = stats.magnitudes.end();
  while (*(end - 1) == 0) --end;
  const uint64_t most = *std::max_element(begin, end);
  const auto exponent = [&](auto at) {
    return reshard::Stats::kLeastExponent +
           2 * static_cast<int>(at - stats.magnitudes.begin());
  };
  std::string bars;
  for (auto at = begin; at != end; ++at) {
    const double share = static_cast<double>(*at) / static_cast<double>(most);
    bars += kBars[static_cast<size_t>(std::ceil(share * 8))];
  }
  return fmt::format("2^{} {} 2^{}", exponent(begin), bars, exponent(end));
}

// True if no element is NaN or infinite: a terminal says so once and uses its
// columns for other numbers.
bool all_finite(const library::Reading& reading) {
  return std::ranges::none_of(reading.stats, [](const reshard::Stats& stats) {
    return stats.nans + stats.infs != 0;
  });
}

// The quantiles that a table has, by their place in Stats::kThousandths.
struct Shown {
  size_t quantile;
  const char* head;
};
constexpr Shown kShown[] = {{1, "1%"}, {4, "median"}, {7, "99%"}};

void add_stats(const reshard::Stats& stats, bool finite, bool quantiles,
               std::vector<std::string>& cells) {
  const bool numbers = stats.numbers() != 0;
  const auto number = [&](double value) {
    return numbers ? fmt::format("{:.4g}", value) : std::string("-");
  };
  cells.push_back(number(stats.min));
  cells.push_back(number(stats.max));
  cells.push_back(number(reshard::mean(stats)));
  cells.push_back(number(reshard::deviation(stats)));
  cells.push_back(number(reshard::norm(stats)));
  cells.push_back(grouped(stats.zeros));
  cells.push_back(finite ? "" : grouped(stats.nans));
  cells.push_back(finite ? "" : grouped(stats.infs));
  if (quantiles)
    for (const Shown& shown : kShown)
      cells.push_back(
          stats.quantiles ? number((*stats.quantiles)[shown.quantile]) : "-");
  cells.push_back(magnitudes_text(stats));
}

// A table with its head, and `digests` columns between the name and the
// numbers.
Table stats_table(const char* first, size_t digests, bool finite,
                  bool quantiles) {
  std::vector<Align> columns(1 + digests, Align::kLeft);
  std::vector<std::string> heads{first};
  if (digests != 0) heads.emplace_back("digest");
  const auto add = [&](const char* head) {
    columns.push_back(Align::kRight);
    heads.emplace_back(head);
  };
  for (const char* head : {"min", "max", "mean", "std", "norm", "zeros",
                           finite ? "" : "NaN", finite ? "" : "inf"})
    add(head);
  if (quantiles)
    for (const Shown& shown : kShown) add(shown.head);
  columns.push_back(Align::kLeft);
  heads.emplace_back("magnitudes");
  const size_t last = columns.size() - 1;
  Table table(columns, 2);
  // Names are cut before a number is given up. After that, the first to go are
  // quantiles, magnitudes, zeros and norm, then the spread.
  constexpr size_t kName = 34;
  const size_t begin = 1 + digests;
  std::vector<size_t> least;
  if (quantiles) least = {begin + 8, begin + 10, begin + 9};
  for (const size_t column : {last, begin + 5, begin + 4, begin + 3})
    least.push_back(column);
  table.give_up(std::move(least));
  table.cut_names_first(kName);
  table.row(heads);
  return table;
}

// "lm_head.weight: 2 of 32,000 rows have only zeros": of matrices that have
// something else. Padding looks like it, and what was never trained.
std::string zeros_text(const Catalog& catalog, const library::Reading& reading,
                       size_t width) {
  constexpr size_t kMost = 20;
  std::string lines;
  size_t found = 0;
  for (size_t i = 0; i < catalog.tensors.size(); ++i) {
    const reshard::Stats& stats = reading.stats[i];
    const uint64_t rows = stats.zero_rows.value_or(0);
    const uint64_t columns = stats.zero_columns.value_or(0);
    if (rows + columns == 0 || stats.zeros == stats.count) continue;
    if (++found > kMost) continue;
    const Tensor& tensor = catalog.tensors[i];
    std::vector<std::string> parts;
    if (rows != 0)
      parts.push_back(fmt::format("{} of {} rows", grouped(rows),
                                  grouped(tensor.shape[0])));
    if (columns != 0)
      parts.push_back(fmt::format("{} of {} columns", grouped(columns),
                                  grouped(tensor.shape[1])));
    lines +=
        fmt::format("  {}: {} with nothing but zeros\n",
                    text::printable(tensor.name), fmt::join(parts, " and "));
  }
  if (found > kMost)
    lines += fmt::format("  and {} tensors more\n", found - kMost);
  return lines.empty() ? "" : "\n" + folded(lines, width);
}

// A row for each layer of the model's weights, and one for what is in no layer.
std::string layers_text(const Catalog& catalog, const library::Reading& reading,
                        bool finite, size_t width) {
  const std::vector<NamedStats> rows = stats_by_layer(catalog, reading.stats);
  if (rows.size() < 2 || rows[1].name == "other") return "";
  Table table = stats_table("layer", 0, finite, false);
  for (const NamedStats& row : rows) {
    std::vector<std::string> cells{row.name};
    add_stats(row.stats, finite, false, cells);
    table.row(std::move(cells));
  }
  return "\n" + styled("Layers of the model", Style::kBold) + "\n" +
         table.text(width);
}

}  // namespace

std::string contents_text(const Catalog& catalog,
                          const library::Reading& reading, size_t width) {
  const bool digests = !reading.digests.empty();
  const bool stats = !reading.stats.empty();
  const bool finite = stats && width != 0 && all_finite(reading);
  // Names are worth more than quantiles.
  constexpr size_t kWide = 160;
  const bool quantiles = width == 0 || width >= kWide;
  Table table({Align::kLeft, Align::kLeft}, 2);
  if (stats)
    table = stats_table("tensor", digests ? 1 : 0, finite, quantiles);
  else
    table.row({"tensor", "digest"});
  for (size_t i = 0; i < catalog.tensors.size(); ++i) {
    std::vector<std::string> cells{text::printable(catalog.tensors[i].name)};
    if (digests) cells.push_back(reading.digests[i].hex());
    if (stats) add_stats(reading.stats[i], finite, quantiles, cells);
    table.row(std::move(cells));
  }
  return "\n" + styled("Contents", Style::kBold) +
         (finite ? "  no NaN, no inf\n" : "\n") + table.text(width) +
         (stats ? layers_text(catalog, reading, finite, width) +
                      zeros_text(catalog, reading, width)
                : "");
}

std::string spectra_text(const Catalog& catalog,
                         std::span<const library::SpectrumOf> spectra,
                         size_t width) {
  Table table(
      {Align::kLeft, Align::kLeft, Align::kRight, Align::kRight, Align::kRight},
      2);
  table.row(
      {"matrix", "shape", "spectral norm", "effective rank", "stable rank"});
  std::string left;
  for (const library::SpectrumOf& one : spectra) {
    const Tensor& tensor = catalog.tensors[one.tensor];
    const std::string name = text::printable(tensor.name);
    if (!one.spectrum) {
      left += fmt::format("  left out: {}: {}\n", name, one.left_out);
      continue;
    }
    table.row({name, to_string(tensor.shape),
               fmt::format("{:.4g}", one.spectrum->norm),
               fmt::format("{:.1f}", one.spectrum->effective_rank),
               fmt::format("{:.1f}", one.spectrum->stable_rank)});
  }
  table.give_up({4, 1});
  return "\n" + styled("Spectra", Style::kBold) + "\n" + table.text(width) +
         folded(left, width);
}

}  // namespace ckpt::app
