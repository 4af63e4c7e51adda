// SPDX-License-Identifier: Apache-2.0
// A directory of torch.distributed.checkpoint, in any of its flavours
// (directory.h).
#include <algorithm>
#include <set>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/hf/numbered.h"
#include "formats/dcp/dcp.h"
#include "formats/dcp/directory.h"
#include "formats/dcp/hf.h"
#include "formats/dcp/kinds.h"
#include "formats/dcp/metadata.h"
#include "formats/dcp/nest.h"
#include "formats/fsdp/expand.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::dcp {
namespace {

using Elements = std::vector<PathElement>;

using formats::Support;
using text::printable;
using Severity = Problem::Severity;

constexpr std::string_view kIndex = ".metadata";

// Updates an index after FSDP's flat tensors became parameters: entries and
// planner paths get the new names, for the nest built from them.
//
//   ("model", "layers.0._flat_param")  ->  ("model", "layers.0.norm.weight") …

// In the element that ends with the leaf, replaces the leaf by the parameter.
Elements path_of(Elements path, const std::string& leaf,
                 const std::string& parameter) {
  for (PathElement& element : path) {
    const auto* text = std::get_if<std::string>(&element);
    if (text == nullptr || !text->ends_with(leaf)) continue;
    element = fsdp::with_parameter(*text, leaf, parameter);
    break;
  }
  return path;
}

// Renames entries of metadata.tensors (whose chunks are already taken) and of
// metadata.planner.
void rename_entries(const std::vector<fsdp::Expansion>& expansions,
                    Metadata& metadata) {
  if (expansions.empty()) return;
  std::unordered_map<std::string_view, const fsdp::Expansion*> by_name;
  for (const fsdp::Expansion& expansion : expansions)
    by_name.emplace(expansion.name, &expansion);
  std::vector<TensorEntry> entries;
  for (TensorEntry& entry : metadata.tensors) {
    const auto found = by_name.find(entry.name);
    if (found == by_name.end()) {
      entries.push_back(std::move(entry));
      continue;
    }
    const fsdp::Expansion& expansion = *found->second;
    Elements whole;
    if (metadata.planner) {
      auto node = metadata.planner->extract(entry.name);
      if (!node.empty()) whole = std::move(node.mapped());
    }
    for (const auto& into : expansion.into) {
      TensorEntry& part = entries.emplace_back();
      part.name = into.name;
      part.position = entry.position;
      if (!whole.empty())
        metadata.planner->emplace(
            into.name, path_of(whole, expansion.leaf, into.parameter));
    }
  }
  metadata.tensors = std::move(entries);
}

// Merges the metadata that each rank wrote separately.

// Objects up to this size are compared byte by byte, up to a limit: each costs
// two reads.
constexpr uint64_t kCompared = 64 << 10;
constexpr uint64_t kMostCompared = 4096;

class Uniter {
 public:
  explicit Uniter(Metadata first) : all_(std::move(first)) {
    for (size_t i = 0; i < all_.tensors.size(); ++i)
      tensors_[all_.tensors[i].name] = i;
    for (size_t i = 0; i < all_.bytes.size(); ++i)
      bytes_[all_.bytes[i].name] = i;
    position_ = static_cast<uint32_t>(tensors_.size() + bytes_.size());
  }

  void add(Metadata rank) {
    file_shift_ = static_cast<uint32_t>(all_.files.size());
    std::ranges::move(rank.files, std::back_inserter(all_.files));
    std::ranges::move(rank.sizes, std::back_inserter(all_.sizes));
    map_transforms(rank);
    for (TensorEntry& tensor : rank.tensors) add_tensor(rank, tensor);
    for (BytesEntry& entry : rank.bytes) add_bytes(entry);
    if (rank.planner) {
      if (!all_.planner) all_.planner.emplace();
      all_.planner->merge(*rank.planner);
    }
    for (const std::string& global : rank.globals) {
      const auto at = std::ranges::lower_bound(all_.globals, global);
      if (at == all_.globals.end() || *at != global)
        all_.globals.insert(at, global);
    }
    std::ranges::move(rank.problems, std::back_inserter(all_.problems));
  }

  Metadata finish() {
    if (!unlike_.empty())
      all_.problems.push_back(
          warning("unlike_objects", {all_.directory, {}},
                  "ranks saved unlike values of {}; the first rank's are "
                  "taken",
                  formats::list_some(unlike_)));
    return std::move(all_);
  }

 private:
  void map_transforms(const Metadata& rank) {
    transforms_.assign(rank.transforms.size(), kNoTransforms);
    for (size_t i = 1; i < rank.transforms.size(); ++i) {
      const auto known = std::ranges::find(all_.transforms, rank.transforms[i]);
      transforms_[i] = static_cast<uint32_t>(known - all_.transforms.begin());
      if (known == all_.transforms.end())
        all_.transforms.push_back(rank.transforms[i]);
    }
  }
  void shift(Stored& stored) const {
    stored.file += file_shift_;
    stored.transforms = transforms_[stored.transforms];
  }

  void add_tensor(const Metadata& rank, TensorEntry& tensor) {
    for (Chunk& chunk : tensor.chunks) shift(chunk.stored);
    const auto [known, fresh] =
        tensors_.try_emplace(tensor.name, all_.tensors.size());
    if (bytes_.contains(tensor.name))
      throw input_error({rank.path, printable(tensor.name)},
                        "a tensor here, an object of an earlier rank");
    if (fresh) {
      tensor.position = position_++;
      all_.tensors.push_back(std::move(tensor));
      return;
    }
    TensorEntry& first = all_.tensors[known->second];
    if (first.dtype != tensor.dtype || first.size != tensor.size)
      throw input_error({rank.path, printable(tensor.name)},
                        "a tensor {} {} here, {} {} of an earlier rank",
                        name(tensor.dtype), to_string(tensor.size),
                        name(first.dtype), to_string(first.size))
          .with_hint("the files are of two saves: remove the stale ones");
    std::ranges::move(tensor.chunks, std::back_inserter(first.chunks));
  }

  void add_bytes(BytesEntry& entry) {
    shift(entry.stored);
    const auto [known, fresh] =
        bytes_.try_emplace(entry.name, all_.bytes.size());
    if (tensors_.contains(entry.name))
      throw input_error({all_.directory, printable(entry.name)},
                        "an object of one rank, a tensor of another");
    if (fresh) {
      entry.position = position_++;
      all_.bytes.push_back(std::move(entry));
    } else if (!alike(all_.bytes[known->second].stored, entry.stored)) {
      unlike_.push_back(entry.name);
    }
  }

  std::string bytes_of(const Stored& stored) const {
    const std::string path = io::join(all_.directory, all_.files[stored.file]);
    return io::Handle::open_read(path).read_string(stored.offset,
                                                   stored.length);
  }
  // Equal values have equal archives: torch puts no date in them.
  bool alike(const Stored& a, const Stored& b) {
    if (a.length != b.length || a.transforms != b.transforms) return false;
    if (a.length > kCompared || compared_++ > kMostCompared) return false;
    return bytes_of(a) == bytes_of(b);
  }

  Metadata all_;
  std::unordered_map<std::string, size_t> tensors_;
  std::unordered_map<std::string, size_t> bytes_;
  uint32_t position_ = 0;
  uint32_t file_shift_ = 0;
  std::vector<uint32_t> transforms_;  // of the rank -> of all
  std::vector<std::string> unlike_;
  uint64_t compared_ = 0;
};

// Joins chunks of one name; equal boxes are replicas. If several ranks have an
// object, takes the first rank's (and adds a problem if they differ). Throws
// input_error if dtypes or sizes differ.
Metadata unite(std::vector<Metadata> ranks) {
  Uniter uniter(std::move(ranks.at(0)));
  for (size_t r = 1; r < ranks.size(); ++r) uniter.add(std::move(ranks[r]));
  return uniter.finish();
}

Support supports_directory(const std::string& path) {
  const Directory found = look_at(path);
  if (found.whole) return {true, "holds .metadata"};
  if (!found.ranks.empty()) return {true, "holds " + printable(found.ranks[0])};
  if (!found.shards.empty())
    return {true,
            "holds " + printable(found.shards[0]) + " with DCP_SHARDING_INFO"};
  if (found.is_ours()) return {true, "holds an unfinished save"};
  if (const auto followed = follow(path))
    return {true, "holds " + printable(followed->name.empty()
                                           ? followed->unfinished[0]
                                           : followed->name)};
  return {false, "no .metadata in it"};
}

[[noreturn]] void throw_unfinished(const Directory& directory) {
  const Error error =
      directory.started.empty()
          ? input_error({directory.path, {}},
                        "holds {} .distcp files and no .metadata, which is "
                        "written last: incomplete save",
                        directory.distcps.size())
          : input_error({directory.path, {}},
                        "holds {} and no .metadata, which it becomes in the "
                        "end: incomplete save",
                        printable(directory.started[0]));
  throw error.with_hint(
      "use an earlier checkpoint; if this one was copied, look whether "
      "names that begin with a dot were left out; `ckpt salvage` rebuilds what "
      "ckpt wrote");
}

// Each rank wrote its own index; a missing one shows only as a gap in the
// numbers.
void check_ranks(const Directory& directory, Metadata& metadata) {
  if (!directory.started.empty())
    throw input_error({directory.path, {}},
                      "holds {}: incomplete save of that rank",
                      printable(directory.started[0]))
        .with_hint("use an earlier checkpoint");
  uint64_t expected = 0;
  for (const std::string& name : directory.ranks) {
    const uint32_t rank = *rank_of(name);
    if (rank != expected) {
      metadata.problems.push_back(
          warning("missing_rank", {directory.path, {}},
                  "__{}.metadata is not there, {} is: what only that rank "
                  "saved is missing",
                  expected, printable(name)));
      return;
    }
    ++expected;
  }
}

Metadata read_index(const Directory& directory,
                    const formats::ReadOptions& options) {
  if (directory.whole)
    return read_metadata(io::join(directory.path, kIndex), options);
  if (directory.ranks.empty()) throw_unfinished(directory);
  std::vector<Metadata> ranks;
  for (const std::string& name : directory.ranks)
    ranks.push_back(read_metadata(io::join(directory.path, name), options));
  Metadata metadata = unite(std::move(ranks));
  metadata.path = directory.path;
  check_ranks(directory, metadata);
  return metadata;
}

// How many ranks wrote, as far as the file names tell.
uint32_t count_ranks(const Metadata& metadata) {
  std::set<uint32_t> ranks;
  for (const std::string& name : metadata.files)
    if (const auto rank = rank_of(name)) ranks.insert(*rank);
  return std::max<uint32_t>(1, static_cast<uint32_t>(ranks.size()));
}

// Files of an earlier, larger run remain when a save goes to the same place.
void note_strays(const Directory& directory, const Metadata& metadata,
                 Catalog& catalog) {
  std::vector<std::string> named = metadata.files;
  std::ranges::sort(named);
  std::vector<std::string> strays;
  for (const std::string& name : directory.distcps) {
    if (std::ranges::binary_search(named, name)) continue;
    // A rank with nothing to save leaves an empty file.
    const io::Handle file =
        io::Handle::open_read(io::join(directory.path, name));
    if (file.size() > 0) strays.push_back(name);
  }
  if (!strays.empty())
    catalog.problems.push_back(
        remark("unnamed_file", {directory.path, {}},
               "the index does not name {}: of an earlier save, maybe; "
               "ignored",
               formats::list_some(strays)));
  if (directory.whole && !directory.started.empty())
    catalog.problems.push_back(
        warning("unfinished_save", {directory.path, {}},
                "{} is there too: a later save into this directory did "
                "not finish, and may have replaced data files",
                printable(directory.started[0])));
}

Catalog read_indexed(const Directory& directory,
                     const formats::ReadOptions& options) {
  Metadata metadata = read_index(directory, options);
  check_cover(metadata);
  Catalog catalog;
  catalog.format = kFormat;
  catalog.path = directory.path;
  catalog.version = metadata.version;
  catalog.family = options.family;
  catalog.topology.dp = count_ranks(metadata);
  add_to_catalog(metadata, catalog, options);
  set_kinds(catalog);
  // FSDP1 in its LOCAL_STATE_DICT mode keeps one flat tensor per unit.
  rename_entries(fsdp::expand_given(catalog, options), metadata);
  add_nest(metadata, catalog, options);
  note_strays(directory, metadata, catalog);
  return catalog;
}

// The newest complete checkpoint below.
Catalog read_below(const std::string& path,
                   const formats::ReadOptions& options) {
  const auto followed = follow(path);
  if (!followed)
    throw missing_error({path, {}},
                        "no .metadata, and no step-N with one, is in this "
                        "directory");
  if (followed->name.empty())
    throw_unfinished(look_at(io::join(path, followed->unfinished.back())));
  if (followed->mixed)
    throw usage_error({path, {}},
                      "holds checkpoints that count steps and others that "
                      "count epochs")
        .with_hint("name the one that you mean");
  const std::string below = io::join(path, followed->name);
  const Directory directory = look_at(below);
  Catalog catalog = directory.shards.empty() ? read_indexed(directory, options)
                                             : read_shards(directory, options);
  catalog.root = path;
  catalog.assumptions.insert(
      catalog.assumptions.begin(),
      fmt::format("{}: the newest complete checkpoint in {}",
                  printable(followed->name), printable(path)));
  for (const std::string& name : followed->unfinished)
    catalog.problems.push_back(
        warning("unfinished_save", {io::join(path, name), {}},
                "{} is newer, but an incomplete save; {} is read",
                printable(name), printable(followed->name)));
  return catalog;
}

Support supports(const std::string& path) {
  if (io::is_directory(path)) return supports_directory(path);
  if (!is_part_name(path)) return {false, "not a directory with a .metadata"};
  const bool ours = look_at(io::parent(path)).is_checkpoint();
  return {ours, ours ? "is a part of a distributed checkpoint"
                     : "no .metadata is beside it"};
}

Catalog read_catalog(const std::string& path,
                     const formats::ReadOptions& options) {
  const bool part = !io::is_directory(path);
  const std::string home = part ? io::parent(path) : path;
  const Directory directory = look_at(home);
  if (!directory.is_ours()) return read_below(home, options);
  Catalog catalog = directory.shards.empty() ? read_indexed(directory, options)
                                             : read_shards(directory, options);
  if (catalog.path != path) catalog.root = path;
  if (part)
    catalog.assumptions.push_back(
        fmt::format("{} is a part of the checkpoint in {}, which is read",
                    printable(io::base_name(path)), printable(home)));
  return catalog;
}

}  // namespace

std::unique_ptr<formats::Reader> make_reader() {
  return formats::reader_of(kFormat, supports, read_catalog);
}

}  // namespace ckpt::dcp
