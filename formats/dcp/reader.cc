// SPDX-License-Identifier: Apache-2.0
// A directory of torch.distributed.checkpoint, in any of its flavours
// (directory.h).
#include <algorithm>
#include <set>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/hf/numbered.h"
#include "formats/dcp/dcp.h"
#include "formats/dcp/directory.h"
#include "formats/dcp/flat_params.h"
#include "formats/dcp/hf.h"
#include "formats/dcp/kinds.h"
#include "formats/dcp/metadata.h"
#include "formats/dcp/nest.h"
#include "formats/dcp/unite.h"
#include "formats/fsdp/expand.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::dcp {
namespace {

using formats::Support;
using text::printable;
using Severity = Problem::Severity;

constexpr std::string_view kIndex = ".metadata";

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

class DcpReader final : public formats::Reader {
 public:
  std::string_view name() const override { return kFormat; }

  Support supports(const std::string& path) const override {
    if (io::is_directory(path)) return supports_directory(path);
    if (!is_part_name(path)) return {false, "not a directory with a .metadata"};
    const bool ours = look_at(io::parent(path)).is_checkpoint();
    return {ours, ours ? "is a part of a distributed checkpoint"
                       : "no .metadata is beside it"};
  }

  Catalog read_catalog(const std::string& path,
                       const formats::ReadOptions& options) const override {
    const bool part = !io::is_directory(path);
    const std::string home = part ? io::parent(path) : path;
    const Directory directory = look_at(home);
    if (!directory.is_ours()) return read_below(home, options);
    Catalog catalog = directory.shards.empty()
                          ? read_indexed(directory, options)
                          : read_shards(directory, options);
    if (catalog.path != path) catalog.root = path;
    if (part)
      catalog.assumptions.push_back(
          fmt::format("{} is a part of the checkpoint in {}, which is read",
                      printable(io::base_name(path)), printable(home)));
    return catalog;
  }
};

}  // namespace

std::unique_ptr<formats::Reader> make_reader() {
  return std::make_unique<DcpReader>();
}

}  // namespace ckpt::dcp
