// SPDX-License-Identifier: Apache-2.0
// Indexes over safetensors files: rebuilt from the headers of their own shards
// or, if readable, compared with them. Files beside the set (another precision,
// an adapter) are not part of it.
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "api/salvage/files.h"
#include "ckpt/error.h"
#include "containers/hf/index.h"
#include "containers/hf/numbered.h"
#include "containers/safetensors/header.h"
#include "lib/io/file.h"
#include "lib/text/json.h"
#include "lib/text/number.h"
#include "models/family.h"

namespace ckpt::library {
namespace {

namespace fs = std::filesystem;
using IndexJson = nlohmann::json;

constexpr std::string_view kSafetensors = ".safetensors";
constexpr uint64_t kLongIndex = uint64_t{1} << 30;

// model.safetensors.index.fp16.json -> model.fp16
std::string stem_of(const std::string& index) {
  const std::string name = io::base_name(index);
  constexpr std::string_view kIndex = ".safetensors.index", kJson = ".json";
  const size_t at = name.find(kIndex);
  if (at == name.npos) return {};
  const size_t variant = at + kIndex.size();
  return name.substr(0, at) +
         name.substr(variant, name.size() - kJson.size() - variant);
}

// The numbered files called `stem`, or STEM.safetensors. Of two sets, the whole
// one or else the larger: the other may be left from an older save.
std::vector<std::string> own_shards(const std::vector<std::string>& names,
                                    const std::string& stem) {
  std::map<uint32_t, std::vector<std::string>> sets;
  for (const std::string& name :
       formats::numbered_set(names, stem, kSafetensors))
    sets[formats::parse_numbered(name)->count].push_back(name);
  for (const auto& [count, set] : sets)
    if (set.size() == count) return set;
  if (!sets.empty()) return sets.rbegin()->second;
  const std::string single = stem + std::string(kSafetensors);
  if (std::ranges::count(names, single)) return {single};
  return {};
}

std::vector<std::string> names_in(const std::vector<std::string>& files,
                                  const fs::path& folder) {
  std::vector<std::string> names;
  for (const std::string& file : files)
    if (fs::path(file).parent_path() == folder)
      names.push_back(io::base_name(file));
  return names;
}

// Layer numbers in the names of tensors: model.layers.3.mlp…
std::set<uint64_t> layers_in(const IndexJson& weight_map) {
  std::set<uint64_t> found;
  for (const auto& [tensor, shard] : weight_map.items())
    for (const std::string_view word : {"layers.", "h.", "blocks.", "block."}) {
      const size_t at = tensor.find(word);
      if (at == tensor.npos || (at > 0 && tensor[at - 1] != '.')) continue;
      const size_t begin = at + word.size();
      const auto number =
          text::number<uint64_t>(std::string_view(tensor).substr(
              begin, tensor.find('.', begin) - begin));
      if (number) found.insert(*number);
    }
  return found;
}

// What config.json says about a model of a known family.
uint64_t layers_of(const std::string& config) {
  if (!io::is_file(config)) return 0;
  try {
    const IndexJson root =
        text::parse_python_json(io::read_file(config, kLongIndex), config);
    if (!families::Family::for_config(root)) return 0;
    const IndexJson& text =
        root.contains("text_config") ? root["text_config"] : root;
    for (const char* key : {"num_hidden_layers", "n_layer", "num_layers"})
      if (text.is_object() && text.contains(key) &&
          text[key].is_number_unsigned())
        return text[key].get<uint64_t>();
  } catch (const Error& error) {
    if (error.code() == ExitCode::kIo) throw;
  }
  return 0;
}

struct Shard {
  std::string name;  // as the index has it
  std::map<std::string, uint64_t> bytes;
};

// An index and what its shards hold.
class Completion {
 public:
  Completion(IndexJson& root, const std::vector<Shard>& shards)
      : map_(root["weight_map"]) {
    for (const Shard& shard : shards)
      for (const auto& [tensor, size] : shard.bytes)
        holders_[tensor].emplace(shard.name, size);
  }

  // Removes tensors that no shard holds, and returns them with the shard.
  std::vector<std::pair<std::string, std::string>> apply() {
    std::vector<std::pair<std::string, std::string>> lost;
    for (const auto& [tensor, holders] : holders_) {
      const std::string first = holders.begin()->first;
      if (!map_.contains(tensor)) {
        map_[tensor] = first;
        ++added;
      } else if (!holders.contains(map_[tensor].get<std::string>())) {
        map_[tensor] = first;
        ++moved;
      }
      bytes += holders.at(map_[tensor].get<std::string>());
    }
    for (const auto& [tensor, shard] : map_.items())
      if (!holders_.contains(tensor))
        lost.emplace_back(tensor, shard.get<std::string>());
    for (const auto& [tensor, shard] : lost) map_.erase(tensor);
    return lost;
  }

  uint64_t added = 0, moved = 0, bytes = 0;

 private:
  IndexJson& map_;
  std::map<std::string, std::map<std::string, uint64_t>> holders_;
};

std::string index_text(const IndexJson& root, uint64_t bytes) {
  std::vector<formats::IndexEntry> entries;
  const IndexJson& map = root["weight_map"];
  for (const auto& item : map.items())
    entries.push_back({item.key(), item.value().get_ref<const std::string&>()});
  IndexJson metadata = root.value("metadata", IndexJson::object());
  if (!metadata.is_object()) metadata = IndexJson::object();
  metadata.erase("total_size");
  return formats::write_index(entries, bytes, std::move(metadata));
}

bool is_readable(const IndexJson& root) {
  if (!root.is_object() || !root.contains("weight_map") ||
      !root["weight_map"].is_object())
    return false;
  return std::ranges::all_of(root["weight_map"], [](const IndexJson& shard) {
    return shard.is_string();
  });
}

}  // namespace

void SalvageFiles::lose(const std::string& file, std::string what) {
  report_.lost.push_back({file, std::move(what), false});
}

// A set says how many files it had. Nothing tells what was in the missing ones.
void SalvageFiles::list_missing(const std::string& folder,
                                const std::vector<std::string>& shards) {
  constexpr uint32_t kMost = 1000;
  std::map<std::string, formats::NumberedName> sets;
  std::map<std::string, std::set<uint32_t>> numbers;
  for (const std::string& name : shards) {
    const auto numbered = formats::parse_numbered(name);
    if (!numbered || name.find('/') != name.npos) continue;
    const std::string set =
        fmt::format("{}/{}", numbered->stem, numbered->count);
    sets.emplace(set, *numbered);
    numbers[set].insert(numbered->number);
  }
  for (const auto& [set, one] : sets) {
    const std::set<uint32_t>& there = numbers[set];
    const uint32_t first = *there.begin() == 0 ? 0 : 1;
    for (uint32_t i = first; i < first + std::min(one.count, kMost); ++i) {
      const std::string file =
          (fs::path(folder) /
           formats::numbered_name(one.stem, i, one.count, one.rest))
              .string();
      const bool told =
          std::ranges::count(report_.lost, file, &salvage::Note::file) != 0;
      if (!there.contains(i) && !told)
        lose(file, "it is missing, and nothing tells which tensors it held");
    }
  }
}

bool SalvageFiles::rebuild_index(const std::string& file) {
  const fs::path folder = fs::path(file).parent_path();
  const std::vector<std::string> shards =
      own_shards(names_in(shadow_.files(), folder), stem_of(file));
  if (shards.empty()) return false;
  shadow_.write(
      file, salvage::index_of_shards(shadow_.path(folder.string()), shards));
  links_.erase(file);
  list_missing(folder.string(), shards);
  check_layers(file);
  return true;
}

void SalvageFiles::check_layers(const std::string& index) {
  const fs::path folder = fs::path(index).parent_path();
  const uint64_t layers =
      layers_of(shadow_.path((folder / "config.json").string()));
  const auto root = text::parse_python_json(
      io::read_file(shadow_.path(index), kLongIndex), index);
  const std::set<uint64_t> there = layers_in(root["weight_map"]);
  if (there.empty()) return;
  std::vector<uint64_t> missing;
  for (uint64_t i = 0; i < layers && missing.size() < 8; ++i)
    if (!there.contains(i)) missing.push_back(i);
  if (!missing.empty())
    lose((folder / "config.json").string(),
         fmt::format("it says {} layers; no file holds tensors of layer {}",
                     layers, fmt::join(missing, ", ")));
}

// Lists and removes what an index names but no shard has. Adds what its shards
// have but it does not name.
void SalvageFiles::complete_index(const std::string& file) {
  auto root = text::parse_python_json(
      io::read_file(shadow_.path(file), kLongIndex), file);
  if (!is_readable(root)) return;
  const fs::path folder = fs::path(file).parent_path();
  const std::vector<std::string> names = names_in(shadow_.files(), folder);
  std::set<std::string> own;
  for (const IndexJson& shard : root["weight_map"]) own.insert(shard);
  for (const std::string& name : own_shards(names, stem_of(file)))
    if (formats::parse_numbered(name)) own.insert(name);
  std::vector<Shard> shards;
  std::vector<std::string> there;
  for (const std::string& name : own) {
    const std::string path = (folder / name).string();
    if (!std::ranges::binary_search(shadow_.files(), path)) continue;
    Shard& shard = shards.emplace_back(Shard{name, {}});
    for (const safetensors::Entry& entry :
         safetensors::read_header(io::Handle::open_read(shadow_.path(path)))
             .entries)
      shard.bytes[entry.name] = entry.end - entry.begin;
    there.push_back(name);
  }
  Completion completion(root, shards);
  const auto lost = completion.apply();
  for (const auto& [tensor, shard] : lost)
    lose((folder / shard).string(),
         "tensor " + tensor + ": only its name is known");
  list_missing(folder.string(), there);
  if (shards.empty() ||
      (!completion.added && !completion.moved && lost.empty()))
    return;
  shadow_.write(file, index_text(root, completion.bytes));
  links_.erase(file);
  if (!lost.empty())
    note(file,
         fmt::format("without {} tensors that no file holds", lost.size()),
         false);
  if (completion.added)
    note(file,
         fmt::format("with {} tensors of its shards that it did not name",
                     completion.added),
         false);
  if (completion.moved)
    note(file,
         fmt::format("{} tensors are in another shard than it said",
                     completion.moved),
         false);
}

// Gives shards without an index one.
void SalvageFiles::index_sets() {
  std::set<std::string> indexes;
  for (const std::string& file : shadow_.files()) {
    const std::string name = io::base_name(file);
    const auto numbered = formats::parse_numbered(name);
    // Neither DCP's shards (shard-00001-model-00001-of-…) nor nanotron's
    // (model_weight_pp-rank-0-of-1_tp-rank-0-of-2) have an index of their own.
    if (!numbered || numbered->rest != kSafetensors || numbered->count < 2 ||
        name.starts_with("shard-") ||
        name != formats::numbered_name(numbered->stem, numbered->number,
                                       numbered->count, numbered->rest))
      continue;
    const fs::path folder = fs::path(file).parent_path();
    indexes.insert(
        (folder / (numbered->stem + ".safetensors.index.json")).string());
  }
  for (const std::string& index : indexes) {
    const fs::path folder = fs::path(index).parent_path();
    const std::string model =
        (folder / "model.safetensors.index.json").string();
    // Another precision's set beside the model's own.
    if (index != model && indexes.contains(model)) continue;
    if (rebuild_index(index))
      note(index, "it is missing; rebuilt from the headers of the shards",
           false);
  }
}

void SalvageFiles::check_indexes() {
  bool any = false;
  for (const std::string& file : std::vector(shadow_.files())) {
    if (!formats::is_index_name(io::base_name(file), kSafetensors)) continue;
    any = true;
    complete_index(file);
  }
  for (const auto& [file, why] : broken_indexes_) {
    if (!rebuild_index(file)) {
      give_up_others(file, why);
      continue;
    }
    any = true;
    note(file, why + "; rebuilt from the headers of the shards", false);
  }
  if (!any) index_sets();
}

}  // namespace ckpt::library
