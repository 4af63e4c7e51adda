// SPDX-License-Identifier: Apache-2.0
#include "containers/torch/container.h"
#include "formats/fairseq2/extras.h"
#include "lib/io/file.h"

namespace ckpt::fairseq2 {
namespace {

using io::join;

void add_sidecar(Catalog& catalog, std::string name, const std::string& path) {
  const uint64_t size = io::Handle::open_read(path).size();
  catalog.sidecars.push_back({std::move(name), path, size});
}

// The files PREFIX<n>.pt of a directory of the step.
void add_files(const Location& location, const std::string& directory,
               const std::string& prefix, Catalog& catalog) {
  const std::string path = join(location.path, directory);
  if (!io::is_directory(path)) return;
  for (const std::string& name : io::list_directory(path)) {
    if (number_in(name, prefix, ".pt"))
      add_sidecar(catalog, join(directory, name), join(path, name));
  }
}

// The first process's values; the random states among them are tensors, which
// stay in the file.
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
  catalog.problems.push_back(
      {Problem::Severity::kNote, kind, path, "", message});
}

// Files of 0.3 and 0.4 that hold the rest of a training run.
void note_old_files(const Location& location, Catalog& catalog) {
  std::string names;
  for (const std::string& name : io::list_directory(location.path)) {
    if (name.ends_with(".pt") && !name.starts_with("model."))
      names += (names.empty() ? "" : ", ") + name;
  }
  if (names.empty()) return;
  catalog.problems.push_back(
      {Problem::Severity::kWarning, "old_training_state", location.path, "",
       "trainer and optimizer state of fairseq2 0.3 and 0.4 is not read: " +
           names});
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
  if (location.old) return note_old_files(location, catalog);
  if (location.level == Level::kModel) return;
  add_files(location, "trainer", "rank_", catalog);
  add_files(location, "data_reader", "dp_", catalog);
  add_trainer_objects(join(location.path, "trainer/rank_00.pt"), catalog,
                      options);
  if (const std::string hg = join(location.path, "hg"); io::is_directory(hg))
    note(catalog, "hg_export", hg,
         "an export for Hugging Face; convert makes another");
}

}  // namespace ckpt::fairseq2
