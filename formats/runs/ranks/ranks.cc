// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/ranks/ranks.h"

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "ckpt/error.h"
#include "formats/runs/find/file_names.h"
#include "formats/runs/find/pattern.h"
#include "formats/runs/merge.h"
#include "formats/runs/ranks/mesh.h"
#include "formats/torch/torch.h"
#include "lib/in_order.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::runs {
namespace {

using text::printable;

constexpr std::string_view kOfOneFile[] = {"missing_parts"};

// True if the only piece is whole, as in one rank's file.
bool is_whole(const Tensor& tensor) {
  return tensor.pieces.size() == 1 && !tensor.pieces[0].flat &&
         tensor.pieces[0].box == Box::whole(tensor.shape);
}

bool is_run(const Tensor& tensor) {
  if (tensor.shape.empty() || !whole_number(tensor.param)) return true;
  if (tensor.shape.size() != 1) return false;
  return tensor.shape[0] == 0 ||
         (is_whole(tensor) && tensor.pieces[0].extent.strides.empty());
}

// Joins the ranks' tensors of the same name.
class Joiner {
 public:
  Joiner(RankCatalog& out, const Shards* shards) : out_(out), join_(shards) {
    if (shards) out_.shards = *shards;
  }

  void add(const std::string& path, uint64_t rank, Catalog one) {
    Catalog& all = out_.catalog;
    std::vector<Tensor> tensors = std::move(one.tensors);
    one.tensors.clear();
    if (rank > 0) one.objects.clear();
    // FSDP1 has only runs; an FSDP2 DTensor may be whole on one rank too.
    if (rank == 0) join_ = join_ && std::ranges::all_of(tensors, is_run);
    const auto files = static_cast<uint32_t>(all.files.size());
    Merger(all).add(std::move(one), kOfOneFile);
    for (Tensor& tensor : tensors) {
      for (Piece& piece : tensor.pieces) piece.extent.file += files;
      tensor.tie = 0;
      add(path, rank, std::move(tensor));
    }
  }

  void finish(const std::vector<std::string>& paths) {
    const bool runs = std::ranges::any_of(entries_, &Entry::run);
    for (size_t t = 0; t < entries_.size(); ++t) {
      Entry& entry = entries_[t];
      // A rank without a state: name_shares() tells whether it has to have it.
      if (runs && entry.joined) {
        entry.pieces.resize(paths.size());
        join(t, entry);
      } else if (entry.count != paths.size()) {
        refuse_lost(paths, t, entry);
      }
    }
  }

 private:
  struct Entry {
    bool joined = false;  // it is a share
    bool run = false;
    uint64_t count = 0;                        // of ranks
    std::optional<uint64_t> lost;              // the first rank without it
    std::vector<std::optional<Piece>> pieces;  // by rank
  };

  void add(const std::string& path, uint64_t rank, Tensor tensor) {
    auto& tensors = out_.catalog.tensors;
    const bool joined =
        join_ && is_run(tensor) && whole_number(tensor.param).has_value();
    const bool run = joined && tensor.shape.size() == 1;
    const auto [it, first] = index_.try_emplace(tensor.name, tensors.size());
    if (first) {
      entries_.push_back({.joined = joined, .run = run});
      tensors.push_back(tensor);
    }
    Entry& entry = entries_[it->second];
    Tensor& whole = tensors[it->second];
    if (run != entry.run || whole.dtype != tensor.dtype)
      throw input_error({path, printable(tensor.name)},
                        "is {} {}, in the files of other ranks {} {}",
                        name(tensor.dtype), to_string(tensor.shape),
                        name(whole.dtype), to_string(whole.shape));
    if (!run && whole.shape != tensor.shape)
      throw input_error({path, printable(tensor.name)},
                        "has shape {}, in the files of other ranks {}",
                        to_string(tensor.shape), to_string(whole.shape));
    if (entry.count != rank && !entry.lost) entry.lost = entry.count;
    ++entry.count;
    if (joined) {
      entry.pieces.resize(rank);
      entry.pieces.emplace_back(tensor.pieces.empty() ? Piece()
                                                      : tensor.pieces[0]);
      if (run) entry.pieces.back()->box = Box::whole(tensor.shape);
    }
    if (!first)
      std::ranges::move(tensor.pieces, std::back_inserter(whole.pieces));
  }

  // Each part begins where the one before ends; replicas begin where it does.
  void join(size_t t, const Entry& entry) {
    Tensor& whole = out_.catalog.tensors[t];
    const Shards& shards = out_.shards;
    RankCatalog::Share share{.tensor = t, .run = entry.run, .lengths = {}};
    std::vector<uint64_t> ends(shards.count);
    for (size_t r = 0; r < entry.pieces.size(); ++r) {
      auto& length = share.lengths.emplace_back();
      if (!entry.pieces[r]) continue;
      length = entry.run ? entry.pieces[r]->box.shape[0] : 1;
      uint64_t& end = ends[shards.of_rank[r]];
      end = std::max(end, *length);
    }
    if (entry.run) {
      uint64_t sum = 0;
      for (uint64_t& end : ends) {
        const auto next = checked_add(sum, end);
        if (!next || !byte_size(whole.dtype, Shape({*next})))
          throw input_error({out_.catalog.path, printable(whole.name)},
                            "overflows");
        end = std::exchange(sum, *next);  // where the part begins
      }
      whole.shape[0] = sum;
      whole.pieces.clear();
      for (size_t r = 0; r < entry.pieces.size(); ++r) {
        if (share.lengths[r].value_or(0) == 0) continue;
        whole.pieces.push_back(*entry.pieces[r]);
        whole.pieces.back().box.offset[0] = ends[shards.of_rank[r]];
      }
    }
    out_.shares.push_back(std::move(share));
  }

  // DTensors are in the file of each rank, empty ones too.
  void refuse_lost(const std::vector<std::string>& paths, size_t t,
                   const Entry& entry) const {
    throw input_error({paths[entry.lost.value_or(entry.count)],
                       printable(out_.catalog.tensors[t].name)},
                      "is not there, but in the files of {} of {} ranks",
                      entry.count, paths.size())
        .with_hint("the files are of different saves; fetch them again");
  }

  RankCatalog& out_;
  bool join_;
  std::map<std::string, size_t> index_;  // in the catalog
  std::vector<Entry> entries_;           // by tensor
};

// Where the ranks' files belong, as the first DTensor of each says.
class Places {
 public:
  using Numbers = std::vector<uint64_t>;

  void add(const Catalog& one) {
    auto& place = places_.emplace_back();
    if (!one.skeleton || !one.skeleton->document) return;
    const pickle::Document& document = *one.skeleton->document;
    for (const auto& [node, name] : one.skeleton->tensors) {
      if (const auto dtensor = find_dtensor(document, node))
        place = place_on_mesh(document, dtensor->spec);
      if (place) return;
    }
  }

  // Rank r has part r unless the meshes say otherwise: each part as often.
  Shards shards() const {
    Shards shards = one_part_each(places_.size());
    std::map<Numbers, std::set<Numbers>> replicas;  // by part
    std::set<size_t> dims;
    for (const auto& place : places_) {
      if (!place) return shards;
      dims.insert(place->part.size());
      replicas[place->part].insert(place->replica);
    }
    if (dims.size() != 1) return shards;
    const size_t each = replicas.begin()->second.size();
    if (replicas.size() * each != places_.size()) return shards;
    for (const auto& [part, who] : replicas)
      if (who.size() != each) return shards;
    shards.count = replicas.size();
    for (size_t r = 0; r < places_.size(); ++r)
      shards.of_rank[r] = static_cast<uint64_t>(
          std::distance(replicas.begin(), replicas.find(places_[r]->part)));
    return shards;
  }

 private:
  std::vector<std::optional<MeshPlace>> places_;  // by rank
};

}  // namespace

std::optional<RankFiles> rank_files(const std::string& folder,
                                    const std::string& pattern) {
  const std::vector<Name> names = names_like(folder, pattern);
  if (names.empty()) return std::nullopt;
  RankFiles files;
  std::set<uint64_t> worlds;
  std::map<uint64_t, std::string> by_rank;
  for (const Name& name : names) {
    worlds.insert(name.numbers.at("W"));
    by_rank.emplace(name.numbers.at("r"), name.path);
  }
  if (worlds.size() > 1)
    throw input_error({folder, {}},
                      "holds files of ranks of {} and of {} world sizes: {} "
                      "and others of {}",
                      *worlds.begin(), *worlds.rbegin(),
                      printable(names.front().path),
                      printable(names.back().path))
        .with_hint(
            "two saves are in one folder; move the files of the older one "
            "away");
  files.world = *worlds.begin();
  constexpr uint64_t kMostRanks = 1 << 20;
  if (files.world == 0 || files.world > kMostRanks ||
      by_rank.rbegin()->first >= files.world)
    throw input_error({folder, {}}, "holds {}, a rank outside of the world",
                      printable(by_rank.rbegin()->second));
  for (uint64_t rank = 0; rank < files.world; ++rank) {
    const auto found = by_rank.find(rank);
    if (found == by_rank.end())
      throw input_error(
          {io::join(folder, fill(pattern, {{"W", files.world}, {"r", rank}})),
           {}},
          "is missing: {} of {} ranks are there", by_rank.size(), files.world)
          .with_hint("fetch the files of all ranks");
    files.names.push_back(found->second);
  }
  return files;
}

Shards one_part_each(uint64_t ranks) {
  Shards shards{.count = ranks, .of_rank = {}};
  for (uint64_t r = 0; r < ranks; ++r) shards.of_rank.push_back(r);
  return shards;
}

RankCatalog read_ranks(const std::string& folder, const RankFiles& files,
                       const Shards* shards,
                       const formats::ReadOptions& options) {
  RankCatalog out;
  const auto reader = torch::make_reader();
  formats::ReadOptions rank_options = options;
  rank_options.rank_files = true;
  const auto paths = io::join_each(folder, files.names);
  Joiner joiner(out, shards);
  Places places;
  in_order<Catalog>(
      paths.size(),
      [&](size_t r) { return reader->read_catalog(paths[r], rank_options); },
      [&](size_t r, Catalog one) {
        if (r == 0 && one.skeleton) out.document = one.skeleton->document;
        if (shards == nullptr) places.add(one);
        joiner.add(paths[r], r, std::move(one));
      });
  joiner.finish(paths);
  if (shards == nullptr) out.shards = places.shards();
  out.catalog.topology.dp = static_cast<uint32_t>(files.world);
  return out;
}

}  // namespace ckpt::runs
