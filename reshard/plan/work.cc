// SPDX-License-Identifier: Apache-2.0
#include "reshard/plan/work.h"

#include <algorithm>
#include <exception>
#include <thread>

#include "lib/parallel.h"

namespace ckpt::reshard {
namespace {

uint64_t row_bytes(const Plan& plan, const Job& job) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < job.sources; ++i)
    bytes += plan.lanes[job.first_source + i].width;
  return std::max<uint64_t>(bytes, 1);
}

uint32_t source_file(const Plan& plan, const Item& item) {
  return item.gather ? plan.gathers[item.index].source_file
                     : plan.lanes[plan.jobs[item.index].first_source].file;
}

uint32_t target_file(const Plan& plan, const Item& item) {
  if (item.gather) return plan.gathers[item.index].target_file;
  const Job& job = plan.jobs[item.index];
  return job.targets ? plan.lanes[job.first_target].file : kNone;
}

// Groups that are searched for one whose target nobody is writing.
constexpr size_t kGroupsInSight = 64;
// Items of a group that are searched for one that is ready.
constexpr size_t kItemsInSight = 32;

}  // namespace

std::vector<Item> cut_items(const Plan& plan, uint64_t bytes) {
  std::vector<Item> items;
  for (uint32_t j = 0; j < plan.jobs.size(); ++j) {
    const Job& job = plan.jobs[j];
    const uint64_t row = row_bytes(plan, job);
    const uint64_t all = job.rows == 1 ? row : job.rows;
    // Columns are cut at multiples of 4 KiB: whole pages, whole elements.
    const uint64_t step = job.rows == 1
                              ? std::max<uint64_t>(bytes / 4096, 1) * 4096
                              : std::max<uint64_t>(bytes / row, 1);
    for (uint64_t at = 0; at < all; at += step)
      items.push_back({j, false, at, std::min(all, at + step)});
  }
  for (uint32_t g = 0; g < plan.gathers.size(); ++g)
    items.push_back({g, true, 0, 0});
  for (uint32_t i = 0; i < items.size(); ++i) items[i].number = i;
  return items;
}

WorkQueue::WorkQueue(const Plan& plan, std::vector<Item> items,
                     uint32_t threads)
    : plan_(plan), items_(std::move(items)), threads_(threads) {
  for (size_t i = 0; i < items_.size(); ++i) {
    const bool same =
        i && source_file(plan, items_[i]) == source_file(plan, items_[i - 1]);
    if (!same) groups_.push_back({i, i, false});
    ++groups_.back().end;
  }
}

bool WorkQueue::is_written(uint32_t target, uint32_t but_by) const {
  if (target == kNone) return false;
  for (uint32_t t = 0; t < threads_.size(); ++t)
    if (t != but_by && threads_[t].target == target) return true;
  return false;
}

uint32_t WorkQueue::untaken_group(uint32_t thread) {
  while (next_group_ < groups_.size() && groups_[next_group_].taken)
    ++next_group_;
  if (next_group_ == groups_.size()) return kNone;
  const size_t end = std::min(groups_.size(), next_group_ + kGroupsInSight);
  for (size_t g = next_group_; g < end; ++g)
    if (!groups_[g].taken &&
        !is_written(target_file(plan_, items_[groups_[g].begin]), thread))
      return static_cast<uint32_t>(g);
  return static_cast<uint32_t>(next_group_);
}

// Those that were passed over stay in order, and come first the next time.
Item WorkQueue::take_first(Group& group, const Ready& ready) {
  const auto begin = items_.begin() + static_cast<ptrdiff_t>(group.begin);
  const auto end = begin + static_cast<ptrdiff_t>(std::min(
                               group.end - group.begin, kItemsInSight));
  const auto found = ready ? std::find_if(begin, end, ready) : begin;
  if (found != end) std::rotate(begin, found, found + 1);
  return items_[group.begin++];
}

std::optional<Item> WorkQueue::next(uint32_t thread, const Ready& ready) {
  const std::lock_guard lock(mutex_);
  if (stopped_) return std::nullopt;
  Thread& own = threads_.at(thread);
  const auto give = [&](const Item& item) {
    own.target = target_file(plan_, item);
    return item;
  };
  if (own.group != kNone && groups_[own.group].begin < groups_[own.group].end)
    return give(take_first(groups_[own.group], ready));
  own.group = untaken_group(thread);
  if (own.group != kNone) {
    groups_[own.group].taken = true;
    return give(take_first(groups_[own.group], ready));
  }
  own.target = kNone;
  const size_t longest = longest_group();
  if (longest == groups_.size()) return std::nullopt;
  return give(items_[--groups_[longest].end]);
}

size_t WorkQueue::longest_group() const {
  const auto longest = std::ranges::max_element(
      groups_, {}, [](const Group& g) { return g.end - g.begin; });
  if (longest == groups_.end() || longest->begin == longest->end)
    return groups_.size();
  return static_cast<size_t>(longest - groups_.begin());
}

std::vector<Item> WorkQueue::peek(uint32_t thread, size_t most) {
  const std::lock_guard lock(mutex_);
  std::vector<Item> items;
  const auto add = [&](uint32_t group) {
    if (group == kNone) return;
    const auto [begin, end, _] = groups_[group];
    for (size_t i = begin; i < end && items.size() < most; ++i)
      items.push_back(items_[i]);
  };
  add(threads_.at(thread).group);
  const uint32_t untaken = items.size() < most ? untaken_group(thread) : kNone;
  add(untaken);
  // Where each file has few items, as zarr's chunks have, the next groups, too:
  // whichever thread takes them finds them on their way.
  if (untaken != kNone)
    for (size_t g = next_group_; g < groups_.size() && items.size() < most; ++g)
      if (!groups_[g].taken && g != untaken) add(static_cast<uint32_t>(g));
  if (untaken != kNone || items.size() == most) return items;
  const size_t longest = longest_group();
  if (longest == groups_.size() || longest == threads_.at(thread).group)
    return items;
  const auto [begin, end, _] = groups_[longest];
  for (size_t i = end; i > begin && items.size() < most; --i)
    items.push_back(items_[i - 1]);
  return items;
}

std::vector<Item> WorkQueue::rest() {
  const std::lock_guard lock(mutex_);
  std::vector<Item> items;
  for (const Group& group : groups_)
    for (size_t i = group.begin; i < group.end; ++i) items.push_back(items_[i]);
  return items;
}

void run_threads(uint32_t threads, const std::function<void(uint32_t)>& work,
                 const std::function<void()>& stop) {
  std::mutex mutex;
  std::exception_ptr first;
  const auto guarded = [&](uint32_t thread) {
    try {
      work(thread);
    } catch (...) {
      const std::lock_guard lock(mutex);
      if (!first) {
        first = std::current_exception();
        stop();
      }
    }
  };
  std::vector<std::jthread> others;
  for (uint32_t t = 1; t < threads; ++t)
    if (!try_thread(others, [&guarded, t] { guarded(t); })) break;
  guarded(0);
  others.clear();
  if (first) std::rethrow_exception(first);
}

}  // namespace ckpt::reshard
