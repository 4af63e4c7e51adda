// SPDX-License-Identifier: Apache-2.0
#include "formats/dcp/hf.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>
#include <unordered_map>

#include "ckpt/box.h"
#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/hf/hf.h"
#include "containers/hf/index.h"
#include "containers/safetensors/header.h"
#include "formats/dcp/dcp.h"
#include "lib/in_order.h"
#include "lib/io/file.h"
#include "lib/pickle/value.h"
#include "lib/tensor_part.h"
#include "lib/text/format.h"
#include "lib/text/json.h"
#include "lib/text/name_table.h"
#include "lib/text/scan.h"

namespace ckpt::dcp {
namespace {

using safetensors::Entry;
using text::Scanner;

using text::printable;

constexpr std::string_view kSuffix = ".safetensors";
constexpr std::string_view kShard = "shard-";
constexpr std::string_view kVersion = "DCP_VERSION";

// One file of torch's HuggingFaceStorageWriter: safetensors with the parts of
// tensors that one rank held.
//
//   "__metadata__": {"DCP_SHARDING_INFO":
//                        "{\"w\": {\"saved_offsets\": [8, 0]}}"}

inline constexpr std::string_view kShardInfo = "DCP_SHARDING_INFO";

struct Shard {
  std::string path;
  uint64_t size = 0;           // of the file
  safetensors::Header header;  // metadata without kShardInfo
  std::vector<Dims> offsets;   // of header.entries, in their tensors
};

// A tensor's place as kShardInfo spells it.
struct Place {
  std::string name;
  Dims offsets;
};

bool read_place(Scanner& scan, Place& place) {
  if (scan.peek() != Scanner::Kind::kObject) return false;
  bool found = false;
  scan.enter_object();
  while (const auto key = scan.next_key()) {
    if (*key != "saved_offsets" || found ||
        scan.peek() != Scanner::Kind::kArray)
      return false;
    found = true;
    scan.enter_array();
    while (scan.next_item()) place.offsets.push_back(scan.unsigned_integer());
  }
  return found;
}

// Reads what torch writes, in one pass; returns false for anything else.
bool read_plain(const std::string& info, const std::string& path,
                std::vector<Place>& places) {
  try {
    Scanner scan(info, path);
    scan.enter_object();
    while (const auto name = scan.next_key()) {
      places.push_back({std::string(*name), {}});
      if (!read_place(scan, places.back())) return false;
    }
    scan.finish();
    return true;
  } catch (const Error&) {
    return false;  // the slow path says what is wrong
  }
}

// The offsets of each entry, or nothing if anything is odd.
std::optional<std::vector<Dims>> match(const std::string& info,
                                       const std::string& path,
                                       const std::vector<Entry>& entries) {
  std::vector<Place> places;
  places.reserve(entries.size());
  if (!read_plain(info, path, places)) return std::nullopt;
  text::NameTable names;
  names.reserve(places.size());
  for (uint32_t i = 0; i < places.size(); ++i) names.add(places[i].name, i);
  names.sort();
  if (names.duplicate()) return std::nullopt;
  std::vector<Dims> offsets;
  offsets.reserve(entries.size());
  for (const Entry& entry : entries) {
    const auto found = names.find(entry.name);
    if (found.empty()) return std::nullopt;
    Dims& place = places[found[0].id].offsets;
    if (place.size() != entry.shape.size()) return std::nullopt;
    offsets.push_back(std::move(place));
  }
  return offsets;
}

Dims read_offset(const std::string& path, const nlohmann::json& info,
                 const Entry& entry) {
  const auto fail = [&](std::string_view why) {
    throw input_error({path, text::printable(entry.name)}, "{}: {}", kShardInfo,
                      why);
  };
  const auto found = info.find(entry.name);
  if (found == info.end()) fail("does not name this tensor");
  if (!found->is_object()) fail("its entry is not an object");
  const auto list = found->find("saved_offsets");
  if (list == found->end() || !list->is_array())
    fail("saved_offsets is not a list");
  if (list->size() != entry.shape.size())
    fail(fmt::format("{} saved_offsets for {} dimensions", list->size(),
                     entry.shape.size()));
  Dims offset;
  for (const nlohmann::json& value : *list) {
    if (!value.is_number_unsigned())
      fail("saved_offsets is not a list of integers >= 0");
    offset.push_back(value.get<uint64_t>());
  }
  return offset;
}

std::vector<Dims> read_offsets(const std::string& info, const std::string& path,
                               const std::vector<Entry>& entries) {
  if (auto found = match(info, path, entries)) return *std::move(found);
  const nlohmann::json document = text::parse_json(info, path);
  if (!document.is_object())
    throw input_error({path, {}}, "{} is not a JSON object", kShardInfo);
  std::vector<Dims> offsets;
  for (const Entry& entry : entries)
    offsets.push_back(read_offset(path, document, entry));
  return offsets;
}

// Throws input_error if the file is not such a shard, or if it does not say
// where one of its tensors belongs. Safe to call from many threads.
Shard read_shard(const std::string& path) {
  const io::Handle file = io::Handle::open_read(path);
  Shard shard{.path = path,
              .size = file.size(),
              .header = safetensors::read_header(file),
              .offsets = {}};
  safetensors::Metadata none;
  safetensors::Metadata& metadata =
      shard.header.metadata ? *shard.header.metadata : none;
  const auto info = std::ranges::find(
      metadata, kShardInfo, &safetensors::Metadata::value_type::first);
  if (info == metadata.end())
    throw input_error({path, {}},
                      "has no {} in its header, which the other shards have",
                      kShardInfo);
  shard.offsets = read_offsets(info->second, path, shard.header.entries);
  metadata.erase(info);
  return shard;
}

bool is_shard_name(std::string_view name) {
  return name.starts_with(kShard) && name.ends_with(kSuffix) &&
         name.find("-model-") != name.npos && name.find("-of-") != name.npos;
}

bool is_whole_name(std::string_view name) {
  return formats::is_index_name(name, kSuffix) ||
         (name.starts_with("model") && name.ends_with(kSuffix));
}

const std::string* find(const safetensors::Header& header,
                        std::string_view key) {
  if (!header.metadata) return nullptr;
  for (const auto& [name, value] : *header.metadata)
    if (name == key) return &value;
  return nullptr;
}

class Assembly {
 public:
  // Call in the order of the files.
  void take(Shard shard) {
    catalog_.files.push_back({.path = shard.path, .size = shard.size});
    if (const std::string* version = find(shard.header, kVersion))
      catalog_.version = *version;
    keep_metadata(shard.header);
    for (size_t i = 0; i < shard.header.entries.size(); ++i)
      add(shard.path, std::move(shard.offsets[i]),
          std::move(shard.header.entries[i]));
  }

  Catalog finish() {
    for (Tensor& tensor : catalog_.tensors) check(tensor);
    if (document_)
      catalog_.objects.push_back(
          {std::string(safetensors::kMetadata), document_, document_->root()});
    return std::move(catalog_);
  }

 private:
  // Ranks mostly write the same names in the same order.
  size_t index_of(const safetensors::Entry& entry) {
    if (next_ < catalog_.tensors.size() &&
        catalog_.tensors[next_].name == entry.name)
      return next_++;
    const auto [known, fresh] =
        by_name_.try_emplace(entry.name, catalog_.tensors.size());
    if (fresh) {
      Tensor& made = catalog_.tensors.emplace_back();
      made.name = entry.name;
      made.dtype = entry.dtype;
      made.shape = Shape(entry.shape.size(), 0);
    }
    next_ = known->second + 1;
    return known->second;
  }

  void add(const std::string& path, Dims offset, safetensors::Entry entry) {
    Tensor& tensor = catalog_.tensors[index_of(entry)];
    if (tensor.dtype != entry.dtype ||
        tensor.shape.size() != entry.shape.size())
      throw input_error({path, printable(entry.name)},
                        "a part of {} with {} dimensions, in an earlier file "
                        "of {} with {}",
                        name(entry.dtype), entry.shape.size(),
                        name(tensor.dtype), tensor.shape.size());
    for (size_t d = 0; d < offset.size(); ++d) {
      const auto end = checked_add(offset[d], entry.shape[d]);
      if (!end)
        throw input_error({path, printable(entry.name)},
                          "saved_offsets {} overflow", to_string(offset));
      tensor.shape[d] = std::max(tensor.shape[d], *end);
    }
    if (!TensorPart::wanted(entry.name)) return;
    Piece& piece = tensor.pieces.emplace_back();
    piece.box = {std::move(offset), std::move(entry.shape)};
    piece.extent.file = static_cast<uint32_t>(catalog_.files.size() - 1);
    piece.extent.offset = entry.begin;
  }

  // Replicas count once.
  static std::vector<const Box*> distinct_boxes(const Tensor& tensor) {
    std::vector<const Box*> boxes;
    boxes.reserve(tensor.pieces.size());
    for (const Piece& piece : tensor.pieces) boxes.push_back(&piece.box);
    const auto less = [](const Box* a, const Box* b) {
      return std::tie(a->offset, a->shape) < std::tie(b->offset, b->shape);
    };
    if (!std::ranges::is_sorted(boxes, less)) std::ranges::sort(boxes, less);
    const auto same = [](const Box* a, const Box* b) { return *a == *b; };
    boxes.erase(std::unique(boxes.begin(), boxes.end(), same), boxes.end());
    return boxes;
  }

  // Ignores empty parts; the others must fill the tensor.
  void check(Tensor& tensor) {
    std::erase_if(tensor.pieces,
                  [](const Piece& piece) { return volume(piece.box) == 0; });
    if (!byte_size(tensor.dtype, tensor.shape))
      throw input_error({catalog_.files[0].path, printable(tensor.name)},
                        "its parts reach to {}, which overflows",
                        to_string(tensor.shape));
    const uint64_t wanted = element_count(tensor.shape).value_or(0);
    uint64_t elements = 0;
    for (const Box* box : distinct_boxes(tensor)) {
      elements += volume(*box);
      if (elements > wanted) break;
    }
    if (elements == wanted || !TensorPart::wanted(tensor.name)) return;
    throw input_error(
        {io::parent(catalog_.files[0].path), printable(tensor.name)},
        "its {} parts hold {} {} elements, a tensor of {} has {}",
        tensor.pieces.size(), elements > wanted ? "more than" : "only",
        std::min(elements, wanted), to_string(tensor.shape), wanted)
        .with_hint(
            "a rank's file is missing or is of another save: copy the "
            "checkpoint again");
  }

  // Keeps what is not about sharding; where files differ, the first one's.
  void keep_metadata(const safetensors::Header& header) {
    for (const auto& [key, value] : *header.metadata) {
      if (key == kVersion) continue;
      if (!document_) {
        document_ = std::make_shared<pickle::Document>();
        document_->set_root(document_->add_container(pickle::Type::kDict));
      }
      if (document_->find(document_->root(), key) == pickle::kNoId)
        document_->set(document_->root(), key, document_->add_string(value));
    }
  }

  Catalog catalog_;
  std::unordered_map<std::string, size_t> by_name_;
  size_t next_ = 0;  // likely tensor of the next entry
  std::shared_ptr<pickle::Document> document_;
};

// "shard-00003-model-…" -> 3
std::string_view writer_of(std::string_view name) {
  name.remove_prefix(kShard.size());
  return name.substr(0, name.find('-'));
}

// "shard-00003-model-00001-of-00002.safetensors" -> model-00001-of-00002…
std::string_view file_of(std::string_view name) {
  return name.substr(name.find("model-"));
}

// A tensor ends where its last part does: a missing file may take the ends of
// tensors with it. Ranks mostly write alike, so a file that only some ranks
// have is worth a warning.
void warn_of_gaps(const std::vector<std::string>& names, Catalog& catalog) {
  std::set<std::string_view> writers, files, all(names.begin(), names.end());
  for (const std::string& name : names) {
    writers.insert(writer_of(name));
    files.insert(file_of(name));
  }
  constexpr size_t kMost = 8;
  std::vector<std::string> gone;
  for (const std::string_view writer : writers)
    for (const std::string_view file : files)
      if (std::string name = fmt::format("{}{}-{}", kShard, writer, file);
          !all.contains(name) && gone.size() < kMost)
        gone.push_back(std::move(name));
  if (gone.empty()) return;
  catalog.problems.push_back(
      warning("missing_shard", {catalog.path, {}},
              "other ranks wrote such a file, these are not there: {}; "
              "if one is missing, tensors end too early",
              fmt::join(gone, ", ")));
}

}  // namespace

std::vector<std::string> find_shards(const std::string& directory) {
  std::vector<std::string> shards;
  for (std::string& name : io::list_directory(directory)) {
    if (is_whole_name(name)) return {};
    if (is_shard_name(name)) shards.push_back(std::move(name));
  }
  if (shards.empty()) return {};
  try {
    const io::Handle file =
        io::Handle::open_read(io::join(directory, shards[0]));
    if (find(safetensors::read_header(file), kShardInfo) == nullptr) return {};
  } catch (const Error&) {
    return {};  // the safetensors reader says what is wrong with it
  }
  return shards;
}

Catalog read_shards(const Directory& directory,
                    const formats::ReadOptions& options) {
  Assembly assembly;
  std::set<std::string_view> writers;
  for (const std::string& name : directory.shards)
    writers.insert(writer_of(name));
  in_order<Shard>(
      directory.shards.size(),
      [&](size_t i) {
        return read_shard(io::join(directory.path, directory.shards[i]));
      },
      [&](size_t, Shard shard) { assembly.take(std::move(shard)); });
  Catalog catalog = assembly.finish();
  catalog.format = kFormat;
  catalog.path = directory.path;
  catalog.family = options.family;
  catalog.topology.dp = static_cast<uint32_t>(writers.size());
  catalog.assumptions.push_back(
      "shapes: no shard says how large a tensor is; it ends where its last "
      "part does");
  warn_of_gaps(directory.shards, catalog);
  const bool below = io::base_name(directory.path) == "sharded";
  const std::string home = below ? io::parent(directory.path) : directory.path;
  formats::add_sidecars(home, catalog);
  formats::detect_dialect(home, catalog);
  return catalog;
}

}  // namespace ckpt::dcp
