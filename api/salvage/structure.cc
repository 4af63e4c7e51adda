// SPDX-License-Identifier: Apache-2.0
#include "api/salvage/structure.h"

#include <algorithm>
#include <filesystem>

#include "api/salvage/files.h"
#include "ckpt/error.h"
#include "formats/megatron/state/common.h"
#include "formats/salvage/metadata.h"
#include "formats/salvage/zero.h"
#include "lib/io/file.h"
#include "lib/pickle/decode.h"
#include "lib/text/format.h"

namespace ckpt::library {

namespace fs = std::filesystem;

// Newer cores have the common part in an item. A common.pt would hide it.
bool SalvageFiles::has_common_item(const std::string& folder) const {
  if (folder.empty()) return false;
  try {
    const Catalog catalog =
        formats::open(shadow_.path(folder == "." ? "" : folder), options_.from,
                      options_.read);
    return std::ranges::any_of(catalog.objects, [&](const Object& object) {
      return megatron::is_common(catalog, object);
    });
  } catch (const Error& error) {
    if (error.code() == ExitCode::kIo) throw;
  }
  return false;
}

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

// A save that was killed before its last step has written all of its index,
// after everything that the index names.
bool SalvageFiles::take_unrenamed(const std::string& file,
                                  const std::string& why) {
  const std::string draft = file + ".tmp";
  if (io::base_name(file) != ".metadata" ||
      !std::ranges::binary_search(shadow_.files(), draft))
    return false;
  const std::string from = origin(draft);
  try {
    const io::Handle handle = io::Handle::open_read(from);
    pickle::decode(handle, 0, handle.size());
  } catch (const Error& error) {
    if (error.code() != ExitCode::kDamaged) throw;
    return false;
  }
  shadow_.remove(draft);
  links_.erase(draft);
  shadow_.link(file, from);
  links_[file] = from;
  note(file,
       why + "; .metadata.tmp is whole: the save ended before it was renamed",
       true);
  return true;
}

// Elements are in other files: these say which parameters they are of.
void SalvageFiles::take_twins() {
  for (const salvage::Twin& twin :
       salvage::lost_model_states(shadow_.path(""), shadow_.files())) {
    salvage::Repair made =
        salvage::archive_renamed(origin(twin.from), twin.file);
    made.notes.push_back({twin.file,
                          "it is missing; names, shapes and buffers are those "
                          "of " +
                              twin.from,
                          true});
    take(twin.file, made);
    std::erase_if(report_.lost, [&](const salvage::Note& lost) {
      return lost.file == twin.file;
    });
  }
}

// transformers writes both. Other readers say themselves what they lack.
void SalvageFiles::find_lost_configuration() {
  const auto has = [&](const char* name) {
    return std::ranges::binary_search(shadow_.files(), name);
  };
  const bool told = std::ranges::any_of(
      report_.lost,
      [](const salvage::Note& lost) { return lost.file == "config.json"; });
  if (has("generation_config.json") && !has("config.json") && !told)
    report_.lost.push_back({"config.json",
                            "it is missing; which model the tensors are, "
                            "nothing else says",
                            false});
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
  if (has_common_item(folder)) return;
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
