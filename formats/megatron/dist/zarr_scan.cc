// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/dist/zarr_scan.h"

#include <algorithm>
#include <map>
#include <memory>
#include <utility>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/zarr/array.h"
#include "containers/zarr/chunks.h"
#include "formats/megatron/model/keys.h"
#include "lib/io/ahead.h"
#include "lib/io/file.h"
#include "lib/io/listed.h"
#include "lib/text/format.h"
#include "lib/text/number.h"

namespace ckpt::megatron {
namespace {

using text::printable;
using Severity = Problem::Severity;

constexpr std::string_view kLocks = ".sync";
constexpr std::string_view kObjectFile = ".pt";
constexpr char kDescription[] = ".zarray";

// "0.12.3"
std::optional<std::vector<uint64_t>> parse_numbers(std::string_view text) {
  std::vector<uint64_t> numbers;
  while (true) {
    const size_t dot = text.find('.');
    const auto value = text::number(text.substr(0, dot));
    if (!value) return std::nullopt;
    numbers.push_back(*value);
    if (dot == text.npos) return numbers;
    text.remove_prefix(dot + 1);
  }
}

// The parts of an object's name, as the scan made it: the key and what its file
// says.
struct Parts {
  std::string_view key;
  ShardName shard;
};
std::optional<Parts> parse_name(std::string_view name) {
  const size_t slash = name.rfind('/');
  if (slash == name.npos) return std::nullopt;
  auto shard = parse_shard_name(name.substr(slash + 1));
  if (!shard) return std::nullopt;
  return Parts{name.substr(0, slash), std::move(*shard)};
}

// Refuses what ckpt can list but not read: the pieces are archives that stay
// closed.
void refuse_unreadable(const Catalog& catalog,
                       const std::map<uint32_t, std::string>& unreadable) {
  for (const Tensor& tensor : catalog.tensors)
    for (const Piece& piece : tensor.pieces) {
      const auto found = unreadable.find(piece.extent.file);
      if (piece.extent.archive == 0 || found == unreadable.end()) continue;
      throw resource_error(
          {catalog.files[piece.extent.file].path, printable(tensor.name)},
          "{}: ckpt does not read chunks that were written with it",
          found->second)
          .with_hint(fmt::format(
              "leave it out (--exclude '{}'), or write the array again with "
              "no filters and zlib, gzip, bz2, zstd, blosc or no compressor",
              printable(tensor.name)));
    }
}

// Refuses their chunks only when needed.
class UnreadableArrays : public ArchiveOpener {
 public:
  explicit UnreadableArrays(std::map<uint32_t, std::string> codecs)
      : codecs_(std::move(codecs)) {}
  void locate(Catalog& catalog) const override {
    refuse_unreadable(catalog, codecs_);
  }

 private:
  std::map<uint32_t, std::string> codecs_;  // file -> what can't be read
};

class Scan {
 public:
  Scan(std::string directory, Catalog& catalog)
      : directory_(std::move(directory)), catalog_(catalog) {}

  void run() {
    const std::vector<std::string> names = io::list_directory(directory_);
    std::vector<std::string> descriptions;
    for (const std::string& name : names)
      descriptions.push_back(
          io::join(io::join(directory_, name), kDescription));
    io::FilesAhead ahead(std::move(descriptions));
    for (size_t i = 0; i < names.size(); ++i) {
      ahead.reach(i);
      const std::string path = io::join(directory_, names[i]);
      if (may_be_key(names[i]) ? io::is_directory(path)
                               : io::is_listed_directory(path))
        add_key(names[i]);
    }
    if (locks_)
      catalog_.assumptions.push_back(fmt::format(
          "{} directories of locks ({}) are left out", locks_, kLocks));
    if (!unreadable_.empty())
      catalog_.archive_opener =
          std::make_shared<const UnreadableArrays>(unreadable_);
  }

 private:
  // No file lists the keys: a link that leads nowhere may have been an array.
  static bool may_be_key(const std::string& name) {
    return name.find('.') != name.npos || name.find("_state") != name.npos;
  }

  void add_key(const std::string& key) {
    const std::string path = io::join(directory_, key);
    if (zarr::is_array(path)) {
      add_array(key, path);
      return;
    }
    if (is_leftover(key)) {
      ++locks_;
      return;
    }
    const std::vector<std::string> names = io::list_directory(path);
    if (add_objects(key, path, names)) return;
    check_lost(key, path, names);
    catalog_.problems.push_back(
        remark("foreign_directory", {printable(path), {}},
               "is not an array and has no objects; it is left "
               "alone"));
  }

  // True for locks of flattened writes: there is an array of the same name
  // without the ending.
  bool is_leftover(const std::string& key) const {
    if (!key.ends_with(kLocks)) return false;
    const std::string of = key.substr(0, key.size() - kLocks.size());
    return zarr::is_array(io::join(directory_, of));
  }

  // A directory that was an array: if its description is missing or empty, its
  // tensor would be silently missing.
  void check_lost(const std::string& key, const std::string& path,
                  const std::vector<std::string>& names) const {
    const auto is_chunk = [](const std::string& name) {
      return parse_numbers(name).has_value();
    };
    const bool described = std::ranges::count(names, kDescription) != 0;
    if (!described && std::ranges::none_of(names, is_chunk)) return;
    throw input_error({printable(io::join(path, kDescription)), printable(key)},
                      "{}",
                      described ? "is empty (0 bytes)"
                                : "is missing, but chunks of the array are "
                                  "there")
        .with_hint("copy or download the file again");
  }

  void add_array(const std::string& key, const std::string& path) {
    const zarr::Array array = zarr::read_array(path);
    Tensor& tensor = catalog_.tensors.emplace_back();
    tensor.name = key;
    tensor.dtype = array.dtype;
    tensor.shape = array.shape;
    if (array.unreadable.empty())
      zarr::add_chunks(array, catalog_, tensor);
    else
      add_unreadable(array, tensor);
  }

  void add_unreadable(const zarr::Array& array, Tensor& tensor) {
    const auto file = static_cast<uint32_t>(catalog_.files.size());
    const std::string path = io::join(array.directory, kDescription);
    unreadable_[file] = array.unreadable;
    catalog_.files.push_back(
        {.path = path, .size = io::file_size(path).value_or(0)});
    Piece piece;
    piece.box = Box::whole(tensor.shape);
    piece.extent.file = file;
    piece.extent.archive = 1;
    tensor.pieces.push_back(std::move(piece));
    catalog_.problems.push_back(warning("codec", {printable(path), tensor.name},
                                        "{}: listed, but ckpt can't read it",
                                        array.unreadable));
  }

  // False if there are none.
  bool add_objects(const std::string& key, const std::string& path,
                   const std::vector<std::string>& names) {
    bool any = false;
    for (const std::string& name : names) {
      const std::string_view stem =
          std::string_view(name).substr(0, name.rfind('.'));
      if (!name.ends_with(kObjectFile) || !parse_shard_name(stem)) {
        strangers_.push_back(io::join(path, name));
        continue;
      }
      any = true;
      add_object(fmt::format("{}/{}", key, stem), io::join(path, name));
    }
    if (any)
      for (const std::string& stranger : strangers_)
        catalog_.problems.push_back(
            warning("foreign_file", {printable(stranger), {}},
                    "is not an object of a grid; it is left "
                    "alone"));
    strangers_.clear();
    return any;
  }

  void add_object(std::string name, const std::string& path) {
    const uint64_t size = io::file_size(path).value_or(0);
    if (size == 0)
      throw input_error({printable(path), printable(name)},
                        "the object's file is empty (0 bytes)");
    catalog_.objects.push_back(
        {.name = std::move(name),
         .document = nullptr,
         .node = 0,
         .file = static_cast<uint32_t>(catalog_.files.size()),
         .offset = 0,
         .bytes = size});
    catalog_.files.push_back({.path = path, .size = size});
  }

  const std::string directory_;
  Catalog& catalog_;
  uint64_t locks_ = 0;
  std::map<uint32_t, std::string> unreadable_;  // file -> why
  std::vector<std::string> strangers_;          // beside objects
};

// The grid of a key whose names were cut, without the last extent, which only
// the offsets show.
struct CutGrid {
  std::vector<uint64_t> grid;
  uint64_t last = 0;  // the highest last offset
  uint64_t count = 0;
};
using CutGrids = std::map<std::string, CutGrid, std::less<>>;  // by key

CutGrids cut_grids(const std::vector<Object>& objects) {
  CutGrids all;
  for (const Object& object : objects) {
    const auto parts = parse_name(object.name);
    if (!parts || !parts->shard.cut) continue;
    CutGrid& known = all[std::string(parts->key)];
    if (known.count++ == 0) known.grid = parts->shard.grid;
    if (known.grid != parts->shard.grid)
      throw input_error({{}, printable(object.name)},
                        "is of a grid of {}, other objects of its key are of "
                        "one of {}",
                        to_string(Dims(parts->shard.grid)),
                        to_string(Dims(known.grid)));
    known.last = std::max(known.last, parts->shard.offset.back());
  }
  return all;
}

}  // namespace

std::optional<ShardName> parse_shard_name(std::string_view stem) {
  constexpr std::string_view kShard = "shard_";
  if (!stem.starts_with(kShard)) return std::nullopt;
  stem.remove_prefix(kShard.size());
  const size_t middle = stem.find('_');
  if (middle == stem.npos) return std::nullopt;
  auto offset = parse_numbers(stem.substr(0, middle));
  auto grid = parse_numbers(stem.substr(middle + 1));
  if (!offset || !grid) return std::nullopt;
  const bool cut = grid->size() + 1 == offset->size();
  if (!cut && grid->size() != offset->size()) return std::nullopt;
  for (size_t d = 0; d < grid->size(); ++d)
    if ((*offset)[d] >= (*grid)[d]) return std::nullopt;
  return ShardName{std::move(*offset), std::move(*grid), cut};
}

void scan_zarr(const std::string& directory, Catalog& catalog) {
  Scan(directory, catalog).run();
}

void complete_object_names(std::vector<Object>& objects) {
  const CutGrids cut = cut_grids(objects);
  for (Object& object : objects) {
    const auto parts = parse_name(object.name);
    if (!parts || !parts->shard.cut) continue;
    std::vector<uint64_t> grid = parts->shard.grid;
    grid.push_back(cut.find(parts->key)->second.last + 1);
    object.name = object_key(parts->key, parts->shard.offset, grid);
  }
}

void check_cut_grids(Catalog& catalog) {
  for (const auto& [key, cut] : cut_grids(catalog.objects)) {
    uint64_t count = cut.last + 1;
    for (const uint64_t extent : cut.grid)
      count = checked_mul(count, extent).value_or(UINT64_MAX);
    if (count == cut.count) continue;
    catalog.problems.push_back(damage(
        "object_grid", {printable(catalog.path), key},
        "{} objects of a grid of {} or more are there", cut.count, count));
  }
}

}  // namespace ckpt::megatron
