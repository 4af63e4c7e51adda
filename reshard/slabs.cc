#include "reshard/slabs.h"

#include <algorithm>

#include "ckpt/error.h"

namespace ckpt::reshard {
namespace {

// The rects that hold row `row`, kept while rows advance: sorted by begin
// once, taken in and thrown out as the sweep passes them.
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

// The elements that one source lane gives to one target lane in a slab.
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
    check_disjoint();
    share();
    if (shares_.empty()) return;
    if (rows_ > 1) {
      emit(shares_);
      return;
    }
    // One row: each source range is a job of its own, read once and written
    // to all targets that want it.
    std::ranges::stable_sort(shares_, {}, &Share::source);
    for (size_t i = 0; i < shares_.size();) {
      size_t j = i;
      while (j < shares_.size() && shares_[j].source == shares_[i].source) ++j;
      emit(std::span(shares_).subspan(i, j - i));
      i = j;
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

  // Sources are disjoint and sorted, so each target meets a run of them.
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

  // The lane of a rect in the job: the hull of its shared columns.
  uint32_t lane(const Rect& rect, uint64_t element, std::span<const Share> all,
                bool is_source, uint32_t which) {
    uint64_t begin = UINT64_MAX, end = 0;
    for (const Share& share : all) {
      if ((is_source ? share.source : share.target) != which) continue;
      begin = std::min(begin, share.begin);
      end = std::max(end, share.end);
    }
    plan_.lanes.push_back({.offset = rect.offset +
                                     (row_ - rect.row_begin) * rect.row_stride +
                                     (begin - rect.begin) * element,
                           .row_stride = rect.row_stride,
                           .width = (end - begin) * element,
                           .file = rect.file,
                           .transform = rect.transform});
    lane_begin_ = begin;
    return static_cast<uint32_t>(plan_.lanes.size() - 1);
  }

  void emit(std::span<const Share> shares);

  const Cells& cells_;
  const uint64_t columns_;
  const uint64_t content_;
  Plan& plan_;
  uint64_t row_ = 0, rows_ = 0;
  const std::vector<Rect*>* sources_ = nullptr;
  const std::vector<Rect*>* targets_ = nullptr;
  std::vector<Share> shares_;
  uint64_t lane_begin_ = 0;
};

void Slab::emit(std::span<const Share> shares) {
  const uint64_t element = cells_.grid.element;
  const uint64_t target_element =
      cells_.target_element ? cells_.target_element : element;
  Job job{.rows = rows_, .tensor = cells_.index};
  // Lane numbers and first columns of the rects in this job.
  std::vector<std::pair<uint32_t, uint64_t>> source_lane(sources_->size(),
                                                         {kNone, 0}),
      target_lane(targets_->size(), {kNone, 0});
  job.first_source = static_cast<uint32_t>(plan_.lanes.size());
  for (const Share& share : shares) {
    if (source_lane[share.source].first != kNone) continue;
    lane(*(*sources_)[share.source], element, shares, true, share.source);
    source_lane[share.source] = {job.sources++, lane_begin_};
  }
  job.first_target = static_cast<uint32_t>(plan_.lanes.size());
  for (const Share& share : shares) {
    const Rect& rect = *(*targets_)[share.target];
    if (rect.file == kNone || target_lane[share.target].first != kNone)
      continue;
    lane(rect, target_element, shares, false, share.target);
    target_lane[share.target] = {job.targets++, lane_begin_};
  }
  job.first_move = static_cast<uint32_t>(plan_.moves.size());
  for (const Share& share : shares) {
    const Rect& source = *(*sources_)[share.source];
    const Rect& target = *(*targets_)[share.target];
    Move move{
        .content = (content_ + row_ * columns_ + share.begin) * element,
        .content_stride = columns_ * element,
        .bytes = (share.end - share.begin) * element,
        .source_column =
            (share.begin - source_lane[share.source].second) * element,
        .source = source_lane[share.source].first,
    };
    if (target.file != kNone) {
      move.target = target_lane[share.target].first;
      move.target_column =
          (share.begin - target_lane[share.target].second) * target_element;
    }
    if (target.primary && cells_.digest) move.digest = cells_.index;
    if (target.primary) move.check = source.check;
    plan_.moves.push_back(move);
    ++job.moves;
  }
  plan_.jobs.push_back(job);
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
