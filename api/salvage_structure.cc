// SPDX-License-Identifier: Apache-2.0
#include "api/salvage_structure.h"

#include <filesystem>

#include "api/salvage_files.h"
#include "ckpt/error.h"
#include "lib/io/file.h"

namespace ckpt::library {

namespace fs = std::filesystem;

// What was inferred may be what another one is inferred from.
void SalvageFiles::infer_arrays() {
  Manifest manifest;
  try {
    const std::string path = manifest_path(source_);
    if (io::is_file(path)) manifest = read_manifest(path);
  } catch (const Error& error) {
    if (error.code() == ExitCode::kIo) throw;
  }
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

// Values of training stand nowhere else. What tensors and grids of objects say
// of the model and its ranks is written, so that the rest can be loaded.
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
         "stand nowhere else",
         false});
  } catch (const Error& error) {
    if (error.code() == ExitCode::kIo) throw;
    shadow_.remove(file);
    report_.lost.push_back({file, why, false});
  }
}

}  // namespace ckpt::library
