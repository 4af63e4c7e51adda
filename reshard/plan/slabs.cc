// SPDX-License-Identifier: Apache-2.0
#include "reshard/plan/slabs.h"

#include <algorithm>

#include "ckpt/error.h"

namespace ckpt::reshard {
namespace {

// The rects that contain row `row`, updated as rows advance: sorted once by
// begin, added and removed as the sweep passes them.
class Sweep {
 public:
  explicit Sweep(std::vector<Rect>& rects) {
    for (Rect& rect : rects) waiting_.push_back(&rect);
    std::ranges::stable_sort(waiting_, {}, &Rect::row_begin);
  }
  // Active rects in order of their columns.
  const std::vector<Rect*>& at(uint64_t row) {
    const size_t before = active_.size();
    std::erase_if(active_, [&](const Rect* r) { return r->row_end <= row; });
    bool changed = active_.size() != before;
    for (; next_ < waiting_.size() && waiting_[next_]->row_begin <= row;
         ++next_) {
      if (waiting_[next_]->row_end <= row) continue;
      active_.push_back(waiting_[next_]);
      changed = true;
    }
    if (changed) std::ranges::stable_sort(active_, {}, &Rect::begin);
    return active_;
  }

 private:
  std::vector<Rect*> waiting_;
  std::vector<Rect*> active_;
  size_t next_ = 0;
};

std::vector<uint64_t> row_cuts(const std::vector<Rect>& sources,
                               const std::vector<Rect>& targets) {
  std::vector<uint64_t> cuts;
  for (const auto* rects : {&sources, &targets})
    for (const Rect& rect : *rects) {
      cuts.push_back(rect.row_begin);
      cuts.push_back(rect.row_end);
    }
  std::ranges::sort(cuts);
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  return cuts;
}

// The elements that one source lane contributes to one target lane in a slab.
struct Share {
  uint32_t source = 0;  // indexes into the active lists
  uint32_t target = 0;
  uint64_t begin = 0, end = 0;  // columns
};

class Slab {
 public:
  Slab(const Cells& cells, uint64_t columns, uint64_t content, Plan& plan)
      : cells_(cells), columns_(columns), content_(content), plan_(plan) {}

  void add(uint64_t row, uint64_t row_end, const std::vector<Rect*>& sources,
           const std::vector<Rect*>& targets) {
    row_ = row;
    rows_ = row_end - row;
    sources_ = &sources;
    targets_ = &targets;
    if (source_hulls_.size() < sources.size())
      source_hulls_.resize(sources.size());
    if (target_hulls_.size() < targets.size())
      target_hulls_.resize(targets.size());
    check_disjoint();
    share();
    if (shares_.empty()) return;
    // With one row, each source range is a separate job, read once and written
    // to all targets that want it.
    if (rows_ == 1) std::ranges::stable_sort(shares_, {}, &Share::source);
    std::span<const Share> rest(shares_);
    while (!rest.empty()) {
      const size_t count =
          rows_ == 1 ? of_one_source(rest) : of_one_block(rest);
      emit(rest.first(count));
      rest = rest.subspan(count);
    }
  }

 private:
  void check_disjoint() const {
    for (size_t i = 1; i < sources_->size(); ++i)
      if ((*sources_)[i]->begin < (*sources_)[i - 1]->end)
        throw unfaithful_error(
            {cells_.path, plan_.tensors[cells_.index].name},
            "element {} is stored in two pieces that are not the same",
            content_ + row_ * columns_ + (*sources_)[i]->begin);
  }

  // Sources are disjoint and sorted, so each target overlaps a run of them.
  void share() {
    shares_.clear();
    for (uint32_t t = 0; t < targets_->size(); ++t) {
      Rect& target = *(*targets_)[t];
      auto s = std::ranges::upper_bound(*sources_, target.begin, {},
                                        [](const Rect* r) { return r->end; });
      for (; s != sources_->end() && (*s)->begin < target.end; ++s) {
        const Share share{static_cast<uint32_t>(s - sources_->begin()), t,
                          std::max((*s)->begin, target.begin),
                          std::min((*s)->end, target.end)};
        target.covered += rows_ * (share.end - share.begin);
        shares_.push_back(share);
      }
    }
  }

  static size_t of_one_source(std::span<const Share> shares) {
    size_t count = 1;
    while (count < shares.size() && shares[count].source == shares[0].source)
      ++count;
    return count;
  }

  // Lanes that overlap none of the first ones become a separate job: columns of
  // 4 ranks for 8 are 4 jobs of one file and two, with longer reads and writes
  // than one job of 4 and 8, and files that two threads need not share. Shares
  // are ordered by target, and the targets' first sources never decrease.
  static size_t of_one_block(std::span<const Share> shares) {
    size_t count = 0;
    uint32_t target = shares[0].target, last = shares[0].source;
    for (; count < shares.size(); ++count) {
      const Share& share = shares[count];
      if (share.target != target && share.source > last) break;
      target = share.target;
      last = std::max(last, share.source);
    }
    return count;
  }

  // A rect in a job: the hull of its shared columns, and its lane's number.
  struct Hull {
    uint64_t begin = UINT64_MAX, end = 0;
    uint32_t lane = kNone;
    void widen(const Share& share) {
      begin = std::min(begin, share.begin);
      end = std::max(end, share.end);
    }
  };

  void add_lane(const Rect& rect, uint64_t element, Hull& hull,
                uint32_t number) {
    hull.lane = number;
    plan_.lanes.push_back({.offset = rect.offset +
                                     (row_ - rect.row_begin) * rect.row_stride +
                                     (hull.begin - rect.begin) * element,
                           .row_stride = rect.row_stride,
                           .width = (hull.end - hull.begin) * element,
                           .file = rect.file,
                           .transform = rect.transform});
  }

  void add_lanes(std::span<const Share> shares, Job& job);
  void add_moves(std::span<const Share> shares, Job& job);
  void emit(std::span<const Share> shares);

  const Cells& cells_;
  const uint64_t columns_;
  const uint64_t content_;
  Plan& plan_;
  uint64_t row_ = 0, rows_ = 0;
  const std::vector<Rect*>* sources_ = nullptr;
  const std::vector<Rect*>* targets_ = nullptr;
  std::vector<Share> shares_;
  // By index in the active lists; in their initial state except while a job is
  // emitted. A slab of one row may be a thousand jobs of one lane each, so no
  // job's cost may grow with the number of rects in the slab.
  std::vector<Hull> source_hulls_, target_hulls_;

  uint64_t target_element() const {
    return cells_.target_element ? cells_.target_element : cells_.grid.element;
  }
};

void Slab::emit(std::span<const Share> shares) {
  Job job{.rows = rows_, .tensor = cells_.index};
  add_lanes(shares, job);
  add_moves(shares, job);
  plan_.jobs.push_back(job);
  for (const Share& share : shares) {
    source_hulls_[share.source] = {};
    target_hulls_[share.target] = {};
  }
}

void Slab::add_lanes(std::span<const Share> shares, Job& job) {
  for (const Share& share : shares) {
    source_hulls_[share.source].widen(share);
    target_hulls_[share.target].widen(share);
  }
  job.first_source = static_cast<uint32_t>(plan_.lanes.size());
  for (const Share& share : shares) {
    Hull& hull = source_hulls_[share.source];
    if (hull.lane == kNone)
      add_lane(*(*sources_)[share.source], cells_.grid.element, hull,
               job.sources++);
  }
  job.first_target = static_cast<uint32_t>(plan_.lanes.size());
  for (const Share& share : shares) {
    const Rect& rect = *(*targets_)[share.target];
    Hull& hull = target_hulls_[share.target];
    if (rect.file != kNone && hull.lane == kNone)
      add_lane(rect, target_element(), hull, job.targets++);
  }
}

void Slab::add_moves(std::span<const Share> shares, Job& job) {
  const uint64_t element = cells_.grid.element;
  job.first_move = static_cast<uint32_t>(plan_.moves.size());
  for (const Share& share : shares) {
    const Rect& source = *(*sources_)[share.source];
    const Rect& target = *(*targets_)[share.target];
    const Hull& from = source_hulls_[share.source];
    const Hull& to = target_hulls_[share.target];
    Move move{
        .content = (content_ + row_ * columns_ + share.begin) * element,
        .content_stride = columns_ * element,
        .bytes = (share.end - share.begin) * element,
        .source_column = (share.begin - from.begin) * element,
        .source = from.lane,
    };
    if (target.file != kNone) {
      move.target = to.lane;
      move.target_column = (share.begin - to.begin) * target_element();
    }
    if (target.primary && cells_.digest) move.digest = cells_.index;
    if (target.primary) move.check = source.check;
    plan_.moves.push_back(move);
    ++job.moves;
  }
}

}  // namespace

void add_slabs(const Cells& cells, uint64_t columns, uint64_t content,
               std::vector<Rect>& sources, std::vector<Rect>& targets,
               Plan& plan) {
  const std::vector<uint64_t> cuts = row_cuts(sources, targets);
  Sweep active_sources(sources);
  Sweep active_targets(targets);
  Slab slab(cells, columns, content, plan);
  for (size_t i = 0; i + 1 < cuts.size(); ++i)
    slab.add(cuts[i], cuts[i + 1], active_sources.at(cuts[i]),
             active_targets.at(cuts[i]));
}

}  // namespace ckpt::reshard
