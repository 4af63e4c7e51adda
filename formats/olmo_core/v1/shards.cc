// SPDX-License-Identifier: Apache-2.0
#include "formats/olmo_core/v1/shards.h"

#include <unordered_map>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/hf/numbered.h"
#include "containers/safetensors/header.h"
#include "formats/olmo_core/v1/cover.h"
#include "lib/io/file.h"
#include "lib/lost_file.h"
#include "lib/text/format.h"

namespace ckpt::olmo_core::v1 {
namespace {

using text::printable;
using Severity = Problem::Severity;

// The header of one rank's file.
struct RankFile {
  std::string path;
  uint32_t file = 0;  // in the catalog
  bool there = false;
  std::vector<safetensors::Entry> entries;
  std::unordered_map<std::string_view, const safetensors::Entry*> by_name;
  size_t used = 0;  // entries that the index names
};

class PartReader {
 public:
  PartReader(Part& part, Catalog& catalog) : part_(part), catalog_(catalog) {}

  void read() {
    part_.index = read_index(io::join(part_.directory, kIndexName));
    for (const Entry& entry : part_.index.entries)
      for (const Shard& shard : entry.shards) part_.ranks.insert(shard.rank);
    for (const uint32_t rank : part_.ranks) open(rank);
    for (const Entry& entry : part_.index.entries) add_tensor(entry);
    note_unnamed();
  }

 private:
  void open(uint32_t rank) {
    RankFile& file = files_[rank];
    file.path = io::join(part_.directory, rank_file(rank));
    file.there = io::is_file(file.path);
    if (!file.there) return;  // reported when something in it is needed
    const io::Handle handle = io::Handle::open_read(file.path);
    file.entries = safetensors::read_header(handle).entries;
    for (const safetensors::Entry& entry : file.entries)
      file.by_name.emplace(entry.name, &entry);
    file.file = static_cast<uint32_t>(catalog_.files.size());
    catalog_.files.push_back({.path = file.path, .size = handle.size()});
  }

  void add_tensor(const Entry& entry) {
    Tensor tensor;
    tensor.name = entry.name;
    tensor.shape = entry.shape;
    std::optional<DType> dtype = entry.dtype;
    std::vector<Piece> pieces;
    const bool sharded = entry.sharded.value_or(entry.shards.size() > 1);
    for (const Shard& shard : entry.shards) {
      const safetensors::Entry* stored = find(entry, shard);
      if (stored == nullptr) continue;
      if (!dtype) dtype = stored->dtype;
      check(entry, shard, *stored, *dtype);
      add_pieces(entry, shard, *stored, sharded, pieces);
    }
    if (!dtype)
      throw input_error({part_.index.path, printable(entry.name)},
                        "no file has it, and the index does not say its dtype");
    tensor.dtype = *dtype;
    if (!byte_size(tensor.dtype, tensor.shape))
      throw input_error({part_.index.path, printable(entry.name)},
                        "{} {} has more bytes than 64 bits count",
                        name(tensor.dtype), to_string(tensor.shape));
    tensor.pieces = cover(part_.index.path, tensor, std::move(pieces), budget_);
    part_.sharded.push_back(sharded);
    part_.tensors.push_back(std::move(tensor));
  }

  // Ranks whose shard is empty may lack the key, or have it with shape [0].
  const safetensors::Entry* find(const Entry& entry, const Shard& shard) {
    RankFile& file = files_.at(shard.rank);
    const auto found = file.by_name.find(entry.name);
    if (found != file.by_name.end()) {
      ++file.used;
      return found->second;
    }
    if (shard.elements == 0) return nullptr;
    if (!file.there)
      throw LostFile(
          input_error({file.path, printable(entry.name)},
                      "the file is missing: the index says that it has {} "
                      "elements of this tensor",
                      shard.elements)
              .with_hint(
                  "fetch or copy it again; all ranks' files are needed"));
    throw input_error({file.path, printable(entry.name)},
                      "the index says that this file has {} elements of it, "
                      "but it has none",
                      shard.elements)
        .with_hint("the file is of another save than metadata.json, maybe");
  }

  void check(const Entry& entry, const Shard& shard,
             const safetensors::Entry& stored, DType dtype) const {
    const std::string& path = files_.at(shard.rank).path;
    if (stored.shape.size() != 1 || stored.shape[0] != shard.elements)
      throw input_error({path, printable(entry.name)},
                        "has the shape {}, the index says {} elements",
                        to_string(stored.shape), shard.elements);
    if (stored.dtype != dtype)
      throw input_error({path, printable(entry.name)}, "is {}, {} says {}",
                        name(stored.dtype),
                        entry.dtype ? "the index" : "an earlier file",
                        name(dtype));
    if (info(dtype).bits % 8 != 0)
      throw input_error({path, printable(entry.name)},
                        "is {}: OLMo-core does not write such tensors",
                        name(dtype));
  }

  // A plain tensor is a box; a flat shard is a range even if it has everything.
  // That distinguishes them later.
  void add_pieces(const Entry& entry, const Shard& shard,
                  const safetensors::Entry& stored, bool sharded,
                  std::vector<Piece>& pieces) const {
    if (shard.elements == 0) return;
    const uint32_t file = files_.at(shard.rank).file;
    const auto add = [&](Box box, std::optional<FlatRange> flat, uint64_t at) {
      pieces.push_back({.box = std::move(box),
                        .flat = flat,
                        .extent = {.offset = at, .strides = {}, .file = file}});
    };
    if (shard.box) return add(*shard.box, std::nullopt, stored.begin);
    const uint64_t size = info(stored.dtype).bits / 8;
    uint64_t at = stored.begin;
    for (const FlatRange& range : shard.ranges) {
      if (range.begin == range.end) continue;
      const uint64_t count = range.end - range.begin;
      const bool whole =
          !sharded && count == element_count(entry.shape).value_or(0);
      add(Box::whole(entry.shape), whole ? std::nullopt : std::optional(range),
          at);
      at += count * size;
    }
  }

  // Notes what is in the files, or beside them, without being named.
  void note_unnamed() {
    for (const auto& [rank, file] : files_) {
      if (file.used == file.entries.size()) continue;
      catalog_.problems.push_back(
          warning("unindexed_tensor", {file.path, {}},
                  "has {} tensors that metadata.json does not list for "
                  "it; they are not read",
                  file.entries.size() - file.used));
    }
    std::vector<std::string> strays;
    for (const std::string& name : io::list_directory(part_.directory)) {
      const auto rank = rank_of_file(name);
      if (rank && !part_.ranks.contains(*rank) && !is_bare(name))
        strays.push_back(name);
    }
    if (!strays.empty())
      catalog_.problems.push_back(
          remark("unnamed_file", {part_.directory, {}},
                 "metadata.json does not name {}: of an earlier save by "
                 "more ranks, maybe; ignored",
                 formats::list_some(strays)));
    for (const std::string& key : part_.index.ignored)
      catalog_.problems.push_back(
          warning("unknown_key", {part_.index.path, printable(key)},
                  "is not known beside \"tensors\"; ignored"));
  }

  // A rank with nothing to store writes a header without tensors.
  bool is_bare(const std::string& name) const {
    constexpr uint64_t kBareFile = 16;
    const io::Handle file =
        io::Handle::open_read(io::join(part_.directory, name));
    return file.size() <= kBareFile;
  }

  Part& part_;
  Catalog& catalog_;
  std::unordered_map<uint32_t, RankFile> files_;
  CoverBudget budget_;
};

}  // namespace

Part read_part(const std::string& home, const std::string& folder,
               Catalog& catalog) {
  Part part;
  part.folder = folder;
  part.directory = folder.empty() ? home : io::join(home, folder);
  PartReader(part, catalog).read();
  return part;
}

}  // namespace ckpt::olmo_core::v1
