// SPDX-License-Identifier: Apache-2.0
#include "api/salvage_structure.h"

#include <filesystem>

#include "api/salvage_files.h"
#include "ckpt/error.h"
#include "formats/salvage/metadata.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::library {

namespace fs = std::filesystem;

Manifest SalvageFiles::manifest_of_source() const {
  try {
    const std::string path = manifest_path(source_);
    if (!io::is_file(path)) return {};
    Manifest manifest = read_manifest(path);
    // These have no digest that something could be found by.
    std::erase_if(manifest.tensors, [](const auto& entry) {
      return !entry.second.unproven.empty();
    });
    return manifest;
  } catch (const Error& error) {
    if (error.code() == ExitCode::kIo) throw;
  }
  return {};
}

// What the digests prove is not a guess: another choice of items with the same
// digest has the same bytes.
void SalvageFiles::match_metadata(const Manifest& manifest) {
  for (auto at = unknown_.begin(); at != unknown_.end();) {
    const auto& [file, why] = *at;
    if (io::base_name(file) != ".metadata") {
      ++at;
      continue;
    }
    const std::string folder =
        shadow_.path(fs::path(file).parent_path().string());
    salvage::LostMetadata made;
    if (!manifest.tensors.empty() && io::is_directory(folder))
      made = salvage::match_items(folder, manifest);
    if (made.bytes.empty()) {
      report_.lost.push_back(
          {file,
           why + "; it alone has the names of the tensors, their shapes and "
                 "which part of them each item of the .distcp files is",
           false});
    } else {
      shadow_.write(file, made.bytes);
      links_.erase(file);
      note(file,
           fmt::format("{}; the digests of ckpt's manifest prove which items "
                       "make up {} tensors",
                       why, made.tensors),
           false);
      for (salvage::Note& item : made.nameless) {
        item.file = (fs::path(file).parent_path() / item.file).string();
        report_.lost.push_back(std::move(item));
      }
    }
    at = unknown_.erase(at);
  }
}

// What was inferred may serve to infer more.
void SalvageFiles::infer_arrays(const Manifest& manifest) {
  for (bool found = true; found;) {
    found = false;
    for (auto at = unknown_.begin(); at != unknown_.end();) {
      const fs::path folder = fs::path(at->first).parent_path();
      const auto entry = manifest.tensors.find(folder.filename().string());
      std::optional<Inferred> made;
      if (at->first.ends_with(".zarray"))
        made = infer_array(
            shadow_.path(folder.string()),
            facts_beside(shadow_.path(folder.parent_path().string())),
            entry == manifest.tensors.end() ? nullptr : &entry->second);
      if (!made) {
        ++at;
        continue;
      }
      shadow_.write(at->first, made->bytes);
      links_.erase(at->first);
      note(at->first,
           at->second + "; from the names and sizes of the chunks and " +
               made->from,
           true);
      at = unknown_.erase(at);
      found = true;
    }
  }
  for (const auto& [file, why] : unknown_)
    if (file.ends_with(".zarray"))
      report_.lost.push_back(
          {file,
           why + "; nothing that is left determines the dtype, the shape and "
                 "the grid of this array's chunks",
           false});
}

// Training values are stored nowhere else. Writes what tensors and grids of
// objects say about the model and its ranks, so that the rest can be loaded.
void SalvageFiles::infer_common_part() {
  const std::string folder = folder_without_common();
  std::string file;
  if (!folder.empty())
    file = (fs::path(folder == "." ? "" : folder) / "common.pt").string();
  const auto known = unknown_.find(file);
  const std::string why =
      known == unknown_.end() ? "it is missing" : known->second;
  for (const auto& [name, problem] : unknown_)
    if (name.ends_with("common.pt") && name != file)
      report_.lost.push_back({name, problem, false});
  if (file.empty()) return;
  shadow_.write(file, empty_common());
  links_.erase(file);
  try {
    const std::string path = shadow_.path(folder == "." ? "" : folder);
    const Inferred made =
        infer_common(formats::open(path, options_.from, options_.read));
    shadow_.write(file, made.bytes);
    note(file, why + "; made of what is left: " + made.from, true);
    report_.lost.push_back(
        {file,
         "all other args, the optimizer's param_groups and numbers of samples "
         "are stored nowhere else",
         false});
  } catch (const Error& error) {
    if (error.code() == ExitCode::kIo) throw;
    shadow_.remove(file);
    report_.lost.push_back({file, why, false});
  }
}

}  // namespace ckpt::library
