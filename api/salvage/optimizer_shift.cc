// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>

#include "api/salvage/salvager.h"
#include "api/salvage/shift.h"
#include "lib/io/file.h"
#include "reshard/numbers/numbers.h"
#include "reshard/prove/prove.h"

namespace ckpt::library {
namespace {

constexpr uint64_t kMoved = uint64_t{1} << 20;  // elements at a time
constexpr std::string_view kShifted = "shifted_optimizer";

bool is_shifted(const std::vector<Problem>& problems) {
  return std::ranges::any_of(
      problems, [](const Problem& one) { return one.kind == kShifted; });
}

// Weights as f32.
std::string widened(const std::string& bytes, DType dtype) {
  if (dtype == DType::f32) return bytes;
  std::string wide(2 * bytes.size(), '\0');
  for (size_t i = 0; 2 * i < bytes.size(); ++i) {
    uint16_t bits;
    std::memcpy(&bits, bytes.data() + 2 * i, 2);
    const uint32_t value = dtype == DType::f16 ? numbers::f16_to_float(bits)
                                               : numbers::bf16_to_float(bits);
    std::memcpy(wide.data() + 4 * i, &value, 4);
  }
  return wide;
}

}  // namespace

// Moves states back that were saved shifted. The weights prove where main
// weights belong; the moments of a buffer stood beside them.
void Salvager::undo_shift() {
  if (!is_shifted(reshard::check_claims(catalog_, run_))) return;
  try {
    for (size_t t = 0; t < gone_.size(); ++t)
      if (is_gone(t))
        throw unfaithful_error({{}, catalog_.tensors[t].name},
                               "elements of it are lost, and nothing proves "
                               "what is beside them");
    const auto found = ShiftSearch(catalog_).find();
    move_back(found);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUnfaithful) throw;
    report_.lost.push_back(
        {"",
         fmt::format("the shift of the optimizer states (Megatron-Core's pull "
                     "request 5077) can't be undone: {}{}{}",
                     error.where().tensor,
                     error.where().tensor.empty() ? "" : " ", error.problem()),
         false});
  }
}

void Salvager::move_back(const ShiftSearch::Found& found) {
  const ShiftSearch states(catalog_);
  uint64_t moved = 0, lost = 0, all = 0;
  for (const auto& [state, tensors] : states.states())
    for (const auto& [model, tensor] : tensors)
      if (file_of(catalog_.tensors[tensor].pieces.at(0).extent.file).empty())
        throw unfaithful_error({{}, catalog_.tensors[tensor].name},
                               "is in a file that can't be changed");
  for (const ShiftSearch::Buffer& one : found) {
    for (const auto& [state, tensors] : states.states()) {
      // From the end: nothing is overwritten before it was read.
      for (size_t r = one.shift.runs.size(); r-- > 0;)
        move_run(states, tensors, one.buffer, one.shift.runs[r]);
      for (const megatron::ParamRun& run : one.shift.lost)
        lose_run(states, state, tensors, one.buffer, run);
    }
    for (const megatron::MovedRun& run : one.shift.runs) {
      all += run.count;
      if (run.moved()) moved += run.count;
    }
    for (const megatron::ParamRun& run : one.shift.lost)
      lost += run.end - run.begin;
  }
  renew_checksums();
  report_.rebuilt.push_back(
      {"",
       fmt::format("optimizer states were saved shifted (Megatron-Core up to "
                   "0.19.2, its pull request 5077): {} of {} elements of each "
                   "state that may be shifted came back, {} of them moved; {} "
                   "are in no file",
                   all, all + lost, moved, lost),
       false});
  const std::vector<Problem> left = reshard::check_claims(catalog_, run_);
  if (!left.empty())
    throw unfaithful_error({{}, left[0].tensor}, "{}", left[0].message);
}

void Salvager::write_stored(const StoredRun& run, std::string_view bytes) {
  const Tensor& tensor = catalog_.tensors[run.tensor];
  const Piece& piece = tensor.pieces[run.piece];
  const uint64_t size = element_size(tensor.dtype);
  shifted_at_.emplace(piece.extent.file, piece.extent.offset);
  shifted_.insert(tensor.name);
  put(tensor, piece, {{run.element, run.element + run.count}},
      [&](uint64_t first, uint64_t many) {
        return std::string(
            bytes.substr((run.at + first - run.element) * size, many * size));
      });
}

void Salvager::move_run(const ShiftSearch& states,
                        const std::map<uint32_t, uint32_t>& tensors,
                        const megatron::JobBuffer& buffer,
                        const megatron::MovedRun& run) {
  if (!run.moved()) return;
  for (uint64_t end = run.count; end > 0;) {
    const uint64_t begin = end - std::min(end, kMoved);
    const std::string bytes =
        states.read(buffer.params[run.from], &tensors, run.from_begin + begin,
                    run.from_begin + end);
    states.each_stored(buffer.params[run.to], &tensors, run.to_begin + begin,
                       run.to_begin + end, true,
                       [&](const StoredRun& one) { write_stored(one, bytes); });
    end = begin;
  }
}

// A lost main weight is the weight until something better is known: zeros would
// become the weight when training goes on.
void Salvager::lose_run(const ShiftSearch& states, const std::string& state,
                        const std::map<uint32_t, uint32_t>& tensors,
                        const megatron::JobBuffer& buffer,
                        const megatron::ParamRun& run) {
  const megatron::RankParam& param = buffer.params[run.param];
  const bool main = ShiftSearch::is_main(state);
  for (uint64_t begin = run.begin; begin < run.end; begin += kMoved) {
    const uint64_t end = std::min(run.end, begin + kMoved);
    const std::string bytes =
        main ? widened(states.read(param, nullptr, begin, end), param.dtype)
             : std::string((end - begin) * sizeof(float), '\0');
    states.each_stored(
        param, &tensors, begin, end, true, [&](const StoredRun& one) {
          write_stored(one, bytes);
          auto& gone = gone_[one.tensor][one.piece];
          gone = united(gone, {{one.element, one.element + one.count}});
          if (main) widened_.insert(one.tensor);
        });
  }
}

// What changed in a record with a checksum gets another one.
void Salvager::renew_checksums() {
  for (const StoredCrc& crc : catalog_.crcs) {
    const auto at = shifted_at_.lower_bound({crc.file, crc.begin});
    if (at != shifted_at_.end() && at->first == crc.file &&
        at->second < crc.end)
      remember_crc(file_of(crc.file), crc);
  }
}

bool Salvager::is_shifted_file(const std::string& path) const {
  return std::ranges::any_of(shifted_at_, [&](const auto& place) {
    return catalog_.files[place.first].path == path;
  });
}

}  // namespace ckpt::library
