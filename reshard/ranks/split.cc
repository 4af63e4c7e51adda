// SPDX-License-Identifier: Apache-2.0
#include "reshard/ranks/split.h"

#include <algorithm>

namespace ckpt::ranks {
namespace {

using reshard::Item;
using reshard::kNone;
using reshard::Plan;

constexpr uint64_t kColumnUnit = 4096;  // in which cut_items cuts columns

// An item as a run of `count` units of `unit` bytes, from `begin` on.
struct Units {
  uint64_t begin = 0;
  uint64_t count = 0;
  uint64_t unit = 1;  // bytes
  uint64_t step = 1;  // of begin and end, for each unit
};

uint64_t row_bytes(const Plan& plan, const reshard::Job& job) {
  uint64_t bytes = 0;
  for (uint32_t i = 0; i < job.sources; ++i)
    bytes += plan.lanes[job.first_source + i].width;
  return std::max<uint64_t>(bytes, 1);
}

uint64_t gather_bytes(const Plan& plan, const reshard::Gather& gather) {
  return element_count(gather.shape).value_or(0) *
         std::max<uint64_t>(
             element_size(plan.tensors[gather.tensor].source_dtype), 1);
}

Units units_of(const Plan& plan, const Item& item) {
  if (item.gather) {
    const reshard::Gather& gather = plan.gathers[item.index];
    const uint64_t all = gather_bytes(plan, gather);
    const uint64_t n =
        gather.shape.empty() ? 1 : gather.shape[cut_dimension(gather)];
    return {0, n, n ? all / n : 0, 1};
  }
  const reshard::Job& job = plan.jobs[item.index];
  const uint64_t rows = item.end - item.begin;
  if (job.rows != 1) return {item.begin, rows, row_bytes(plan, job), 1};
  if (rows <= kColumnUnit) return {item.begin, 1, rows, rows};
  return {item.begin, (rows + kColumnUnit - 1) / kColumnUnit, kColumnUnit,
          kColumnUnit};
}

// Units [from, to) of an item; if that is all of them, the item itself.
Item part_of(const Item& item, const Units& units, uint64_t from, uint64_t to) {
  if (from == 0 && to == units.count) return item;
  Item part = item;
  part.number = kNone;
  part.begin = units.begin + from * units.step;
  part.end = units.begin + to * units.step;
  // The last unit of a row of columns may be short.
  if (to == units.count && !item.gather) part.end = item.end;
  return part;
}

uint32_t first_file(const Plan& plan, const Item& item) {
  if (item.gather) return plan.gathers[item.index].source_file;
  const reshard::Job& job = plan.jobs[item.index];
  return job.sources ? plan.lanes[job.first_source].file : kNone;
}

bool is_packed(const Catalog& source, uint32_t file) {
  if (file >= source.files.size()) return false;
  const Codec codec = source.files[file].codec;
  return codec != Codec::kRaw && codec != Codec::kMemory &&
         codec != Codec::kFill;
}

// Deals out items: keeps track of the bytes dealt and of whose turn it is.
class Dealer {
 public:
  Dealer(const Plan& plan, uint64_t total, uint32_t ranks)
      : plan_(plan), total_(total), shares_(ranks) {}

  void deal(const Item& item) {
    const Units units = units_of(plan_, item);
    for (uint64_t done = 0; done < units.count || units.count == 0;) {
      const uint64_t left = units.count - done;
      const uint64_t take =
          last() ? left
                 : std::min(left, (room() + units.unit / 2) /
                                      std::max<uint64_t>(units.unit, 1));
      if (take == 0 && left != 0) {
        ++rank_;
        continue;
      }
      shares_[rank_].push_back(part_of(item, units, done, done + take));
      given_ += bytes_of(plan_, shares_[rank_].back());
      done += take;
      if (units.count == 0) break;
    }
  }

  // Deals all or nothing: to the rank in turn if at least half fits.
  void deal_whole(const std::vector<Item>& items, uint64_t bytes) {
    while (!last() && room() < bytes / 2) ++rank_;
    shares_[rank_].insert(shares_[rank_].end(), items.begin(), items.end());
    given_ += bytes;
  }

  std::vector<std::vector<Item>> take() { return std::move(shares_); }

 private:
  bool last() const { return rank_ + 1 == shares_.size(); }
  // Bytes up to the end of the current rank's share. Uses 128 bits: the bytes
  // of a checkpoint times a number of ranks.
  uint64_t room() const {
    const auto end = static_cast<uint64_t>(
        static_cast<unsigned __int128>(total_) * (rank_ + 1) / shares_.size());
    return end > given_ ? end - given_ : 0;
  }

  const Plan& plan_;
  const uint64_t total_;
  uint64_t given_ = 0;
  uint32_t rank_ = 0;
  std::vector<std::vector<Item>> shares_;
};

}  // namespace

size_t cut_dimension(const reshard::Gather& gather) {
  size_t best = 0;
  for (size_t d = 1; d < gather.shape.size(); ++d)
    if ((gather.shape[d] - 1) * gather.source_strides[d] >
        (gather.shape[best] - 1) * gather.source_strides[best])
      best = d;
  return best;
}

uint64_t bytes_of(const Plan& plan, const Item& item) {
  const Units units = units_of(plan, item);
  if (item.gather && item.number != kNone)
    return gather_bytes(plan, plan.gathers[item.index]);
  if (item.gather) return (item.end - item.begin) * units.unit;
  const uint64_t span = item.end - item.begin;
  return plan.jobs[item.index].rows == 1 ? span : span * units.unit;
}

std::vector<std::vector<Item>> split(const Plan& plan, const Catalog& source,
                                     std::vector<Item> items, uint32_t ranks) {
  uint64_t total = 0;
  for (const Item& item : items) total += bytes_of(plan, item);
  Dealer dealer(plan, total, ranks);
  for (size_t i = 0; i < items.size();) {
    const uint32_t file = first_file(plan, items[i]);
    if (!is_packed(source, file)) {
      dealer.deal(items[i++]);
      continue;
    }
    std::vector<Item> together;
    uint64_t bytes = 0;
    for (; i < items.size() && first_file(plan, items[i]) == file; ++i) {
      bytes += bytes_of(plan, items[i]);
      together.push_back(items[i]);
    }
    dealer.deal_whole(together, bytes);
  }
  return dealer.take();
}

}  // namespace ckpt::ranks
