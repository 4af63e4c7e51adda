// SPDX-License-Identifier: Apache-2.0
#include "api/saver.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <string_view>
#include <thread>

#include "api/memory.h"
#include "ckpt/trees.h"
#include "formats/megatron/model/keys.h"
#include "formats/traits.h"
#include "lib/pickle/value.h"

namespace ckpt {
namespace {

bool is_main(const std::vector<uint64_t>& replica) {
  return std::ranges::all_of(replica, [](uint64_t n) { return n == 0; });
}

// An order for the boxes of a tensor.
struct ByBox {
  bool operator()(const Box& a, const Box& b) const {
    if (const auto order = a.offset <=> b.offset; order != 0) return order < 0;
    return (a.shape <=> b.shape) < 0;
  }
};

// Checks that every box has one main replica. (The planner proves that these
// cover the tensor and don't overlap.)
void check_replicas(const std::string& name,
                    const std::vector<const ShardedTensor*>& shards) {
  std::map<Box, uint64_t, ByBox> mains;
  for (const ShardedTensor* shard : shards)
    mains[shard->box] += is_main(shard->replica);
  for (const auto& [box, count] : mains) {
    if (count == 1 || volume(box) == 0) continue;
    throw unfaithful_error({{}, name},
                           "the box at {} of shape {} has {} main replicas, "
                           "one is needed",
                           to_string(box.offset), to_string(box.shape), count)
        .with_hint("the main replica is the one whose replica numbers are 0");
  }
}

void check_tensors(const std::vector<ShardedTensor>& shards) {
  std::map<std::string_view, std::vector<const ShardedTensor*>> by_name;
  for (const ShardedTensor& shard : shards)
    by_name[shard.name].push_back(&shard);
  for (const auto& [name, all] : by_name)
    check_replicas(std::string(name), all);
}

// torch has no grids: each rank's values have keys of their own there.
std::string unique_key(const ShardedObject& object, bool megatron) {
  if (object.grid.empty()) return object.key;
  if (megatron) return megatron::object_key(object.key, object.at, object.grid);
  return fmt::format("{}.{}", object.key, fmt::join(object.at, "."));
}

// Grids of objects must be complete, each entry with one main replica.
class Objects {
 public:
  explicit Objects(bool megatron) : megatron_(megatron) {}

  void add(const ShardedObject& object) {
    check(object);
    Grid& grid =
        grids_.try_emplace(object.key, Grid{object.grid, {}}).first->second;
    if (grid.shape != object.grid)
      throw unfaithful_error({{}, object.key},
                             "one rank says a grid of {}, another of {}",
                             to_string(grid.shape), to_string(object.grid));
    uint64_t& mains = grid.mains[object.at];
    mains += is_main(object.replica);
    if (mains > 1)
      throw unfaithful_error({{}, unique_key(object, megatron_)},
                             "two ranks say that theirs is the main replica");
    if (is_main(object.replica))
      objects_.push_back(
          object_from_json(unique_key(object, megatron_), object.json));
  }

  std::vector<Object> finish() {
    for (const auto& [key, grid] : grids_) {
      const auto mains = std::accumulate(
          grid.mains.begin(), grid.mains.end(), uint64_t{0},
          [](uint64_t sum, const auto& entry) { return sum + entry.second; });
      const uint64_t wanted = element_count(grid.shape).value_or(0);
      if (mains != wanted)
        throw unfaithful_error({{}, key},
                               "{} of the {} objects of its grid are given",
                               mains, wanted);
    }
    return std::move(objects_);
  }

 private:
  struct Grid {
    Dims shape;
    std::map<Dims, uint64_t> mains;
  };

  static void check(const ShardedObject& object) {
    bool inside = object.at.size() == object.grid.size();
    for (size_t d = 0; inside && d < object.at.size(); ++d)
      inside = object.at[d] < object.grid[d];
    if (!inside)
      throw usage_error({{}, object.key},
                        "there is no entry {} in a grid of {}",
                        to_string(object.at), to_string(object.grid));
  }

  const bool megatron_;
  std::map<std::string, Grid> grids_;
  std::vector<Object> objects_;
};

// The entries of a JSON object.
std::vector<Object> entries_of(const std::string& json) {
  std::vector<Object> entries;
  if (json.empty()) return entries;
  const Object all = object_from_json("common", json);
  if (!all.document->is(all.node, pickle::Type::kDict))
    throw usage_error({}, "the common part is not a JSON object");
  const auto pairs = all.document->items(all.node);
  for (size_t i = 0; i + 1 < pairs.size(); i += 2) {
    Object entry{.name = std::string(all.document->text(pairs[i]))};
    entry.document = all.document;
    entry.node = pairs[i + 1];
    entries.push_back(std::move(entry));
  }
  return entries;
}

Catalog catalog_of(std::vector<RankState> ranks, const Layout& layout) {
  std::vector<ShardedTensor> shards;
  for (RankState& rank : ranks)
    for (ShardedTensor& shard : rank.tensors)
      shards.push_back(std::move(shard));
  check_tensors(shards);
  // The main replica is the one that is read, so it comes first.
  std::stable_partition(
      shards.begin(), shards.end(),
      [](const ShardedTensor& shard) { return is_main(shard.replica); });
  return library::catalog_of(std::move(shards), std::move(ranks), layout);
}

}  // namespace

Catalog library::catalog_of(std::vector<ShardedTensor> shards,
                            std::vector<RankState> ranks,
                            const Layout& layout) {
  Objects objects(formats::traits_of(layout.format).sharded_objects);
  for (RankState& rank : ranks)
    for (const ShardedObject& object : rank.objects) objects.add(object);
  Catalog catalog = library::catalog_of(shards);
  catalog.topology = layout.topology;
  catalog.objects = entries_of(ranks[0].common);
  std::ranges::move(objects.finish(), std::back_inserter(catalog.objects));
  for (auto& [name, text] : ranks[0].files)
    catalog.sidecars.push_back(
        {.name = name,
         .path = "made:" + name,
         .size = text.size(),
         .text = std::make_shared<const std::string>(std::move(text))});
  std::set<std::string_view> names;
  for (const Object& object : catalog.objects)
    if (!names.insert(object.name).second)
      throw unfaithful_error({{}, object.name},
                             "an object and a value of the common part would "
                             "have this name")
          .with_hint(
              "give one of them another key, or put the object on a "
              "grid");
  return catalog;
}

void library::tell_left_out(const Target& target, const SaveOptions& options) {
  for (const Problem& problem : target.problems) {
    if (problem.kind != "object_left_out" &&
        problem.kind != "object_without_place")
      continue;
    const bool named = !problem.tensor.empty();  // or there are several
    if (!options.note)
      throw unfaithful_error(
          {{}, problem.tensor}, "{}would be left out of {}: {}",
          named ? "" : "values ", target.catalog.format, problem.message)
          .with_hint(
              "save it elsewhere, or set SaveOptions::note, which is then told "
              "of each value that is left out");
    options.note(named ? problem.tensor + ": " + problem.message
                       : problem.message);
  }
}

struct Saver::State {
  Layout layout;
  std::string path;
  SaveOptions options;

  std::mutex mutex;
  std::vector<std::optional<RankState>> ranks;
  size_t waiting_for = 0;
  std::promise<Preview> promise;
  std::shared_future<Preview> future;
  std::jthread worker;

  void run() {
    try {
      std::vector<RankState> all;
      std::vector<std::shared_ptr<const void>> owners;  // of bytes, to the end
      for (auto& rank : ranks) {
        owners.push_back(rank->owner);
        all.push_back(std::move(*rank));
      }
      promise.set_value(library::run(catalog_of(std::move(all), layout), layout,
                                     path, options, [&](const Target& target) {
                                       library::tell_left_out(target, options);
                                     }));
    } catch (...) {
      promise.set_exception(std::current_exception());
    }
  }
};

Saver::Saver(uint32_t ranks, Layout layout, std::string path,
             SaveOptions options)
    : state_(std::make_unique<State>()) {
  if (ranks == 0) throw usage_error({path, {}}, "a save of no ranks");
  state_->layout = std::move(layout);
  state_->path = std::move(path);
  state_->options = std::move(options);
  state_->ranks.resize(ranks);
  state_->waiting_for = ranks;
  state_->future = state_->promise.get_future().share();
}

Saver::~Saver() {
  // Tells those who wait for ranks that will not come.
  const std::lock_guard lock(state_->mutex);
  if (state_->waiting_for == 0) return;
  state_->promise.set_exception(std::make_exception_ptr(usage_error(
      {state_->path, {}}, "the save was given up: {} of {} ranks did not come",
      state_->waiting_for, state_->ranks.size())));
}

std::shared_future<Preview> Saver::save_async(uint32_t rank, RankState state) {
  const std::lock_guard lock(state_->mutex);
  if (rank >= state_->ranks.size())
    throw usage_error({state_->path, {}}, "rank {} of {}", rank,
                      state_->ranks.size());
  if (state_->ranks[rank])
    throw usage_error({state_->path, {}}, "rank {} came a second time", rank);
  state_->ranks[rank] = std::move(state);
  if (--state_->waiting_for == 0)
    state_->worker = std::jthread([all = state_.get()] { all->run(); });
  return state_->future;
}

void Saver::save(uint32_t rank, RankState state) {
  save_async(rank, std::move(state)).get();
}

}  // namespace ckpt
