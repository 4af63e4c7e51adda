// SPDX-License-Identifier: Apache-2.0
#include "formats/dcp/storage_data.h"

#include <array>
#include <bit>
#include <cstdint>
#include <span>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ckpt/note.h"
#include "containers/hf/numbered.h"
#include "lib/io/file.h"
#include "lib/lost_file.h"
#include "lib/tensor_part.h"

namespace ckpt::dcp {
namespace {

using pickle::Id;
using pickle::kNoId;
using pickle::Type;
using text::printable;

constexpr uint64_t kMissing = UINT64_MAX;

// Finds the chunk of a tensor that begins at given offsets. Private to this
// room.

class ChunkFinder {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  // `tensors` and their chunks must not change while this is in use.
  explicit ChunkFinder(std::span<const TensorEntry> tensors)
      : tensors_(tensors) {}

  // Call some time before find(): makes the processor fetch the chunk.
  void prefetch(uint32_t tensor, uint64_t hint) const {
    const auto& chunks = tensors_[tensor].chunks;
    if (hint >= chunks.size()) return;
    __builtin_prefetch(&chunks[hint].box);
    __builtin_prefetch(&chunks[hint].stored, 1);
  }

  // `hint` is where torch says the chunk is, which is mostly right but proves
  // nothing. The hash table is only built when a hint is wrong: millions of
  // chunks need none.
  uint32_t find(uint32_t tensor, const Dims& offsets, uint64_t hint) {
    const auto& chunks = tensors_[tensor].chunks;
    if (hint < chunks.size() && chunks[hint].box.offset == offsets)
      return static_cast<uint32_t>(hint);
    return look_up(tensor, offsets);
  }

 private:
  struct Slot {
    uint32_t tensor = kNone;
    uint32_t chunk = kNone;
  };
  uint32_t look_up(uint32_t tensor, const Dims& offsets);
  void build();

  std::span<const TensorEntry> tensors_;
  std::vector<Slot> slots_;  // open addressing; the first of equals wins
};

uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
  return x ^ (x >> 31);
}

uint64_t hash(uint32_t tensor, const Dims& offsets) {
  uint64_t hash = mix(tensor + 1);
  for (const uint64_t offset : offsets)
    hash = mix(hash * 0x9E3779B97F4A7C15u + offset);
  return hash;
}

uint32_t ChunkFinder::look_up(uint32_t tensor, const Dims& offsets) {
  if (slots_.empty()) build();
  const size_t mask = slots_.size() - 1;
  for (size_t i = hash(tensor, offsets) & mask; slots_[i].chunk != kNone;
       i = (i + 1) & mask) {
    const Slot slot = slots_[i];
    if (slot.tensor == tensor &&
        tensors_[tensor].chunks[slot.chunk].box.offset == offsets)
      return slot.chunk;
  }
  return kNone;
}

void ChunkFinder::build() {
  uint64_t count = 0;
  for (const TensorEntry& tensor : tensors_) count += tensor.chunks.size();
  slots_.resize(std::bit_ceil(2 * count + 1));
  const size_t mask = slots_.size() - 1;
  for (uint32_t t = 0; t < tensors_.size(); ++t) {
    const auto& chunks = tensors_[t].chunks;
    for (uint32_t c = 0; c < chunks.size(); ++c) {
      size_t i = hash(t, chunks[c].box.offset) & mask;
      bool known = false;
      for (; slots_[i].chunk != kNone && !known; i = (i + 1) & mask) {
        const Slot slot = slots_[i];
        known = slot.tensor == t &&
                chunks[slot.chunk].box.offset == chunks[c].box.offset;
      }
      if (!known) slots_[i] = {t, c};
    }
  }
}

// The files that items name, each checked once.
class Files {
 public:
  Files(const Graph& graph, Metadata& metadata)
      : graph_(graph), metadata_(metadata) {}

  uint32_t find(Id path) {
    if (path == last_ && path != kNoId) return last_file_;
    const std::string_view name = graph_.text(path, "relative_path");
    const auto [known, fresh] = by_name_.try_emplace(
        name, static_cast<uint32_t>(metadata_.files.size()));
    if (fresh) add(name);
    last_ = path;
    return last_file_ = known->second;
  }

  void check_there() const {
    std::vector<std::string> missing;
    for (size_t f = 0; f < metadata_.files.size(); ++f)
      if (metadata_.sizes[f] == kMissing) missing.push_back(metadata_.files[f]);
    if (missing.empty()) return;
    throw LostFile(
        input_error({metadata_.path, {}},
                    "files listed in the index are missing: {}",
                    formats::list_some(missing))
            .with_hint("the checkpoint was not copied whole: copy it again"));
  }

 private:
  void add(std::string_view name) {
    check(name);
    const std::string path = io::join(metadata_.directory, name);
    metadata_.files.emplace_back(name);
    metadata_.sizes.push_back(io::file_size(path).value_or(kMissing));
  }

  // The name comes from the file: it must stay below the directory, and the
  // index is not a data file.
  void check(std::string_view name) const {
    const auto refuse = [&](std::string_view why) {
      throw unsafe_error({metadata_.path, {}}, "relative_path '{}' {}",
                         printable(name), why)
          .with_hint(
              "no writer of torch makes such a name: find out where "
              "this checkpoint comes from");
    };
    if (name.empty() || name.find('\0') != name.npos)
      refuse("is not a file name");
    if (name.starts_with('/')) refuse("is absolute");
    for (size_t at = 0; at <= name.size();) {
      const size_t end = std::min(name.find('/', at), name.size());
      const std::string_view part = name.substr(at, end - at);
      if (part == "..") refuse("leads out of the directory");
      if (part.empty() || part == ".") refuse("is not a file name");
      at = end + 1;
    }
    if (name.ends_with(".metadata")) refuse("is an index, no data file");
  }

  const Graph& graph_;
  Metadata& metadata_;
  std::unordered_map<std::string_view, uint32_t> by_name_;
  Id last_ = kNoId;
  uint32_t last_file_ = kNoFile;
};

class StorageReader {
 public:
  StorageReader(Graph& graph, Metadata& metadata)
      : graph_(graph),
        metadata_(metadata),
        files_(graph, metadata),
        finder_(metadata.tensors) {
    by_name_.reserve(metadata.tensors.size() + metadata.bytes.size());
    for (uint32_t i = 0; i < metadata.tensors.size(); ++i)
      by_name_[metadata.tensors[i].name] = {i, kNoFile};
    for (uint32_t i = 0; i < metadata.bytes.size(); ++i)
      by_name_[metadata.bytes[i].name] = {kNoFile, i};
  }

  void read(Id storage_data) {
    if (graph_.document().is(storage_data, Type::kNone))
      graph_.fail({},
                  "storage_data is None: it does not say where anything "
                  "is stored");
    if (!graph_.document().is(storage_data, Type::kDict))
      graph_.fail({}, "storage_data is {}, not a dict",
                  graph_.describe(storage_data));
    const auto pairs = graph_.document().items(storage_data);
    std::array<Item, kAtOnce> items;
    for (size_t i = 0; i + 1 < pairs.size();) {
      size_t count = 0;
      for (; count < kAtOnce && i + 1 < pairs.size(); ++count, i += 2)
        items[count] = look_up(pairs[i], pairs[i + 1]);
      for (const Item& item : std::span(items).first(count)) read_item(item);
    }
    files_.check_there();
    check_ranges();
    note_unknown();
  }

 private:
  struct Entry {
    uint32_t tensor = kNoFile;
    uint32_t bytes = kNoFile;
  };

  // Chunks are all over memory: prefetch those of some items before reading the
  // first.
  static constexpr size_t kAtOnce = 32;
  struct Item {
    Id value = kNoId;
    Fields index;
    Entry entry;
    std::string_view name;
    uint64_t hint = 0;
  };

  Item look_up(Id key, Id value) {
    const auto index = graph_.fields(key, "MetadataIndex");
    const Id fqn = index.find(graph_.names.fqn);
    if (fqn != last_fqn_ || fqn == kNoId) {
      last_ = entry(fqn);
      last_fqn_ = fqn;
      last_name_ = name_of(last_, fqn);
    }
    const auto hint = graph_.document().as_int(index.find(graph_.names.index));
    const Item item = {
        .value = value,
        .index = index,
        .entry = last_,
        .name = last_name_,
        .hint = hint && *hint >= 0 ? static_cast<uint64_t>(*hint) : 0};
    if (item.entry.tensor != kNoFile)
      finder_.prefetch(item.entry.tensor, item.hint);
    return item;
  }

  // Names are mostly short, and a document holds each short text once, so a
  // million lookups are by id, not by text.
  Entry entry(Id fqn) {
    if (const auto known = by_id_.find(fqn); known != by_id_.end())
      return known->second;
    const auto found = by_name_.find(graph_.text(fqn, "fqn"));
    if (found == by_name_.end()) return {};
    if (by_id_.size() < 2 * by_name_.size()) by_id_.emplace(fqn, found->second);
    return found->second;
  }

  void read_item(const Item& item) {
    name_ = item.name;
    if (item.entry.tensor != kNoFile && !TensorPart::wanted(item.name)) {
      const auto fields = graph_.fields(item.value, "_StorageInfo");
      files_.find(fields.find(graph_.names.relative_path));  // of all
      return;
    }
    const Stored stored = read_stored(item.value);
    const Id offset = item.index.find(graph_.names.offset);
    const bool is_bytes =
        offset == kNoId || graph_.document().is(offset, Type::kNone);
    Stored* slot = nullptr;
    if (is_bytes && item.entry.bytes != kNoFile)
      slot = &metadata_.bytes[item.entry.bytes].stored;
    else if (!is_bytes && item.entry.tensor != kNoFile)
      slot = find_chunk(item, offset);
    if (slot == nullptr) return add_unknown();
    if (slot->file != kNoFile)
      graph_.fail(name_, "storage_data has two items for it{}",
                  is_bytes ? std::string()
                           : " at offsets " + to_string(graph_.dims(
                                                  offset, name_, "offset")));
    *slot = stored;
  }

  // For messages; the document's own text is rarely in the cache.
  std::string_view name_of(const Entry& entry, Id fqn) const {
    if (entry.tensor != kNoFile) return metadata_.tensors[entry.tensor].name;
    if (entry.bytes != kNoFile) return metadata_.bytes[entry.bytes].name;
    return graph_.document().text(fqn);
  }

  Stored* find_chunk(const Item& item, Id offset) {
    const Dims& offsets = graph_.known_dims(offset, name_, "offset");
    const uint32_t tensor = item.entry.tensor;
    const uint32_t chunk = finder_.find(tensor, offsets, item.hint);
    if (chunk == ChunkFinder::kNone) return nullptr;
    return &metadata_.tensors[tensor].chunks[chunk].stored;
  }

  Stored read_stored(Id value) {
    const auto fields = graph_.fields(value, "_StorageInfo");
    Stored stored;
    stored.file = files_.find(fields.find(graph_.names.relative_path));
    stored.offset =
        graph_.count(fields.find(graph_.names.offset), name_, "item offset");
    stored.length =
        graph_.count(fields.find(graph_.names.length), name_, "item length");
    const Id transforms = fields.find(graph_.names.transform_descriptors);
    if (transforms != kNoId && transforms != last_transforms_) {
      last_transforms_index_ = read_transforms(transforms);
      last_transforms_ = transforms;
    }
    if (transforms != kNoId) stored.transforms = last_transforms_index_;
    return stored;
  }

  // torch's only transform is zstd, one frame per item.
  uint32_t read_transforms(Id list) {
    const pickle::Document& document = graph_.document();
    if (document.is(list, Type::kNone)) return kNoTransforms;
    if (!document.is(list, Type::kList) && !document.is(list, Type::kTuple))
      graph_.fail(name_, "transform_descriptors is {}, not a list",
                  graph_.describe(list));
    std::vector<std::string> names;
    for (const Id item : document.items(list))
      names.emplace_back(graph_.text(item, "a transform descriptor"));
    if (names.empty()) return kNoTransforms;
    if (names.size() > 1 || names[0] != "stream.zstd/1")
      throw unfaithful_error(
          {metadata_.path, printable(name_)},
          "is stored through transforms that are not known: {}",
          formats::list_some(names))
          .with_hint(
              "known is stream.zstd/1; save it again without storage "
              "extensions");
    for (uint32_t i = 0; i < metadata_.transforms.size(); ++i)
      if (metadata_.transforms[i] == names) return i;
    metadata_.transforms.push_back(std::move(names));
    return static_cast<uint32_t>(metadata_.transforms.size() - 1);
  }

  void add_unknown() {
    if (unknown_++ == 0) first_unknown_ = std::string(name_);
  }
  void note_unknown() {
    if (unknown_ == 0) return;
    metadata_.problems.push_back(
        warning("unknown_item", {metadata_.path, first_unknown_},
                "storage_data has {} items that state_dict_metadata does "
                "not know (the first: {}); they are ignored",
                unknown_, printable(first_unknown_)));
  }

  void check_ranges() {
    for (TensorEntry& tensor : metadata_.tensors) {
      // A chunk without elements is never read, but its item must exist.
      std::erase_if(tensor.chunks, [&](const Chunk& chunk) {
        if (volume(chunk.box) != 0) return false;
        if (chunk.stored.file != kNoFile)
          check_range(tensor.name, chunk.stored);
        return true;
      });
      for (const Chunk& chunk : tensor.chunks) {
        if (chunk.stored.file == kNoFile) no_item(tensor, chunk);
        check_range(tensor.name, chunk.stored);
      }
    }
    for (const BytesEntry& entry : metadata_.bytes) {
      if (entry.stored.file == kNoFile)
        graph_.fail(entry.name, "storage_data has no item for this object");
      check_range(entry.name, entry.stored);
    }
  }

  void check_range(const std::string& tensor, const Stored& stored) const {
    const uint64_t size = metadata_.sizes[stored.file];
    if (stored.length <= size && stored.offset <= size - stored.length) return;
    throw input_error(
        {io::join(metadata_.directory, metadata_.files[stored.file]),
         printable(tensor)},
        "an item of {} bytes at byte {} of a file of {}", stored.length,
        stored.offset, size)
        .with_hint("the file was cut short; copy it again");
  }

  [[noreturn]] void no_item(const TensorEntry& tensor, const Chunk& chunk) {
    for (const Chunk& other : tensor.chunks) {
      if (&other == &chunk || other.box.offset != chunk.box.offset) continue;
      graph_.fail(tensor.name, "the chunk at offsets {} is listed twice",
                  to_string(chunk.box.offset));
    }
    graph_.fail(tensor.name,
                "storage_data has no item for the chunk at offsets {}",
                to_string(chunk.box.offset));
  }

  Graph& graph_;
  Metadata& metadata_;
  Files files_;
  ChunkFinder finder_;
  std::unordered_map<std::string_view, Entry> by_name_;
  std::unordered_map<Id, Entry> by_id_;
  Id last_fqn_ = kNoId;
  Entry last_;
  std::string_view last_name_;
  std::string_view name_;  // of the current item, for messages
  Id last_transforms_ = kNoId;
  uint32_t last_transforms_index_ = kNoTransforms;
  uint64_t unknown_ = 0;
  std::string first_unknown_;
};

}  // namespace

void read_storage_data(Graph& graph, Id storage_data, Metadata& metadata) {
  StorageReader(graph, metadata).read(storage_data);
}

}  // namespace ckpt::dcp
