// SPDX-License-Identifier: Apache-2.0
#include "api/salvage/shift.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <set>
#include <unordered_map>

#include "api/salvage/gone.h"
#include "ckpt/error.h"
#include "lib/interrupt.h"
#include "reshard/prove/prove.h"
#include "reshard/prove/rounding.h"

namespace ckpt::library {
namespace {

using megatron::JobBuffer;
using megatron::JobBuffers;
using megatron::MovedRun;
using megatron::ParamRun;
using megatron::RankParam;
using megatron::Shift;

constexpr uint64_t kMostTries = 200'000;
constexpr uint64_t kSample = 64;  // elements at each end of a run
constexpr uint64_t kBlock = uint64_t{1} << 20;
constexpr size_t kMostFiles = 64;

std::span<const std::byte> bytes_of(const std::string& text) {
  return std::as_bytes(std::span(text));
}

// Elements behind dimension `d` that a box and a piece's box share whole.
uint64_t shared_tail(const Box& box, const Box& piece, size_t& d) {
  uint64_t tail = 1;
  for (d = box.shape.size(); d > 0; --d) {
    if (box.shape[d - 1] != piece.shape[d - 1] ||
        box.offset[d - 1] != piece.offset[d - 1])
      break;
    tail *= box.shape[d - 1];
  }
  return tail;
}

std::optional<uint64_t> index_in(const Box& box, const Dims& at) {
  uint64_t index = 0;
  for (size_t d = 0; d < at.size(); ++d) {
    if (at[d] < box.offset[d] || at[d] - box.offset[d] >= box.shape[d])
      return std::nullopt;
    index = index * box.shape[d] + at[d] - box.offset[d];
  }
  return index;
}

// How many elements from this one on are contiguous in both.
uint64_t together(const Box& box, const Box& piece, const Dims& at,
                  uint64_t element) {
  size_t d = 0;
  const uint64_t tail = shared_tail(box, piece, d);
  if (d == 0) return volume(box) - element;
  const size_t k = d - 1;
  const uint64_t end =
      std::min(box.offset[k] + box.shape[k], piece.offset[k] + piece.shape[k]);
  return (end - at[k]) * tail - element % tail;
}

bool same_shift(const Shift& a, const Shift& b) {
  return std::ranges::equal(
      a.runs, b.runs, [](const MovedRun& x, const MovedRun& y) {
        return x.to == y.to && x.to_begin == y.to_begin && x.from == y.from &&
               x.from_begin == y.from_begin && x.count == y.count;
      });
}

// What is moved where, and what is lost: the same for two jobs that differ in
// nothing that the files show.
using Moves = std::set<
    std::tuple<uint32_t, Dims, uint64_t, uint64_t, uint32_t, Dims, uint64_t>>;

Moves moves_of(const ShiftSearch::Found& found) {
  Moves moves;
  for (const ShiftSearch::Buffer& one : found) {
    const Shift& shift = one.shift;
    const auto at = [&](uint32_t p) -> const megatron::ParamPart& {
      return one.buffer.params[p].parts[0];
    };
    for (const MovedRun& run : shift.runs)
      if (run.moved())
        moves.emplace(at(run.to).tensor, at(run.to).box.offset, run.to_begin,
                      run.to_begin + run.count, at(run.from).tensor,
                      at(run.from).box.offset, run.from_begin);
    for (const ParamRun& run : shift.lost)
      moves.emplace(at(run.param).tensor, at(run.param).box.offset, run.begin,
                    run.end, 0, Dims(), 0);
  }
  return moves;
}

}  // namespace

bool ShiftSearch::is_main(std::string_view state) {
  return state == "param" || state == "fp32_param";
}

ShiftSearch::ShiftSearch(const Catalog& catalog) : catalog_(catalog) {
  std::unordered_map<std::string_view, uint32_t> models;
  for (uint32_t t = 0; t < catalog.tensors.size(); ++t)
    if (catalog.tensors[t].kind == Kind::model)
      models.emplace(catalog.tensors[t].name, t);
  for (uint32_t t = 0; t < catalog.tensors.size(); ++t) {
    const Tensor& tensor = catalog.tensors[t];
    const auto model = models.find(tensor.param);
    if (tensor.kind != Kind::optim || model == models.end() ||
        tensor.shape != catalog.tensors[model->second].shape ||
        tensor.dtype != DType::f32)
      continue;
    check_tensor(t);
    check_tensor(model->second);
    states_[tensor.state][model->second] = t;
  }
  for (const auto& [state, tensors] : states_)
    if (is_main(state)) mains_ = &tensors;
  if (!mains_)
    throw unfaithful_error({}, "there are no fp32 main weights to prove it");
}

void ShiftSearch::check_tensor(uint32_t index) const {
  const Tensor& tensor = catalog_.tensors[index];
  const bool plain = std::ranges::all_of(tensor.pieces, [&](const Piece& p) {
    return p.transform == kNoTransform &&
           catalog_.files[p.extent.file].codec == Codec::kRaw;
  });
  if (!plain || !tensor.grid.empty())
    throw unfaithful_error({{}, tensor.name},
                           "its elements are compressed, or stored in another "
                           "order");
}

const io::Handle& ShiftSearch::file(uint32_t index) const {
  const auto found = files_.find(index);
  if (found != files_.end()) return found->second;
  if (files_.size() >= kMostFiles) files_.clear();
  return files_
      .emplace(index, io::Handle::open_read(catalog_.files[index].path))
      .first->second;
}

void ShiftSearch::each_in(
    uint32_t tensor, const Box& box, uint64_t begin, uint64_t end, uint64_t at,
    bool replicas, const std::function<void(const StoredRun&)>& run) const {
  const auto& pieces = catalog_.tensors[tensor].pieces;
  while (begin < end) {
    const Dims place = cut(box, {begin, begin + 1}).front().box.offset;
    uint64_t count = 0;
    for (size_t p = 0; p < pieces.size(); ++p) {
      const auto index = index_in(pieces[p].box, place);
      if (!index) continue;
      const FlatRange held =
          pieces[p].flat.value_or(FlatRange{0, volume(pieces[p].box)});
      if (*index < held.begin || *index >= held.end) continue;
      const uint64_t many =
          std::min({end - begin, held.end - *index,
                    together(box, pieces[p].box, place, begin)});
      // Replicas are cut alike (Tensor::pieces), so that they have as many.
      count = count == 0 ? many : std::min(count, many);
      run({tensor, p, *index - held.begin, at, many});
      if (!replicas) break;
    }
    if (count == 0)
      throw unfaithful_error({{}, catalog_.tensors[tensor].name},
                             "no file holds its element {}", to_string(place));
    begin += count;
    at += count;
  }
}

void ShiftSearch::each_stored(
    const RankParam& param, const std::map<uint32_t, uint32_t>* tensors,
    uint64_t begin, uint64_t end, bool replicas,
    const std::function<void(const StoredRun&)>& run) const {
  uint64_t part_begin = 0;
  for (const megatron::ParamPart& part : param.parts) {
    const uint64_t part_end = part_begin + volume(part.box);
    const uint64_t a = std::max(begin, part_begin);
    const uint64_t b = std::min(end, part_end);
    if (a < b) {
      uint32_t tensor = part.tensor;
      if (tensors) {
        const auto found = tensors->find(tensor);
        if (found == tensors->end())
          throw unfaithful_error({{}, catalog_.tensors[tensor].name},
                                 "a state of it is missing");
        tensor = found->second;
      }
      each_in(tensor, part.box, a - part_begin, b - part_begin, a - begin,
              replicas, run);
    }
    part_begin = part_end;
  }
}

std::string ShiftSearch::read(const RankParam& param,
                              const std::map<uint32_t, uint32_t>* tensors,
                              uint64_t begin, uint64_t end) const {
  std::string bytes;
  each_stored(param, tensors, begin, end, false, [&](const StoredRun& run) {
    const Tensor& tensor = catalog_.tensors[run.tensor];
    const Piece& piece = tensor.pieces[run.piece];
    for_each_run(tensor, piece, {{run.element, run.element + run.count}},
                 [&](uint64_t, uint64_t offset, uint64_t count) {
                   bytes += file(piece.extent.file)
                                .read_string(
                                    offset, count * element_size(tensor.dtype));
                 });
  });
  return bytes;
}

bool ShiftSearch::holds(const JobBuffer& buffer, const MovedRun& run,
                        uint64_t begin, uint64_t end) const {
  const RankParam& to = buffer.params[run.to];
  if (to.dtype != DType::bf16 && to.dtype != DType::f16 &&
      to.dtype != DType::f32)
    return false;
  const std::string exact = read(buffer.params[run.from], mains_,
                                 run.from_begin + begin, run.from_begin + end);
  const std::string rounded =
      read(to, nullptr, run.to_begin + begin, run.to_begin + end);
  return !reshard::first_unlike(bytes_of(exact), bytes_of(rounded), to.dtype);
}

// By samples: what they contradict is wrong.
bool ShiftSearch::likely(const JobBuffer& buffer, const MovedRun& run) {
  const auto [at, fresh] = seen_.try_emplace(
      {&buffer, run.to, run.to_begin, run.from, run.from_begin, run.count},
      false);
  if (!fresh) return at->second;
  const uint64_t some = std::min(kSample, run.count);
  const uint64_t middle = (run.count - some) / 2;
  at->second = holds(buffer, run, 0, some) &&
               holds(buffer, run, run.count - some, run.count) &&
               holds(buffer, run, middle, middle + some);
  return at->second;
}

std::optional<uint32_t> ShiftSearch::first_unlikely(const JobBuffer& buffer,
                                                    const Shift& shift) {
  for (const MovedRun& run : shift.runs)
    if (!likely(buffer, run)) return run.to;
  return std::nullopt;
}

// Tries bucket sizes, each the least that lays out something else: a larger
// size changes nothing before the first bucket that is smaller.
void ShiftSearch::scan(const JobBuffers& group, uint64_t divisor,
                       std::vector<Shifts>& found) {
  constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();
  uint64_t size = group.bucketed ? 1 : kNone;
  for (;;) {
    if (interrupted()) throw Interrupted("stopped; nothing was written");
    if (++tries_ > kMostTries)
      throw unfaithful_error({},
                             "more arrangements of buckets are possible than "
                             "can be tried; args that name the job's ranks "
                             "would leave few");
    const megatron::BufferRules rules{.bucket_size = size, .divisor = divisor};
    uint64_t least = kNone;  // of the buckets that this size closed
    bool holds = true;
    Shifts shifts;
    for (const JobBuffer& buffer : group.buffers) {
      const megatron::BufferLayout layout = lay_out(buffer, rules);
      shifts.push_back(shift_of(buffer, layout));
      const auto wrong = first_unlikely(buffer, shifts.back());
      size_t closed = layout.buckets.size();
      if (wrong) {
        closed = layout.slots[*wrong].bucket;
        if (holds) least = kNone;
        holds = false;
      } else if (!holds) {
        continue;
      }
      for (size_t b = 0; b < closed; ++b)
        if (layout.buckets[b].unpadded >= size)
          least = std::min(least, layout.buckets[b].unpadded);
      if (wrong) break;
    }
    const auto known = [&](const Shifts& other) {
      return std::ranges::equal(other, shifts, same_shift);
    };
    if (holds && std::ranges::none_of(found, known))
      found.push_back(std::move(shifts));
    if (least == kNone || size == kNone) return;
    size = least + 1;
  }
}

std::vector<ShiftSearch::Shifts> ShiftSearch::shifts_of(
    const JobBuffers& group) {
  std::vector<Shifts> found;
  seen_.clear();
  for (const uint64_t divisor : megatron::divisors_of(group.ranks))
    scan(group, divisor, found);
  std::erase_if(found, [&](const Shifts& one) { return !proven(group, one); });
  return found;
}

bool ShiftSearch::proven(const JobBuffers& group, const Shifts& shifts) const {
  for (size_t b = 0; b < shifts.size(); ++b)
    if (!prove(group.buffers[b], shifts[b])) return false;
  return true;
}

// What fills gaps and what is past the end of a buffer is zero in each state,
// the only thing that the moments tell.
bool ShiftSearch::are_zeros(const JobBuffer& buffer,
                            const ParamRun& run) const {
  for (const auto& [state, tensors] : states_)
    for (uint64_t at = run.begin; at < run.end; at += kBlock) {
      const std::string bytes = read(buffer.params[run.param], &tensors, at,
                                     std::min(run.end, at + kBlock));
      if (bytes.find_first_not_of('\0') != bytes.npos) return false;
    }
  return true;
}

bool ShiftSearch::prove(const JobBuffer& buffer, const Shift& shift) const {
  for (const MovedRun& run : shift.runs)
    for (uint64_t at = 0; at < run.count; at += kBlock) {
      if (interrupted()) throw Interrupted("stopped; nothing was written");
      if (!holds(buffer, run, at, std::min(run.count, at + kBlock)))
        return false;
    }
  return std::ranges::all_of(
      shift.zeros, [&](const ParamRun& run) { return are_zeros(buffer, run); });
}

// Why nothing holds, where the weights themselves say it.
void ShiftSearch::refuse() const {
  for (const auto& [model, main] : *mains_) {
    const Tensor& weight = catalog_.tensors[model];
    const bool known = weight.dtype == DType::bf16 ||
                       weight.dtype == DType::f16 || weight.dtype == DType::f32;
    const uint64_t some = std::min(volume(Box::whole(weight.shape)), kBlock);
    if (some == 0) continue;
    RankParam all;
    all.parts = {{model, Box::whole(weight.shape)}};
    if (!known)
      throw unfaithful_error({{}, weight.name},
                             "is {}, to which no main weight is rounded as "
                             "bf16 is: nothing proves an arrangement",
                             name(weight.dtype));
    const reshard::Rounding found =
        reshard::measure(bytes_of(read(all, mains_, 0, some)),
                         bytes_of(read(all, nullptr, 0, some)), weight.dtype);
    if (found.unlike != 0 && found.holds())
      throw unfaithful_error({{}, weight.name},
                             "is near its main weight, but not that rounded to "
                             "nearest (stochastic rounding, or fp8): nothing "
                             "proves an arrangement");
  }
  throw unfaithful_error({},
                         "no arrangement of buckets that names, shapes and "
                         "args leave possible puts each main weight beside "
                         "its weight");
}

// All ways to lay out a job's buffers, each group for itself; two are enough.
std::vector<ShiftSearch::Found> ShiftSearch::found_in(
    const megatron::Job& job) {
  std::vector<Found> found(1);
  for (const JobBuffers& group : job.groups) {
    const std::vector<Shifts> all = shifts_of(group);
    std::vector<Found> longer;
    for (const Found& one : found)
      for (const Shifts& shifts : all) {
        if (longer.size() == 2) break;
        longer.push_back(one);
        for (size_t b = 0; b < shifts.size(); ++b)
          longer.back().push_back({group.buffers[b], shifts[b]});
      }
    found = std::move(longer);
  }
  std::erase_if(found, [](const Found& one) { return moves_of(one).empty(); });
  return found;
}

ShiftSearch::Found ShiftSearch::find() {
  std::optional<Found> found;
  megatron::each_job(catalog_, [&](const megatron::Job& job) {
    for (Found& one : found_in(job)) {
      if (found && moves_of(*found) != moves_of(one))
        throw unfaithful_error({},
                               "several arrangements of buckets put each main "
                               "weight beside its weight, and constant "
                               "parameters tell none of them; args that name "
                               "the job's ranks would");
      if (!found) found = std::move(one);
    }
  });
  if (!found) refuse();
  return std::move(*found);
}

}  // namespace ckpt::library
