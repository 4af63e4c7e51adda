// SPDX-License-Identifier: Apache-2.0
#include "app/print/diff_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <tuple>

#include "api/check/facts.h"
#include "app/print/console.h"
#include "app/print/facts.h"
#include "app/print/pattern.h"
#include "app/print/table.h"
#include "lib/text/format.h"

namespace ckpt::app {
namespace {

using text::printable;

// The differences shown in one line.
struct Group {
  std::vector<std::string_view> names;
  const Difference* first = nullptr;
  std::optional<Distance> sum;

  void add(const Difference& difference) {
    if (names.empty()) first = &difference;
    names.push_back(difference.tensor);
    if (!difference.distance) return;
    if (!sum) sum = Distance{};
    *sum += *difference.distance;
  }
  // Nothing but their numbers is known of them.
  bool plain() const {
    return sum && first->kind == "values" && first->why.empty();
  }
};

// What differences in one line have in common: everything said about them,
// except the numbers of values that differ, which add up.
using Key = std::tuple<std::string, std::string, std::string, std::string>;

Key key_of(const Difference& difference) {
  return {difference.kind, pattern_of(difference.tensor),
          difference.kind == "values" && difference.distance
              ? difference.why
              : difference.message,
          difference.file};
}

std::vector<Group> groups_of(const std::vector<Difference>& differences) {
  std::vector<Group> groups;
  std::map<Key, size_t> index;
  for (const Difference& difference : differences) {
    const auto [at, fresh] =
        index.try_emplace(key_of(difference), groups.size());
    if (fresh) groups.emplace_back();
    groups[at->second].add(difference);
  }
  // A pattern's distance is that of all its tensors together.
  std::ranges::stable_sort(groups, [](const Group& one, const Group& other) {
    if (!one.sum || !other.sum) return !one.sum && other.sum;
    return relative_l2(*one.sum) > relative_l2(*other.sum);
  });
  return groups;
}

std::string mark_of(const Difference& difference) {
  if (difference.kind == "only_in_a") return styled("-", Style::kRed);
  if (difference.kind == "only_in_b") return styled("+", Style::kGreen);
  if (is_note(difference)) return styled("=", Style::kDim);
  return styled("!", Style::kYellow);
}

// "12.5%", but never 0 or 100 for what is neither.
std::string share_text(const Distance& sum) {
  if (sum.differing == sum.elements) return "all";
  const double share = 100 * static_cast<double>(sum.differing) /
                       static_cast<double>(std::max<uint64_t>(sum.elements, 1));
  return fmt::format("{:.3g}%", std::clamp(share, 0.001, 99.9));
}

std::string message_of(const Group& group) {
  const Difference& first = *group.first;
  if (first.kind == "only_in_a") return "only in A: " + first.message;
  if (first.kind == "only_in_b") return "only in B: " + first.message;
  std::string message =
      first.file.empty() ? first.message : first.file + ": " + first.message;
  if (group.sum)
    message += fmt::format(" (relative L2 {:.3g}, {} by at most {:.3g})",
                           relative_l2(*group.sum), share_text(*group.sum),
                           group.sum->max_abs);
  return message;
}

// A line is continued on the next one at a space or a name's dot.
std::string folded_line(std::string line, size_t width) {
  constexpr size_t kMark = 1;  // what precedes the line
  if (width <= 20 || line.size() + kMark <= width) return line;
  const size_t begin = line.find_first_not_of(' ');
  size_t end = line.rfind(' ', width - kMark), next = end + 1;
  if (end == line.npos || end <= begin) {  // a name: after one of its dots
    end = next = line.find_last_of("./", width - kMark - 1) + 1;
    if (end <= begin) return line;
  }
  return line.substr(0, end) + "\n " +
         folded_line("   " + line.substr(next), width);
}

}  // namespace

std::vector<PatternDistance> pattern_distances(
    const std::vector<Difference>& differences) {
  std::map<std::string, PatternDistance> by_name;
  for (const Difference& difference : differences) {
    if (!difference.distance) continue;
    PatternDistance& row = by_name[pattern_of(difference.tensor)];
    ++row.tensors;
    row.sum += *difference.distance;
  }
  std::vector<PatternDistance> rows;
  for (auto& [name, row] : by_name) {
    rows.push_back(std::move(row));
    rows.back().name = name;
  }
  std::ranges::stable_sort(
      rows, std::ranges::greater(),
      [](const PatternDistance& row) { return relative_l2(row.sum); });
  return rows;
}

std::string differences_text(const std::vector<Difference>& differences,
                             const std::vector<families::FactDifference>& facts,
                             size_t width) {
  std::string text;
  for (const families::FactDifference& fact : facts)
    text += styled("!", Style::kYellow) +
            folded_line(printable(" fact " + fact.name + ": " +
                                  library::fact_text(fact)),
                        width) +
            "\n";
  Table values({Align::kLeft, Align::kLeft, Align::kRight, Align::kRight,
                Align::kRight, Align::kRight, Align::kRight, Align::kRight});
  values.shrink_column(1);
  values.give_up({7, 6, 2});
  Table others({Align::kLeft, Align::kLeft, Align::kRight, Align::kLeft});
  bool any = false;
  std::string narrow;  // `others`, each with its sentence below
  for (const Group& group : groups_of(differences)) {
    const std::string name = printable(spelled_name(group.names));
    const std::string count =
        group.names.size() == 1 ? "" : "×" + grouped(group.names.size());
    if (!group.plain()) {
      const std::string message = printable(message_of(group));
      others.row({mark_of(*group.first), name, count, message});
      const std::string head = " " + name + (count.empty() ? "" : "  " + count);
      const bool fits = 3 + display_width(head + message) <= width;
      narrow += mark_of(*group.first) + folded_line(head, width) +
                (fits ? "  " + message + "\n"
                      : "\n " + folded_line("   " + message, width) + "\n");
      continue;
    }
    if (!any)
      values.row({"", "values", "", "relative L2", "differ", "at most", "RMS",
                  "cosine"});
    any = true;
    values.row({mark_of(*group.first), name, count,
                fmt::format("{:.3g}", relative_l2(*group.sum)),
                fmt::format("{} of {}", share_text(*group.sum),
                            si_count(group.sum->elements)),
                fmt::format("{:.3g}", group.sum->max_abs),
                fmt::format("{:.3g}", rms(*group.sum)),
                fmt::format("{:.6g}", cosine(*group.sum))});
  }
  const bool wide = width == 0 || others.width() <= width;
  return text + (wide ? others.text(0) : narrow) + values.text(width);
}

}  // namespace ckpt::app
