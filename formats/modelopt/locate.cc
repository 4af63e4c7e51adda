// SPDX-License-Identifier: Apache-2.0
#include "formats/modelopt/locate.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>

#include "ckpt/error.h"
#include "containers/hf/numbered.h"
#include "formats/modelopt/config.h"
#include "formats/modelopt/modelopt.h"
#include "formats/modelopt/names.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::modelopt {
namespace {

using formats::Support;

constexpr std::string_view kTensors = ".safetensors";
constexpr std::string_view kPickle = ".pth";
constexpr std::string_view kOldFolder = "subblocks";

// FOLDER/NAME of all files with that ending in a folder.
std::vector<std::string> files_in(const std::string& directory,
                                  std::string_view folder,
                                  std::string_view ending) {
  std::vector<std::string> found;
  const std::string path = io::join(directory, folder);
  if (!io::is_directory(path)) return found;
  for (const std::string& name : io::list_directory(path))
    if (!name.starts_with('.') && name.ends_with(ending) &&
        io::is_file(io::join(path, name)))
      found.push_back(io::join(folder, name));
  return found;
}

std::string index_of(const std::string& directory, std::string_view suffix) {
  for (const std::string& name : io::list_directory(directory))
    if (!name.starts_with('.') && formats::is_index_name(name, suffix) &&
        name.ends_with(".index.json"))
      return name;
  return {};
}

// Each tensor's block and file in an index, to tell whether it was written for
// owners of blocks.
class Ownership {
 public:
  explicit Ownership(const formats::Index& index) {
    Catalog names;  // only to find the naming
    for (const formats::Index::Weight& weight : index.weights) {
      Tensor& tensor = names.tensors.emplace_back();
      tensor.name = weight.tensor;
    }
    const Naming& naming = naming_of(names);
    for (const formats::Index::Weight& weight : index.weights)
      add(naming.place(weight.tensor), weight.file);
  }

  bool shows() const {
    if (!whole_ || blocks_.empty() || !embedding_ || !norm_) return false;
    std::set<uint32_t> owners;
    for (const auto& [block, file] : blocks_) owners.insert(file);
    return owners.size() >= 2 && *embedding_ == blocks_.begin()->second &&
           *norm_ == blocks_.rbegin()->second;
  }

 private:
  void add(const Place& place, uint32_t file) {
    if (place.part == Part::kEmbedding) embedding_ = file;
    if (place.part == Part::kNorm) norm_ = file;
    if (place.part != Part::kBlock) return;
    const auto [known, first] = blocks_.emplace(place.block, file);
    if (!first && known->second != file) whole_ = false;
  }

  bool whole_ = true;
  std::map<uint32_t, uint32_t> blocks_;  // block -> file
  std::optional<uint32_t> embedding_, norm_;
};

// The peer's json.dumps ends with a brace; others end such an index with a
// newline.
bool ends_with_brace(const std::string& path) {
  const io::Handle file = io::Handle::open_read(path);
  return file.size() != 0 && file.read_string(file.size() - 1, 1) == "}";
}

Support supports_shards(const std::string& directory, const Files& files) {
  const formats::Index index = formats::read_index(directory, files.index);
  const bool numbered =
      !index.files.empty() && std::ranges::all_of(index.files, [](auto& name) {
        return formats::parse_numbered(name).has_value();
      });
  if (!numbered) return {false, "its index names no x-of-N files"};
  const auto config = read_config(io::join(directory, "config.json"));
  if (config && config->any_model)
    return {true, "config.json has block_configs"};
  if (!ends_with_brace(index.path) || !Ownership(index).shows())
    return {false, "no block_configs, and no files that own whole blocks"};
  return {true, "each file owns whole blocks"};
}

}  // namespace

Files locate(const std::string& directory) {
  Files files;
  const auto take = [&](Form form, std::string_view folder,
                        std::string_view ending) {
    files.names = files_in(directory, folder, ending);
    if (files.names.empty()) return false;
    files.form = form;
    files.folder = folder;
    return true;
  };
  if (io::is_file(io::join(directory, "model.safetensors"))) return files;
  const bool indexed = io::is_file(io::join(directory, kIndexName));
  if (take(Form::kPickledBlocks, kBlockFolder, kPickle) ||
      take(Form::kPickledBlocks, kOldFolder, kPickle))
    return files;
  if (take(Form::kBlockFiles, kBlockFolder, kTensors)) {
    if (indexed) files.index = kIndexName;
    return files;
  }
  files.index =
      indexed ? std::string(kIndexName) : index_of(directory, kPickle);
  if (!files.index.empty())
    files.form = indexed ? Form::kShards : Form::kPickledShards;
  return files;
}

Support supports(const std::string& path) {
  if (!io::is_directory(path)) return {false, "not a directory"};
  const Files files = locate(path);
  switch (files.form) {
    case Form::kNone:
      return {false, "no block files, no index of rank shards"};
    case Form::kPickledShards:
      return {true, "holds " + text::printable(files.index)};
    case Form::kBlockFiles:
    case Form::kPickledBlocks:
      return {true, "holds files of blocks in " + files.folder};
    case Form::kShards:
      break;
  }
  try {
    return supports_shards(path, files);
  } catch (const Error&) {
    return {false, "its index can't be read"};  // safetensors says why
  }
}

RankFiles rank_files(const std::string& directory,
                     const formats::Index& index) {
  RankFiles result;
  std::optional<formats::NumberedName> set;
  for (const std::string& name : index.files)
    if (!set) set = formats::parse_numbered(name);
  result.world = set ? set->count : static_cast<uint32_t>(index.files.size());
  const auto in_set = [&](const std::string& name) {
    const auto numbered = formats::parse_numbered(name);
    return set && numbered && numbered->stem == set->stem &&
           numbered->rest == set->rest && numbered->count == set->count;
  };
  const std::string_view ending = set ? set->rest : kTensors;
  uint64_t present = 0;
  for (const std::string& name : io::list_directory(directory)) {
    if (name.starts_with('.') || !name.ends_with(ending) ||
        !io::is_file(io::join(directory, name)))
      continue;
    present += in_set(name) ? 1 : 0;
    if (std::ranges::binary_search(index.files, name)) continue;
    (in_set(name) ? result.idle : result.unread).push_back(name);
  }
  // A hostile name may count to 2^32, so only some of the missing files are
  // named.
  constexpr size_t kNamed = 100;
  for (uint64_t rank = 1; set && present < set->count && rank <= set->count &&
                          result.missing.size() < kNamed;
       ++rank) {
    const std::string name =
        formats::numbered_name(set->stem, rank, set->count, set->rest);
    if (!io::is_file(io::join(directory, name))) result.missing.push_back(name);
  }
  return result;
}

bool is_lone_shard(const Catalog& source) {
  const std::string index = io::join(source.path, kIndexName);
  return source.files.size() == 1 &&
         io::base_name(source.files[0].path) ==
             "model-00001-of-00001.safetensors" &&
         io::is_file(index) && ends_with_brace(index);
}

}  // namespace ckpt::modelopt
