// SPDX-License-Identifier: Apache-2.0
#include "reshard/ranks/share.h"

#include <algorithm>
#include <unordered_map>

#include "ckpt/error.h"
#include "reshard/ranks/split.h"

namespace ckpt::ranks {
namespace {

using reshard::Gather;
using reshard::Item;
using reshard::Job;
using reshard::kNone;
using reshard::Lane;
using reshard::Plan;

// Renumbers things of the whole in the order in which they are met.
class Renumber {
 public:
  uint32_t operator()(uint32_t whole) {
    if (whole == kNone) return kNone;
    const auto [found, added] =
        part_.try_emplace(whole, static_cast<uint32_t>(order_.size()));
    if (added) order_.push_back(whole);
    return found->second;
  }
  const std::vector<uint32_t>& order() const { return order_; }

 private:
  std::unordered_map<uint32_t, uint32_t> part_;
  std::vector<uint32_t> order_;
};

class Maker {
 public:
  Maker(const Plan& plan, const Catalog& source, const Target* target,
        const Mailing& mailing)
      : plan_(plan), source_(source), target_(target) {
    share_.plan.tensors.resize(plan.tensors.size());
    share_.plan.slots = plan.slots;
    share_.mailing = mailing;
    if (!target) return;
    share_.target.files.resize(target->files.size());
    share_.target_crcs.resize(target->files.size());
    for (uint32_t file = 0; file < mailing.owners.size(); ++file)
      if (mailing.owners[file] == mailing.rank) use_target(file);
  }

  Share make(const std::vector<Item>& items) {
    for (const Item& item : items) {
      share_.plan.bytes_read += bytes_of(plan_, item);
      share_.items.push_back(item);
      share_.items.back().index =
          item.gather ? add_gather(item) : add_job(item.index);
    }
    add_files();
    add_crcs();
    add_target_crcs();
    return std::move(share_);
  }

 private:
  void add_tensor(uint32_t tensor) {
    share_.plan.tensors[tensor] = plan_.tensors[tensor];
    if (share_.tensors.empty() || share_.tensors.back() != tensor)
      share_.tensors.push_back(tensor);
  }

  uint32_t add_job(uint32_t index) {
    // Items of one job follow each other.
    if (index == last_job_)
      return static_cast<uint32_t>(share_.plan.jobs.size() - 1);
    last_job_ = index;
    const Job& job = plan_.jobs[index];
    Job part = job;
    const auto size = [](const auto& list) {
      return static_cast<uint32_t>(list.size());
    };
    part.first_source = size(share_.plan.lanes);
    for (uint32_t i = 0; i < job.sources; ++i)
      add_source(plan_.lanes[job.first_source + i]);
    part.first_target = size(share_.plan.lanes);
    for (uint32_t i = 0; i < job.targets; ++i)
      add_target(plan_.lanes[job.first_target + i], job.rows);
    part.first_move = size(share_.plan.moves);
    const auto first = plan_.moves.begin() + job.first_move;
    share_.plan.moves.insert(share_.plan.moves.end(), first, first + job.moves);
    add_tensor(job.tensor);
    share_.plan.jobs.push_back(part);
    return size(share_.plan.jobs) - 1;
  }

  void add_source(Lane lane) {
    lane.file = files_(lane.file);
    share_.plan.lanes.push_back(lane);
  }
  void add_target(const Lane& lane, uint64_t rows) {
    use_target(lane.file);
    touch(lane.file, lane.offset,
          lane.offset + (rows - 1) * lane.row_stride + lane.width);
    share_.plan.lanes.push_back(lane);
  }

  uint32_t add_gather(const Item& item) {
    Gather gather = plan_.gathers[item.index];
    if (item.number == kNone) cut(gather, item.begin, item.end);
    gather.source_file = files_(gather.source_file);
    use_target(gather.target_file);
    uint64_t last = gather.target_offset;
    for (size_t d = 0; d < gather.shape.size(); ++d)
      last += (std::max<uint64_t>(gather.shape[d], 1) - 1) *
              gather.target_strides[d];
    touch(gather.target_file, gather.target_offset, last + 1);
    add_tensor(gather.tensor);
    share_.plan.gathers.push_back(std::move(gather));
    return static_cast<uint32_t>(share_.plan.gathers.size() - 1);
  }

  static void cut(Gather& gather, uint64_t begin, uint64_t end) {
    const size_t d = cut_dimension(gather);
    gather.source_offset += begin * gather.source_strides[d];
    gather.content += begin * gather.content_strides[d];
    if (gather.target_file != kNone)
      gather.target_offset += begin * gather.target_strides[d];
    gather.shape[d] = end - begin;
  }

  void use_target(uint32_t file) {
    if (!target_ || file == kNone) return;
    TargetFile& part = share_.target.files[file];
    if (!part.path.empty()) return;
    part.path = target_->files[file].path;
    part.size = target_->files[file].size;
  }

  // Bytes [begin, end) of a file may be written, so their checksums are needed.
  void touch(uint32_t file, uint64_t begin, uint64_t end) {
    if (!target_ || file == kNone) return;
    const std::vector<LateCrc>& crcs = target_->files[file].crcs.get();
    std::vector<uint32_t>& touched = share_.target_crcs[file];
    auto crc = std::ranges::upper_bound(crcs, begin, {}, &LateCrc::end);
    for (; crc != crcs.end() && crc->begin < end; ++crc) {
      const auto index = static_cast<uint32_t>(crc - crcs.begin());
      if (touched.empty() || touched.back() != index) touched.push_back(index);
    }
  }

  void add_target_crcs() {
    for (uint32_t file = 0; file < share_.target_crcs.size(); ++file) {
      std::vector<uint32_t>& touched = share_.target_crcs[file];
      std::ranges::sort(touched);
      touched.erase(std::unique(touched.begin(), touched.end()), touched.end());
      for (const uint32_t index : touched) {
        const LateCrc& crc = target_->files[file].crcs[index];
        share_.target.files[file].crcs.push_back({crc.begin, crc.end, {}});
      }
    }
  }

  void add_files() {
    for (const uint32_t whole : files_.order())
      share_.source.files.push_back(source_.files.at(whole));
  }

  // Adds all records of the files: a share is a run of them.
  void add_crcs() {
    std::unordered_map<uint32_t, uint32_t> part;
    for (uint32_t i = 0; i < files_.order().size(); ++i)
      part[files_.order()[i]] = i;
    for (uint32_t i = 0; i < source_.crcs.size(); ++i) {
      const StoredCrc& stored = source_.crcs[i];
      const auto file = part.find(stored.file);
      if (file == part.end()) continue;
      share_.source.crcs.push_back(
          {file->second, stored.begin, stored.end, stored.crc32, ""});
      share_.crcs.push_back(i);
    }
  }

  const Plan& plan_;
  const Catalog& source_;
  const Target* target_;
  Share share_;
  Renumber files_;
  uint32_t last_job_ = kNone;
};

}  // namespace

Share make_share(const Plan& plan, const Catalog& source, const Target* target,
                 const std::vector<Item>& items, const Mailing& mailing) {
  return Maker(plan, source, target, mailing).make(items);
}

}  // namespace ckpt::ranks
