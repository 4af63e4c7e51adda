#include "reshard/work.h"

#include <algorithm>
#include <exception>
#include <thread>

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

WorkQueue::WorkQueue(const Plan& plan, std::vector<Item> items)
    : items_(std::move(items)) {
  for (size_t i = 0; i < items_.size(); ++i) {
    const bool same =
        i && source_file(plan, items_[i]) == source_file(plan, items_[i - 1]);
    if (!same) groups_.push_back({i, i, false});
    ++groups_.back().end;
  }
}

std::optional<Item> WorkQueue::next(uint32_t& group) {
  const std::lock_guard lock(mutex_);
  if (stopped_) return std::nullopt;
  if (group != kNone && groups_[group].begin < groups_[group].end)
    return items_[groups_[group].begin++];
  while (next_group_ < groups_.size() && groups_[next_group_].taken)
    ++next_group_;
  if (next_group_ < groups_.size()) {
    group = static_cast<uint32_t>(next_group_);
    groups_[group].taken = true;
    return items_[groups_[group].begin++];
  }
  const auto longest = std::ranges::max_element(
      groups_, {}, [](const Group& g) { return g.end - g.begin; });
  if (longest == groups_.end() || longest->begin == longest->end)
    return std::nullopt;
  return items_[--longest->end];
}

std::optional<Item> WorkQueue::peek(uint32_t group) {
  const std::lock_guard lock(mutex_);
  if (group == kNone || groups_[group].begin == groups_[group].end)
    return std::nullopt;
  return items_[groups_[group].begin];
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
    others.emplace_back([&guarded, t] { guarded(t); });
  guarded(0);
  others.clear();
  if (first) std::rethrow_exception(first);
}

}  // namespace ckpt::reshard
