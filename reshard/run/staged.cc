// SPDX-License-Identifier: Apache-2.0
#include "reshard/run/staged.h"

#include <algorithm>
#include <atomic>
#include <optional>

#include "ckpt/error.h"
#include "lib/failures.h"
#include "lib/interrupt.h"
#include "lib/io/buffer.h"
#include "lib/processors.h"
#include "reshard/plan/work.h"
#include "reshard/sources/sources.h"

namespace ckpt::reshard {
namespace {

enum class Verdict { kGood, kWrong, kUnknown };

// What was seen of an item's moves, by their number in the job.
struct Seen {
  Digest digest;
  bool written = false;
  bool outside = false;  // outside the item's columns
};

using Sums = std::vector<std::pair<uint32_t, Digest>>;

std::optional<Digest> find(const Sums& sums, uint32_t index) {
  const auto found = std::ranges::find(sums, index, &Sums::value_type::first);
  if (found == sums.end()) return std::nullopt;
  return found->second;
}

bool same_source(const Move& a, const Move& b) {
  return a.source == b.source && a.source_column == b.source_column &&
         a.bytes == b.bytes;
}

bool same_content(const Move& a, const Move& b) {
  return same_source(a, b) && a.content == b.content &&
         a.content_stride == b.content_stride;
}

// One thread's view of the staged files.
class Checker {
 public:
  Checker(const Plan& plan, const std::vector<std::string>& paths,
          HandleCache& handles, uint64_t block)
      : plan_(plan),
        paths_(paths),
        handles_(handles),
        block_(block),
        buffer_(block) {}

  Verdict check(const Item& item, const Outcome& outcome) {
    try {
      return item.gather ? check_gather(plan_.gathers[item.index], outcome)
                         : check_job(item, outcome);
    } catch (const Error&) {
      return Verdict::kWrong;  // the file has ended, or can't be read
    }
  }

 private:
  // Bytes of an element before and after a cast.
  struct Sizes {
    uint64_t from = 1, to = 1;
    uint64_t scaled(uint64_t bytes) const { return bytes / from * to; }
  };
  Sizes sizes_of(const PlannedTensor& tensor) const {
    if (!tensor.casts()) return {};
    return {std::max<uint64_t>(1, element_size(tensor.source_dtype)),
            std::max<uint64_t>(1, element_size(tensor.target_dtype))};
  }
  const Sums& sums_of(uint32_t tensor, const Outcome& outcome) const {
    return plan_.tensors[tensor].casts() ? outcome.target : outcome.source;
  }

  std::span<std::byte> read(uint32_t file, uint64_t offset, uint64_t bytes) {
    if (file != file_) handle_ = handles_.get(paths_[file]);
    file_ = file;
    const std::span<std::byte> into(buffer_.data(), bytes);
    handle_->read(offset, into);
    return into;
  }

  // Digests the bytes at `content` of a tensor, piece by piece.
  Digest read_run(uint32_t file, uint64_t offset, uint64_t bytes,
                  uint64_t content) {
    Digest sum;
    while (bytes) {
      const uint64_t n = std::min(bytes, block_);
      sum += digest(content, read(file, offset, n));
      offset += n, content += n, bytes -= n;
    }
    return sum;
  }

  Verdict check_job(const Item& item, const Outcome& outcome) {
    const Job& job = plan_.jobs[item.index];
    seen_.assign(job.moves, {});
    if (job.rows == 1) {
      see_columns(job, 0, item.begin, item.end);
    } else {
      for (uint32_t t = 0; t < job.targets; ++t)
        see_rows(job, t, item.begin, item.end);
    }
    return judge(job, outcome);
  }

  void see_columns(const Job& job, uint64_t row, uint64_t begin, uint64_t end) {
    for (uint32_t m = 0; m < job.moves; ++m)
      see_columns_of(job, m, row, begin, end);
  }

  void see_columns_of(const Job& job, uint32_t m, uint64_t row, uint64_t begin,
                      uint64_t end) {
    const Move& move = plan_.moves[job.first_move + m];
    const uint64_t low = std::max(begin, move.source_column);
    const uint64_t high = std::min(end, move.source_column + move.bytes);
    seen_[m].written = move.target != kNone;
    seen_[m].outside = low >= high;
    if (move.target == kNone || low >= high) return;
    const Sizes sizes = sizes_of(plan_.tensors[job.tensor]);
    const Lane& lane = plan_.lanes[job.first_target + move.target];
    const uint64_t into = low - move.source_column;
    seen_[m].digest +=
        read_run(lane.file,
                 lane.offset + row * lane.row_stride + move.target_column +
                     sizes.scaled(into),
                 sizes.scaled(high - low),
                 sizes.scaled(move.content + row * move.content_stride + into));
  }

  // Reads rows [begin, end) of a target lane, as many at once as the buffer
  // holds.
  void see_rows(const Job& job, uint32_t t, uint64_t begin, uint64_t end) {
    const Lane& lane = plan_.lanes[job.first_target + t];
    const bool dense = lane.width * 4 >= lane.row_stride;
    const uint64_t room =
        dense ? std::max(lane.row_stride, lane.width) : lane.width;
    const uint64_t step = room == 0 ? end - begin
                          : dense   ? block_ / room
                                    : uint64_t{room <= block_};
    for (uint64_t row = begin; row < end;) {
      const uint64_t rows = std::min(std::max<uint64_t>(step, 1), end - row);
      if (step == 0)
        see_long_row(job, t, row);
      else
        see_block(job, t, row, rows);
      row += rows;
    }
  }

  void see_long_row(const Job& job, uint32_t t, uint64_t row) {
    for (uint32_t m = 0; m < job.moves; ++m)
      if (plan_.moves[job.first_move + m].target == t)
        see_columns_of(job, m, row, 0, UINT64_MAX);
  }

  void see_block(const Job& job, uint32_t t, uint64_t row, uint64_t rows) {
    const Lane& lane = plan_.lanes[job.first_target + t];
    const Sizes sizes = sizes_of(plan_.tensors[job.tensor]);
    const auto bytes = read(lane.file, lane.offset + row * lane.row_stride,
                            (rows - 1) * lane.row_stride + lane.width);
    for (uint32_t m = 0; m < job.moves; ++m) {
      const Move& move = plan_.moves[job.first_move + m];
      if (move.target != t) continue;
      seen_[m].written = true;
      seen_[m].digest += digest_rows(
          sizes.scaled(move.content + row * move.content_stride),
          sizes.scaled(move.content_stride), bytes.data() + move.target_column,
          lane.row_stride, sizes.scaled(move.bytes), rows);
    }
  }

  Verdict judge(const Job& job, const Outcome& outcome) {
    const auto moves =
        std::span(plan_.moves).subspan(job.first_move, job.moves);
    Sums sums;
    for (size_t m = 0; m < moves.size();) {
      const auto end = std::find_if_not(
          moves.begin() + static_cast<ptrdiff_t>(m), moves.end(),
          [&](const Move& move) { return same_source(move, moves[m]); });
      const auto next = static_cast<size_t>(end - moves.begin());
      const Verdict verdict = judge_group(moves, m, next, sums);
      if (verdict != Verdict::kGood) return verdict;
      m = next;
    }
    return compare(sums, sums_of(job.tensor, outcome));
  }

  // Bytes that go to several places are digested for one of them, so all must
  // be alike. What was never digested is unknown.
  Verdict judge_group(std::span<const Move> moves, size_t begin, size_t end,
                      Sums& sums) const {
    for (size_t m = begin; m < end; ++m) {
      if (seen_[m].outside) continue;
      bool digested = false;
      std::optional<Digest> written;
      for (size_t other = begin; other < end; ++other) {
        if (!same_content(moves[m], moves[other])) continue;
        digested |= moves[other].digest != kNone;
        if (!written && seen_[other].written) written = seen_[other].digest;
      }
      if (seen_[m].written && !digested) return Verdict::kUnknown;
      if (seen_[m].written && seen_[m].digest != *written)
        return Verdict::kWrong;
      if (moves[m].digest == kNone) continue;
      if (!written) return Verdict::kUnknown;
      add(sums, moves[m].digest, *written);
    }
    return Verdict::kGood;
  }

  static void add(Sums& sums, uint32_t index, const Digest& part) {
    for (auto& [known, sum] : sums)
      if (known == index) {
        sum += part;
        return;
      }
    sums.emplace_back(index, part);
  }

  static Verdict compare(const Sums& sums, const Sums& wanted) {
    for (const auto& [index, sum] : sums) {
      const auto want = find(wanted, index);
      if (!want) return Verdict::kUnknown;
      if (*want != sum) return Verdict::kWrong;
    }
    return Verdict::kGood;
  }

  Verdict check_gather(const Gather& gather, const Outcome& outcome) {
    if (gather.target_file == kNone) return Verdict::kGood;
    const auto want = find(sums_of(gather.tensor, outcome), gather.digest);
    if (gather.digest == kNone || !want) return Verdict::kUnknown;
    const uint64_t to = element_size(plan_.tensors[gather.tensor].target_dtype);
    Digest sum;
    Dims index(gather.shape.size(), 0);
    do {
      uint64_t offset = gather.target_offset;
      uint64_t content = gather.content;
      for (size_t d = 0; d < index.size(); ++d) {
        offset += index[d] * gather.target_strides[d];
        content += index[d] * gather.content_strides[d];
      }
      sum += read_run(gather.target_file, offset, gather.shape.back() * to,
                      content * to);
    } while (next_row(index, gather.shape));
    return sum == *want ? Verdict::kGood : Verdict::kWrong;
  }

  static bool next_row(Dims& index, const Dims& shape) {
    for (size_t d = shape.size() - 1; d-- > 0;) {
      if (++index[d] < shape[d]) return true;
      index[d] = 0;
    }
    return false;
  }

  const Plan& plan_;
  const std::vector<std::string>& paths_;
  HandleCache& handles_;
  const uint64_t block_;
  const io::Buffer buffer_;
  std::vector<Seen> seen_;
  uint32_t file_ = kNone;
  std::shared_ptr<const io::Handle> handle_;
};

// Makes that it is read from the disk. False if it can't be flushed: the run
// that wrote it was killed before it could know.
bool settle(const std::string& path, bool flush) {
  std::optional<io::Handle> file;
  try {
    file = io::Handle::open_write(path);
  } catch (const Error&) {
    return true;  // it is gone: reading it will say so
  }
  const failures::Unimportant it_is_told;
  try {
    if (flush) file->sync();
  } catch (const Error&) {
    return false;
  }
  file->drop_cache(0, 0);
  return true;
}

uint64_t written_bytes(const Plan& plan, const Item& item) {
  if (item.gather) {
    const Gather& gather = plan.gathers[item.index];
    return element_count(gather.shape).value_or(0) *
           element_size(plan.tensors[gather.tensor].target_dtype);
  }
  const Job& job = plan.jobs[item.index];
  if (job.rows == 1) return item.end - item.begin;
  uint64_t width = 0;
  for (uint32_t t = 0; t < job.targets; ++t)
    width += plan.lanes[job.first_target + t].width;
  return (item.end - item.begin) * width;
}

// The items that are done, and their outcomes; others are not of this plan.
std::vector<std::pair<Item, const Outcome*>> pair_up(
    const Plan& plan, const std::vector<Outcome>& done) {
  const std::vector<Item> items = cut_items(plan, kItemBytes);
  std::vector<std::pair<Item, const Outcome*>> pairs;
  for (const Outcome& outcome : done)
    if (outcome.item < items.size())
      pairs.emplace_back(items[outcome.item], &outcome);
  return pairs;
}

}  // namespace

StagedProof prove_staged(const Plan& plan, const Target& target,
                         const std::string& root,
                         const std::vector<Outcome>& done,
                         const RunOptions& options, bool flush) {
  constexpr uint64_t kLeastBlock = uint64_t{64} << 10;
  const uint32_t cores = processors();
  const uint64_t threads =
      std::clamp<uint64_t>(options.max_mem / kLeastBlock, 1,
                           options.threads ? options.threads : cores);
  const uint64_t block =
      std::clamp(options.max_mem / threads, uint64_t{4096}, options.block) &
      ~uint64_t{4095};
  std::vector<std::string> paths;
  for (const TargetFile& file : target.files)
    paths.push_back(io::join(root, file.path));
  const auto pairs = pair_up(plan, done);
  uint64_t total = 0;
  for (const auto& [item, outcome] : pairs) total += written_bytes(plan, item);
  options.progress.begin("checking", total);

  const auto in_parallel = [&](size_t count, const auto& make) {
    std::atomic<size_t> next = 0;
    run_threads(
        static_cast<uint32_t>(std::clamp<size_t>(count, 1, threads)),
        [&](uint32_t) {
          const auto work = make();
          for (size_t i = next++; i < count && !interrupted(); i = next++)
            work(i);
        },
        [&] { next = count; });
    if (interrupted()) throw Interrupted("");
  };
  StagedProof proof;
  std::atomic<bool> lost = false;
  in_parallel(paths.size(), [&] {
    return [&](size_t i) {
      if (!settle(paths[i], flush)) lost = true;
    };
  });
  proof.lost = lost;
  if (proof.lost) {
    options.progress.end();
    return proof;
  }

  HandleCache handles;
  std::vector<Verdict> verdicts(pairs.size(), Verdict::kUnknown);
  in_parallel(pairs.size(), [&] {
    auto checker = std::make_shared<Checker>(plan, paths, handles, block);
    return [&, checker](size_t i) {
      verdicts[i] = checker->check(pairs[i].first, *pairs[i].second);
      options.progress.advance(written_bytes(plan, pairs[i].first));
    };
  });
  for (size_t i = 0; i < pairs.size(); ++i) {
    if (verdicts[i] == Verdict::kGood)
      proof.good.push_back(*pairs[i].second);
    else
      ++(verdicts[i] == Verdict::kWrong ? proof.wrong : proof.unknown);
  }
  options.progress.end();
  return proof;
}

}  // namespace ckpt::reshard
