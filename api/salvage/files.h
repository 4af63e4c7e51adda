// SPDX-License-Identifier: Apache-2.0
// The files of a damaged checkpoint, each repaired by itself as far as
// possible, in a Shadow.
#pragma once

#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "api/salvage/salvage.h"
#include "api/salvage/shadow.h"
#include "lib/manifest.h"

namespace ckpt::library {

class SalvageFiles {
 public:
  SalvageFiles(std::string source, const std::string& target,
               const SalvageOptions& options, Salvaged& report);

  // Repairs, links, or gives up each file.
  void run();

  // The path for the format's reader.
  std::string path() const { return shadow_.path(single_); }
  std::string root() const { return shadow_.path(""); }
  // The name in the checkpoint of a file in the shadow.
  std::string name_of(const std::string& shadow_path) const;
  Shadow& shadow() { return shadow_; }
  const Shadow& shadow() const { return shadow_; }
  bool is_single() const { return !single_.empty(); }

  // Lost bytes of each file, and where its checksums are.
  std::map<std::string, std::vector<salvage::Range>> gone;
  std::map<std::string, std::vector<LateCrc>> crcs;

  // The relative folder that has Megatron's items but not its common.pt; or "".
  std::string folder_without_common() const;

  // Opens a file of the shadow for writing; a link becomes a copy first.
  io::Handle edit(const std::string& file);
  // What a file in the shadow links to, or the file itself.
  std::string origin(const std::string& file) const;
  // The other step, opened; null if there is none. Throws if it is damaged.
  Catalog* like();

 private:
  std::string source_of(const std::string& file) const;
  std::string like_of(const std::string& file) const;  // "" if not there
  void make_directories();
  void repair(const std::string& file);
  bool repair_contents(const std::string& file);
  void take(const std::string& file, const salvage::Repair& repair);
  void give_up(const std::string& file, const std::string& why);
  void give_up_others(const std::string& file, const std::string& why);
  void check_like(const std::set<std::string>& others) const;
  void find_missing();
  bool take_unrenamed(const std::string& file, const std::string& why);
  void take_twins();
  void find_lost_configuration();
  void find_lost_structure();
  // structure.cc
  Manifest manifest_of_source() const;  // empty if there is none to be read
  void match_metadata(const Manifest& manifest);
  void infer_arrays(const Manifest& manifest);
  void infer_common_part();
  bool has_common_item(const std::string& folder) const;
  // indexes.cc
  void check_indexes();
  bool rebuild_index(const std::string& file);
  void complete_index(const std::string& file);
  void index_sets();
  void list_missing(const std::string& folder,
                    const std::vector<std::string>& shards);
  void check_layers(const std::string& index);
  void lose(const std::string& file, std::string what);
  // files.cc
  void check_items();
  void check_items(const std::string& metadata);
  void note(const std::string& file, std::string what, bool inferred);

  const std::string source_;
  const SalvageOptions& options_;
  Salvaged& report_;
  Shadow shadow_;
  std::string single_;              // the name, if the source is a file
  std::vector<std::string> names_;  // in the source
  std::map<std::string, std::string> links_;
  std::unique_ptr<Catalog> like_;
  std::map<std::string, std::string> broken_indexes_;  // and why
  // Files that the rest may determine, and what is wrong with them.
  std::map<std::string, std::string> unknown_;
};

// Regular files below a directory, and links to nothing, relative, sorted; not
// ckpt's manifest.
std::vector<std::string> files_below(const std::string& directory);

}  // namespace ckpt::library
