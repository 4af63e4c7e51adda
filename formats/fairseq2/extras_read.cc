// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "ckpt/note.h"
#include "containers/torch/container.h"
#include "formats/fairseq2/extras.h"
#include "formats/rank_holes.h"
#include "lib/io/file.h"

namespace ckpt::fairseq2 {
namespace {

using io::join;

void add_sidecar(Catalog& catalog, std::string name, const std::string& path) {
  const uint64_t size = io::Handle::open_read(path).size();
  catalog.sidecars.push_back({std::move(name), path, size});
}

// Adds the files PREFIX<n>.pt of one of the step's directories; returns their
// numbers. Nothing if the directory is absent.
std::optional<std::set<uint64_t>> add_files(const Location& location,
                                            const std::string& directory,
                                            const std::string& prefix,
                                            Catalog& catalog) {
  const std::string path = join(location.path, directory);
  if (!io::is_directory(path)) return std::nullopt;
  std::set<uint64_t> numbers;
  for (const std::string& name : io::list_directory(path)) {
    if (const auto number = number_in(name, prefix, ".pt")) {
      add_sidecar(catalog, join(directory, name), join(path, name));
      numbers.insert(*number);
    }
  }
  return numbers;
}

uint64_t end_of(const std::set<uint64_t>& numbers) {
  return numbers.empty() ? 0 : *numbers.rbegin() + 1;
}

// Each process has a trainer file, each data-parallel rank a data reader file.
// A resume needs them, so a missing one is found now. HSDP's replicas leave no
// trace except these files: the larger of the two counts is believed.
void add_rank_files(const Location& location, Catalog& catalog) {
  const auto trainer = add_files(location, "trainer", "rank_", catalog);
  const auto readers = add_files(location, "data_reader", "dp_", catalog);
  const Topology& grid = catalog.topology;
  const uint64_t model = uint64_t{grid.tp} * grid.pp;
  uint64_t dp = grid.dp;
  if (readers) dp = std::max(dp, end_of(*readers));
  if (trainer) dp = std::max(dp, (end_of(*trainer) + model - 1) / model);
  dp = (dp + grid.dp - 1) / grid.dp * grid.dp;
  const auto check = [&](const std::set<uint64_t>& have, uint64_t wanted,
                         const char* directory, const char* prefix) {
    formats::check_rank_files(
        have, wanted,
        [&](uint64_t rank) {
          return join(join(location.path, directory),
                      numbered(prefix, rank) + ".pt");
        },
        fmt::format("pp={} tp={} dp={}", grid.pp, grid.tp, dp), catalog);
  };
  if (trainer) check(*trainer, dp * model, "trainer", "rank_");
  if (readers) check(*readers, dp, "data_reader", "dp_");
}

// Adds the first process's values; the random states among them are tensors,
// which stay in the file.
void add_trainer_objects(const std::string& path, Catalog& catalog,
                         const formats::ReadOptions& options) {
  if (!io::is_file(path)) return;
  Catalog aside;
  const torch::Container file = torch::open_container(path, aside, options);
  torch::add_globals(catalog, file.globals);
  const pickle::Document& doc = *file.document;
  const auto pairs = doc.as_pairs(doc.root());
  if (!pairs) return;
  for (size_t i = 0; i < pairs->size(); i += 2) {
    const pickle::Id key = (*pairs)[i];
    if (doc.is(key, pickle::Type::kString))
      catalog.objects.push_back({"trainer." + std::string(doc.text(key)),
                                 file.document, (*pairs)[i + 1]});
  }
}

void note(Catalog& catalog, const char* kind, const std::string& path,
          const char* message) {
  catalog.problems.push_back(remark(kind, {path, {}}, "{}", message));
}

// rank_<dp>[.<tp>].pt and metadata[.<tp>].pt: if one tensor-parallel rank has
// one, so do the others.
void check_old_files(const Location& location, Catalog& catalog) {
  if (catalog.topology.tp == 1) return;
  std::map<std::string, std::set<uint64_t>> ranks;  // by what precedes ".<tp>"
  uint64_t processes = 0;
  for (const std::string& name : io::list_directory(location.path)) {
    const std::string stem = name.substr(0, name.rfind(".pt"));
    const size_t dot = stem.rfind('.');
    if (dot == stem.npos || !name.ends_with(".pt")) continue;
    const auto tp = number_in(stem.substr(dot), ".");
    if (!tp) continue;
    ranks[stem.substr(0, dot)].insert(*tp);
    if (const auto dp = number_in(stem.substr(0, dot), "rank_"))
      processes = std::max(processes, *dp + 1);
  }
  for (uint64_t dp = 0; dp < processes; ++dp)
    ranks["rank_" + std::to_string(dp)];
  for (const auto& entry : ranks)
    formats::check_rank_files(
        entry.second,
        std::max<uint64_t>(catalog.topology.tp, end_of(entry.second)),
        [&](uint64_t tp) {
          return join(location.path, fmt::format("{}.{}.pt", entry.first, tp));
        },
        fmt::format("tp={}", catalog.topology.tp), catalog);
}

// Notes the files of 0.3 and 0.4 that hold the rest of a training run.
void note_old_files(const Location& location, Catalog& catalog) {
  std::string names;
  for (const std::string& name : io::list_directory(location.path)) {
    if (name.ends_with(".pt") && !name.starts_with("model."))
      names += (names.empty() ? "" : ", ") + name;
  }
  if (names.empty()) return;
  catalog.problems.push_back(warning(
      "old_training_state", {location.path, {}},
      "trainer and optimizer state of fairseq2 0.3 and 0.4 is not read: {}",
      names));
}

}  // namespace

void read_extras(const Location& location, const std::string& model_yaml,
                 Catalog& catalog, const formats::ReadOptions& options) {
  if (!model_yaml.empty()) add_sidecar(catalog, "model.yaml", model_yaml);
  if (location.step && location.level != Level::kModel) {
    const std::string score =
        join("scores", "step_" + std::to_string(*location.step) + ".txt");
    const std::string path = join(io::parent(location.path), score);
    if (location.level == Level::kBase && io::is_file(path))
      add_sidecar(catalog, score, path);
  }
  if (location.old) {
    check_old_files(location, catalog);
    return note_old_files(location, catalog);
  }
  if (location.level == Level::kModel) return;
  add_rank_files(location, catalog);
  add_trainer_objects(join(location.path, "trainer/rank_00.pt"), catalog,
                      options);
  if (const std::string hg = join(location.path, "hg"); io::is_directory(hg))
    note(catalog, "hg_export", hg,
         "an export for Hugging Face; convert makes another");
}

}  // namespace ckpt::fairseq2
