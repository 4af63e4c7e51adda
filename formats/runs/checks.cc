// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/checks.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "ckpt/error.h"
#include "formats/runs/pattern.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::runs {

using text::printable;
using Severity = Problem::Severity;

void check_finished(const Source& source, const std::string& step) {
  constexpr std::string_view kIndex = "/.metadata";
  if (!source.file.ends_with(kIndex)) return;
  const std::string folder =
      source.file.substr(0, source.file.size() - kIndex.size() + 1);
  for (const Name& name : names_like(step, folder)) {
    const std::string path = io::join(step, name.path);
    if (io::is_file(io::join(path, ".metadata"))) continue;
    throw input_error({path, {}},
                      "holds no .metadata, which is written last: the save "
                      "did not finish")
        .with_hint(
            "use an earlier step; if this one was copied, look "
            "whether names that begin with a dot were left out");
  }
}

void check_mixed(const std::string& folder) {
  const auto there = [&](const char* name) {
    return io::is_file(io::join(folder, name));
  };
  const char* names[] = {"model.safetensors", "model.safetensors.index.json",
                         "pytorch_model.bin", "pytorch_model.bin.index.json"};
  const bool safe = there(names[0]) || there(names[1]);
  const bool bin = there(names[2]) || there(names[3]);
  if (!safe || !bin) return;
  throw input_error({folder, {}}, "holds {} and {}: two models in one step",
                    there(names[0]) ? names[0] : names[1],
                    there(names[2]) ? names[2] : names[3])
      .with_hint(
          "one of them is of an earlier save; move it away, or read one with "
          "--trainer none --from safetensors (or torch)");
}

void check_together(const Trainer& trainer, const std::string& folder,
                    const Source* optimizer, Catalog& catalog) {
  if (trainer.optimizers.empty()) return;
  const auto damage = [&](const std::string& path, std::string message) {
    catalog.problems.push_back(
        {Severity::kDamage, "missing_part", path, {}, std::move(message)});
  };
  const bool inside = std::ranges::any_of(
      catalog.tensors,
      [](const Tensor& tensor) { return tensor.kind == Kind::optim; });
  for (const Part& part : trainer.parts) {
    if (part.with != "optimizer") continue;
    const auto names = names_like(folder, part.file);
    if (!names.empty() && !optimizer && !inside)
      damage(folder,
             fmt::format("{} is there and no optimizer ({}), which is written "
                         "together with it",
                         printable(names[0].path),
                         trainer.optimizers.back().file));
    // Who loads the two asks for both, and goes on without either.
    if (names.empty() && optimizer)
      damage(io::join(folder, part.file),
             fmt::format("is missing; it is written together with {}, which "
                         "is not loaded without it",
                         optimizer->file));
  }
}

void check_grid(const Part& part, const std::string& folder,
                const std::vector<Name>& names, Catalog& catalog) {
  if (!has(part.file, "T")) return;
  uint64_t wanted = 1;
  if (names.empty()) {
    if (!io::is_directory(io::join(folder, io::parent(part.file)))) return;
  } else {
    for (const auto& [key, size] : names[0].numbers)
      if (key[0] >= 'A' && key[0] <= 'Z')
        wanted = checked_mul(wanted, size).value_or(UINT64_MAX);
  }
  if (names.size() == wanted) return;
  catalog.problems.push_back({Severity::kDamage,
                              "missing_rank",
                              io::join(folder, io::parent(part.file)),
                              {},
                              fmt::format("holds {} files {}, of {} ranks",
                                          names.size(), part.file, wanted)});
}

void check_ranks(const Part& part, const std::string& folder,
                 const std::vector<Name>& names, Catalog& catalog) {
  if (!has(part.file, "r") || names.empty()) return;
  std::set<uint64_t> have;
  Numbers numbers = names[0].numbers;
  for (const Name& name : names) have.insert(name.numbers.at("r"));
  const uint64_t wanted = std::max<uint64_t>(
      *have.rbegin() + 1, part.part == "rng" ? catalog.topology.dp : 0);
  if (have.size() >= wanted) return;
  for (uint64_t r = 0; r < wanted; ++r) {
    if (have.contains(r)) continue;
    numbers["r"] = r;
    catalog.problems.push_back(
        {Severity::kDamage,
         "missing_rank",
         io::join(folder, fill(part.file, numbers)),
         {},
         fmt::format("is missing: {} of {} ranks are there", have.size(),
                     wanted)});
    return;  // the first one is enough
  }
}

}  // namespace ckpt::runs
