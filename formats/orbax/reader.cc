// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/ocdbt/database.h"
#include "containers/zarr/array.h"
#include "containers/zarr/chunks.h"
#include "formats/orbax/orbax.h"
#include "lib/io/ahead.h"
#include "lib/io/file.h"
#include "lib/io/listed.h"
#include "lib/lost_file.h"
#include "lib/pickle/json.h"
#include "lib/text/format.h"
#include "lib/text/json.h"
#include "lib/text/number.h"

namespace ckpt::orbax {
namespace {

using formats::Support;
using nlohmann::json;
using text::printable;

constexpr std::string_view kTree = "_METADATA";
constexpr std::string_view kStamp = "_CHECKPOINT_METADATA";
constexpr std::string_view kStrings = "_strings.json";
constexpr uint64_t kMostJson = uint64_t{256} << 20;
constexpr uint64_t kMostDescription = 1 << 20;

// A tree of arrays, in directories or in a database.
bool is_tree(const std::string& path) {
  return io::is_listed_directory(path) && io::is_file(io::join(path, kTree));
}

// A tree whose list of leaves is gone, as shown by what Orbax writes beside it.
bool lost_tree(const std::string& path) {
  return io::is_listed_directory(path) && io::is_file(io::join(path, kStamp)) &&
         !io::is_file(io::join(path, kTree)) &&
         (ocdbt::is_database(path) ||
          std::ranges::any_of(
              io::list_directory(path), [&](const std::string& name) {
                const std::string array = io::join(path, name);
                return io::is_listed_directory(array) &&
                       (zarr::is_array(array) || zarr::is_array3(array));
              }));
}

// The item of a step: "default" of StandardSave, or the only one.
std::string item_of(const std::string& step) {
  std::vector<std::string> items;
  for (const std::string& name : io::list_directory(step))
    if (is_tree(io::join(step, name))) items.push_back(name);
  if (items.size() == 1) return io::join(step, items[0]);
  const bool usual = std::ranges::count(items, "default") != 0;
  return usual ? io::join(step, "default") : std::string();
}

// The tree that a path means: itself, its item, or its newest step's.
std::string find_tree(const std::string& path) {
  if (!io::is_directory(path)) return {};
  if (is_tree(path)) return path;
  if (std::string item = item_of(path); !item.empty()) return item;
  std::optional<uint64_t> newest;
  std::string found;
  for (const std::string& name : io::list_directory(path)) {
    const auto number = text::number(name);
    const std::string step = io::join(path, name);
    if (!number || (newest && *newest >= *number) ||
        !io::is_listed_directory(step))
      continue;
    const std::string item = is_tree(step) ? step : item_of(step);
    if (item.empty()) continue;
    newest = number;
    found = item;
  }
  return found;
}

struct Leaf {
  std::string name;  // keys, joined with dots
  std::string first;
  std::string type;  // "jax.Array", "scalar", "string", "None" …
  bool skipped = false;
};

class Tree {
 public:
  Tree(std::string path, const formats::ReadOptions& options)
      : path_(std::move(path)), file_(io::join(path_, kTree)) {
    catalog_.format = kFormat;
    catalog_.path = path_;
    catalog_.family = options.family;
  }

  Catalog read() {
    const json root = text::parse_json(io::read_file(file_, kMostJson), file_);
    if (!root.is_object() || !root.contains("tree_metadata"))
      throw input_error({file_, {}}, "key \"tree_metadata\" is missing")
          .with_hint("copy or download the checkpoint again");
    const json& leaves = root["tree_metadata"];
    if (!leaves.is_object())
      throw input_error({file_, {}}, "tree_metadata is not an object");
    if (ocdbt::is_database(path_)) database_ = ocdbt::read_database(path_);
    std::vector<Leaf> all;
    std::vector<std::string> descriptions;
    for (const auto& [key, value] : leaves.items()) {
      const Leaf& leaf = all.emplace_back(leaf_of(value));
      if (!database_)
        descriptions.push_back(io::join(io::join(path_, leaf.name), ".zarray"));
    }
    io::FilesAhead ahead(std::move(descriptions));
    for (size_t i = 0; i < all.size(); ++i) {
      ahead.reach(i);
      add(all[i]);
    }
    note_strangers();
    return std::move(catalog_);
  }

 private:
  Leaf leaf_of(const json& value) const {
    Leaf leaf;
    const json& keys = text::member(value, "key_metadata", file_);
    if (!keys.is_array() || keys.empty())
      throw input_error({file_, {}}, "a leaf has no keys");
    for (const json& key : keys) {
      const std::string word = text::string_member(key, "key", file_);
      if (leaf.name.empty()) leaf.first = word;
      leaf.name += (leaf.name.empty() ? "" : ".") + word;
    }
    if (leaf.name.find('/') != leaf.name.npos || leaf.name == "." ||
        leaf.name == ".." || leaf.name.find('\0') != leaf.name.npos)
      throw input_error({file_, {}},
                        "a leaf's keys {} don't make a file's name",
                        printable(leaf.name));
    const json& what = text::member(value, "value_metadata", file_);
    leaf.type = text::string_member(what, "value_type", file_);
    const auto skipped = what.find("skip_deserialize");
    leaf.skipped = skipped != what.end() && *skipped == true;
    return leaf;
  }

  void add(const Leaf& leaf) {
    if (!names_.insert(leaf.name).second)
      throw input_error({file_, printable(leaf.name)},
                        "two leaves have this name");
    if (leaf.type == "string") return add_object(leaf, string_of(leaf.name));
    auto array = array_of(leaf.name);
    // None, and what a tree has without leaves: {} and [].
    if (leaf.skipped && !array) return add_object(leaf, nullptr);
    const std::string directory = io::join(path_, leaf.name);
    if (!array && !database_ && io::is_listed_directory(io::join(path_, "d")))
      throw LostFile(input_error({io::join(path_, "manifest.ocdbt"), {}},
                                 "is missing, and d has a database's files")
                         .with_hint("copy or download the checkpoint again"));
    if (!array)
      throw input_error({directory, printable(leaf.name)},
                        "has no .zarray or zarr.json, and {} lists it as {}",
                        kTree, printable(leaf.type))
          .with_hint("copy or download the checkpoint again");
    add_array(leaf, directory, *array);
  }

  // An array's description; nullopt if there is none.
  std::optional<zarr::Array> array_of(const std::string& name) const {
    const std::string directory = io::join(path_, name);
    if (!database_) {
      if (zarr::is_array3(directory)) return zarr::read_array3(directory);
      if (zarr::is_array(directory)) return zarr::read_array(directory);
      return std::nullopt;
    }
    std::optional<zarr::Array> array;
    for (const std::string_view file : {"/.zarray", "/zarr.json"}) {
      const std::string key = name + std::string(file);
      const auto value = database_->find(key);
      if (value == database_->end()) continue;
      const std::string text =
          ocdbt::read_value(key, value->second, kMostDescription);
      const std::string path = io::join(path_, key);
      array = file == "/.zarray" ? zarr::parse_array(text, path)
                                 : zarr::parse_array3(text, path);
      array->directory = path_;
      array->database = &*database_;
      array->key = name + "/";
    }
    return array;
  }

  void add_array(const Leaf& leaf, const std::string& directory,
                 const zarr::Array& array) {
    if (!array.unreadable.empty())
      throw resource_error({directory, printable(leaf.name)},
                           "{}: ckpt does not read chunks that were written "
                           "with it",
                           array.unreadable)
          .with_hint("save it again with Orbax's own compression (zstd)");
    Tensor tensor;
    tensor.name = leaf.name;
    tensor.dtype = array.dtype;
    tensor.shape = array.shape;
    tensor.kind = leaf.first == "opt_state" ? Kind::optim : Kind::model;
    zarr::add_chunks(array, catalog_, tensor);
    catalog_.tensors.push_back(std::move(tensor));
  }

  json string_of(const std::string& name) {
    const std::string path = io::join(path_, kStrings);
    if (strings_.is_null())
      strings_ = text::parse_json(io::read_file(path, kMostJson), path);
    const auto found = strings_.find(name);
    if (!strings_.is_object() || found == strings_.end())
      throw input_error({path, printable(name)}, "is not there");
    return *found;
  }

  void add_object(const Leaf& leaf, const json& value) {
    auto document = std::make_shared<pickle::Document>();
    const pickle::Id node = pickle::from_json(*document, value);
    catalog_.objects.push_back(
        {.name = leaf.name, .document = std::move(document), .node = node});
  }

  void note_strangers() {
    std::set<std::string> all;
    if (database_)
      for (const auto& [key, value] : *database_)
        all.insert(key.substr(0, key.find('/')));
    else
      for (const std::string& name : io::list_directory(path_))
        if (zarr::is_array(io::join(path_, name)) ||
            zarr::is_array3(io::join(path_, name)))
          all.insert(name);
    for (const std::string& name : all)
      if (!names_.contains(name))
        catalog_.problems.push_back(warning(
            "unindexed_tensor", {io::join(path_, name), printable(name)},
            "{} does not list it; it is not read", kTree));
  }

  const std::string path_;
  const std::string file_;
  Catalog catalog_;
  std::set<std::string> names_;
  json strings_;
  std::optional<ocdbt::Database> database_;
};

Support supports(const std::string& path) {
  const std::string tree = find_tree(path);
  if (tree.empty() && lost_tree(path))
    return {true, "holds _CHECKPOINT_METADATA and arrays"};
  if (tree.empty()) return {false, "no _METADATA in it"};
  return {true, tree == path ? "holds _METADATA"
                             : "holds " + printable(tree.substr(path.size()))};
}

Catalog read_catalog(const std::string& path,
                     const formats::ReadOptions& options) {
  const std::string tree = find_tree(path);
  if (tree.empty())
    throw missing_error({path, {}}, "has no {} of a tree of zarr arrays",
                        kTree);
  Catalog catalog = Tree(tree, options).read();
  if (tree != path) {
    catalog.root = path;
    catalog.assumptions.push_back(printable(tree) + ": the newest step");
  }
  return catalog;
}

}  // namespace

std::unique_ptr<formats::Reader> make_reader() {
  return formats::reader_of(kFormat, supports, read_catalog);
}

}  // namespace ckpt::orbax
