// SPDX-License-Identifier: Apache-2.0
#include "app/print/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>

#include "api/edit/layer_place.h"
#include "app/options/written.h"
#include "app/print/html_page.h"
#include "app/print/table.h"
#include "lib/text/format.h"

namespace ckpt::app {
namespace {

// Columns of the picture, in its units, which are pixels at its own size.
constexpr double kHead = 56, kRow = 22, kWidth = 1040;
constexpr double kName = 12, kBar = 230, kBarWidth = 230, kNumber = 470;
constexpr double kCounts = 550, kCount = 8, kSays = 820;
constexpr double kFont = 12;
constexpr size_t kLongest = 30;  // columns of a name
constexpr size_t kLongestHeading = 130;
constexpr size_t kMostPlotted = 2000;

template <class... Args>
void draw(std::string& out, fmt::format_string<Args...> text, Args&&... args) {
  fmt::format_to(std::back_inserter(out), text, std::forward<Args>(args)...);
}

void draw_text(std::string& out, double x, double y, std::string_view text,
               std::string_view fill = "currentColor") {
  draw(out, "<text x=\"{}\" y=\"{}\" fill=\"{}\">{}</text>\n", x, y, fill,
       escaped(text));
}

// How far the largest element is from the usual one.
double peak(const reshard::Stats& stats) {
  return std::max(std::abs(stats.min), std::abs(stats.max)) /
         reshard::root_mean_square(stats);
}

std::string says(const reshard::Stats& stats) {
  std::string text;
  if (stats.nans != 0) text += grouped(stats.nans) + " NaN ";
  if (stats.infs != 0) text += grouped(stats.infs) + " inf ";
  if (stats.numbers() != 0 && reshard::norm(stats) > 0)
    text += fmt::format("max {:.3g} × rms", peak(stats));
  return text;
}

void draw_row(std::string& out, const NamedStats& row, double y, double most) {
  const reshard::Stats& stats = row.stats;
  const double line = y + kRow - 7, norm = reshard::norm(stats);
  draw(out, "<g><title>{}</title>\n", escaped(page_name(row.name)));
  draw_text(out, kName, line, cut_middle(row.name, kLongest));
  // One that is no number has no bar.
  const double share = most > 0 && norm <= most ? norm / most : 0;
  draw(out,
       "<rect x=\"{}\" y=\"{}\" width=\"{:.2f}\" height=\"{}\" "
       "fill=\"#1c7462\"/>\n",
       kBar, y + 4, share * kBarWidth, kRow - 8);
  draw_text(out, kNumber, line,
            stats.numbers() != 0 ? fmt::format("{:.4g}", norm) : "-");
  const uint64_t highest = *std::ranges::max_element(stats.magnitudes);
  for (size_t i = 0; i < stats.magnitudes.size(); ++i) {
    if (stats.magnitudes[i] == 0) continue;
    const double height =
        std::max(1.0, static_cast<double>(stats.magnitudes[i]) /
                          static_cast<double>(highest) * (kRow - 5));
    draw(out,
         "<rect x=\"{}\" y=\"{:.2f}\" width=\"{}\" height=\"{:.2f}\" "
         "fill=\"#2a68ac\"/>\n",
         kCounts + static_cast<double>(i) * kCount, y + kRow - 2 - height,
         kCount - 1, height);
  }
  draw_text(out, kSays, line, says(stats),
            stats.finite() ? "currentColor" : "#c2261a");
  out += "</g>\n";
}

}  // namespace

std::vector<NamedStats> stats_by_layer(const Catalog& catalog,
                                       std::span<const reshard::Stats> stats) {
  std::map<uint32_t, reshard::Stats> layers;
  reshard::Stats others;
  for (size_t i = 0; i < catalog.tensors.size(); ++i) {
    const Tensor& tensor = catalog.tensors[i];
    if (tensor.kind != Kind::model) continue;
    const auto layer = library::layer_of(tensor);
    if (library::stacked_layers(catalog, tensor) > 1) return {};
    (layer ? layers[*layer] : others) += stats[i];
  }
  std::vector<NamedStats> rows;
  rows.reserve(layers.size() + 1);
  for (const auto& [layer, sum] : layers)
    rows.push_back({std::to_string(layer), sum});
  if (others.count != 0) rows.push_back({"other", others});
  return rows;
}

std::vector<NamedStats> plotted_stats(const Catalog& catalog,
                                      std::span<const reshard::Stats> stats) {
  std::vector<NamedStats> rows = stats_by_layer(catalog, stats);
  if (rows.size() > 2) {
    for (NamedStats& row : rows)
      if (row.name != "other") row.name = "layer " + row.name;
    return rows;
  }
  rows.clear();
  for (size_t i = 0; i < catalog.tensors.size(); ++i)
    if (catalog.tensors[i].kind != Kind::optim && stats[i].count != 0)
      rows.push_back({text::printable(catalog.tensors[i].name), stats[i]});
  return rows;
}

std::string plot_svg(std::string_view heading, std::vector<NamedStats> rows,
                     bool alone) {
  std::stable_partition(rows.begin(), rows.end(), [](const NamedStats& row) {
    return !row.stats.finite();
  });
  const size_t left = rows.size() - std::min(rows.size(), kMostPlotted);
  rows.resize(rows.size() - left);
  double most = 0;
  for (const NamedStats& row : rows)
    if (const double norm = reshard::norm(row.stats); std::isfinite(norm))
      most = std::max(most, norm);
  const double height =
      kHead + static_cast<double>(rows.size() + (left != 0)) * kRow + 8;
  std::string out;
  draw(out,
       "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {} {}\" "
       "width=\"{}\" role=\"img\" font-family=\"sans-serif\" "
       "font-size=\"{}\">\n{} {}</desc>\n<title>{}</title>\n",
       kWidth, height, kWidth, kFont, kPlotMark,
       "the norm of each row, and its elements by magnitude", escaped(heading));
  if (alone)
    draw(out, "<rect width=\"{}\" height=\"{}\" fill=\"#fff\"/>\n", kWidth,
         height);
  draw_text(out, kName, 20, cut_middle(heading, kLongestHeading));
  draw_text(out, kBar, kHead - 8, "norm");
  for (int exponent = -48; exponent <= 16; exponent += 16)
    draw_text(
        out,
        kCounts + (exponent - reshard::Stats::kLeastExponent) / 2.0 * kCount,
        kHead - 8, fmt::format("2^{}", exponent));
  double y = kHead;
  for (const NamedStats& row : rows) {
    draw_row(out, row, y, most);
    y += kRow;
  }
  if (left != 0)
    draw_text(out, kName, y + kRow - 7,
              fmt::format("and {} more", grouped(left)));
  return out += "</svg>\n";
}

}  // namespace ckpt::app
