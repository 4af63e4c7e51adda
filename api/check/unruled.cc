// SPDX-License-Identifier: Apache-2.0
#include "api/check/unruled.h"

#include <fmt/format.h>

#include <set>
#include <string>
#include <string_view>
#include <unordered_set>
#include <utility>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "lib/unruled.h"
#include "reshard/prove/prove.h"

namespace ckpt::library {

void tell_unruled(Catalog& catalog, bool quick, const Engine& engine,
                  Report& report) {
  std::set<std::string> open;
  const auto tell = [&](const std::string& tensor, const std::string& why) {
    if (open.insert(tensor).second)
      report.problems.push_back(warning("unknown_cut", {catalog.path, tensor},
                                        "{}; {}", why, unruled_hint(tensor)));
  };
  if (quick)
    for (const Unruled& one : unruled_of(catalog))
      if (one.different != 1)
        tell(one.tensor->name,
             "no rule says how ranks share it: " + one.text());
  std::vector<Redundant> all;
  std::swap(catalog.redundant, all);
  for (const Redundant& one : all) {
    if (quick || !is_unruled(one) || open.contains(one.tensor.name)) continue;
    catalog.redundant.assign(1, one);
    reshard::RunOptions options;
    options.max_mem = engine.max_mem;
    report.bytes += reshard::redundant_bytes(catalog);
    try {
      reshard::prove_redundant(catalog, options);
    } catch (const Error& error) {
      if (error.code() != ExitCode::kUnfaithful) throw;
      tell(one.tensor.name, error.problem());
    }
  }
  std::swap(catalog.redundant, all);
  if (open.empty()) return;
  if (!report.open.empty()) report.open += "; ";
  report.open += fmt::format(
      "no rule says how ranks share {}{}, which may be slices", *open.begin(),
      open.size() > 1 ? fmt::format(" and {} more", open.size() - 1) : "");
}

void drop_slices(const Catalog& catalog, std::vector<Problem>& problems) {
  std::unordered_set<std::string_view> unruled;
  for (const Redundant& one : catalog.redundant)
    if (is_unruled(one)) unruled.insert(one.tensor.name);
  std::erase_if(problems, [&](const Problem& problem) {
    return problem.kind == "shape" && unruled.contains(problem.tensor);
  });
}

}  // namespace ckpt::library
