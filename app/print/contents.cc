// SPDX-License-Identifier: Apache-2.0
#include "app/print/contents.h"

#include <fmt/format.h>

#include "app/print/console.h"
#include "app/print/table.h"
#include "lib/text/format.h"

namespace ckpt::app {
namespace {

void add_stats(const reshard::Stats& stats, std::vector<std::string>& cells) {
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
  cells.push_back(grouped(stats.nans));
  cells.push_back(grouped(stats.infs));
}

}  // namespace

std::string contents_text(const Catalog& catalog,
                          const library::Reading& reading, size_t width) {
  const bool digests = !reading.digests.empty();
  const bool stats = !reading.stats.empty();
  std::vector<Align> columns{Align::kLeft};
  std::vector<std::string> heads{"tensor"};
  if (digests) {
    columns.push_back(Align::kLeft);
    heads.push_back("digest");
  }
  if (stats)
    for (const char* head :
         {"min", "max", "mean", "std", "norm", "zeros", "NaN", "inf"}) {
      columns.push_back(Align::kRight);
      heads.push_back(head);
    }
  Table table(columns, 2);
  // Norm and zeros, then the spread, are the first to go.
  if (stats) {
    const size_t first = columns.size() - 8;
    table.give_up({first + 5, first + 4, first + 3});
  }
  table.row(heads);
  for (size_t i = 0; i < catalog.tensors.size(); ++i) {
    std::vector<std::string> cells{text::printable(catalog.tensors[i].name)};
    if (digests) cells.push_back(reading.digests[i].hex());
    if (stats) add_stats(reading.stats[i], cells);
    table.row(std::move(cells));
  }
  return "\n" + styled("Contents", Style::kBold) + "\n" + table.text(width);
}

}  // namespace ckpt::app
