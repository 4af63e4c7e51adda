// SPDX-License-Identifier: Apache-2.0
#include "app/print/contents.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "api/edit/layer_place.h"
#include "app/print/console.h"
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

void add_stats(const reshard::Stats& stats, bool finite,
               std::vector<std::string>& cells) {
  const bool numbers = stats.count > stats.nans + stats.infs;
  const auto number = [&](double value) {
    return numbers ? fmt::format("{:.4g}", value) : std::string("-");
  };
  cells.push_back(number(stats.min));
  cells.push_back(number(stats.max));
  cells.push_back(numbers ? number(reshard::mean(stats)) : "-");
  cells.push_back(numbers ? number(reshard::deviation(stats)) : "-");
  cells.push_back(numbers ? number(reshard::norm(stats)) : "-");
  cells.push_back(grouped(stats.zeros));
  cells.push_back(finite ? "" : grouped(stats.nans));
  cells.push_back(finite ? "" : grouped(stats.infs));
  cells.push_back(magnitudes_text(stats));
}

// A table with its head, and `digests` columns between the name and the
// numbers.
Table stats_table(const char* first, size_t digests, bool finite) {
  std::vector<Align> columns(1 + digests, Align::kLeft);
  std::vector<std::string> heads{first};
  if (digests != 0) heads.emplace_back("digest");
  for (const char* head : {"min", "max", "mean", "std", "norm", "zeros",
                           finite ? "" : "NaN", finite ? "" : "inf"}) {
    columns.push_back(Align::kRight);
    heads.emplace_back(head);
  }
  columns.push_back(Align::kLeft);
  heads.emplace_back("magnitudes");
  Table table(columns, 2);
  // Names are cut before a number is given up. After that, the first to go are
  // magnitudes, zeros and norm, then the spread.
  constexpr size_t kName = 34;
  const size_t begin = 1 + digests;
  table.give_up({begin + 8, begin + 5, begin + 4, begin + 3});
  table.cut_names_first(kName);
  table.row(heads);
  return table;
}

// A row for each layer of the model's weights, and one for what is in no layer.
std::string layers_text(const Catalog& catalog, const library::Reading& reading,
                        bool finite, size_t width) {
  std::map<uint32_t, reshard::Stats> layers;
  reshard::Stats others;
  for (size_t i = 0; i < catalog.tensors.size(); ++i) {
    const Tensor& tensor = catalog.tensors[i];
    if (tensor.kind != Kind::model) continue;
    const auto layer = library::layer_of(tensor);
    // Many layers in one tensor: it has its own row above.
    if (library::stacked_layers(catalog, tensor) > 1) return "";
    (layer ? layers[*layer] : others) += reading.stats[i];
  }
  if (layers.size() < 2) return "";
  Table table = stats_table("layer", 0, finite);
  const auto row = [&](std::string head, const reshard::Stats& stats) {
    std::vector<std::string> cells{std::move(head)};
    add_stats(stats, finite, cells);
    table.row(std::move(cells));
  };
  for (const auto& [layer, stats] : layers) row(std::to_string(layer), stats);
  if (others.count != 0) row("other", others);
  return "\n" + styled("Layers of the model", Style::kBold) + "\n" +
         table.text(width);
}

}  // namespace

std::string contents_text(const Catalog& catalog,
                          const library::Reading& reading, size_t width) {
  const bool digests = !reading.digests.empty();
  const bool stats = !reading.stats.empty();
  const bool finite = stats && width != 0 && all_finite(reading);
  Table table({Align::kLeft, Align::kLeft}, 2);
  if (stats)
    table = stats_table("tensor", digests ? 1 : 0, finite);
  else
    table.row({"tensor", "digest"});
  for (size_t i = 0; i < catalog.tensors.size(); ++i) {
    std::vector<std::string> cells{text::printable(catalog.tensors[i].name)};
    if (digests) cells.push_back(reading.digests[i].hex());
    if (stats) add_stats(reading.stats[i], finite, cells);
    table.row(std::move(cells));
  }
  return "\n" + styled("Contents", Style::kBold) +
         (finite ? "  no NaN, no inf\n" : "\n") + table.text(width) +
         (stats ? layers_text(catalog, reading, finite, width) : "");
}

}  // namespace ckpt::app
