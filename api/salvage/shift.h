// SPDX-License-Identifier: Apache-2.0
// Finds how a job's optimizer states were shifted when they were saved
// (formats/megatron/buckets/shift.h), and proves it by the weights.
//
// Bucket sizes, paddings and stages are in no file. But a wrong one puts main
// weights where they do not round to their weights: of all arrangements that
// names and shapes leave possible, the bytes have to leave one.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/megatron/buckets/shift.h"
#include "lib/io/file.h"

namespace ckpt::library {

// Elements of a tensor that one piece stores without a gap.
struct StoredRun {
  uint32_t tensor = 0;
  size_t piece = 0;
  uint64_t element = 0;  // of the piece
  uint64_t at = 0;       // of the range that was asked for
  uint64_t count = 0;
};

// Optimizer states by model tensor.
using StatesOf = std::map<std::string, std::map<uint32_t, uint32_t>>;

class ShiftSearch {
 public:
  // `catalog` is located. Throws unfaithful_error if its states can't be
  // moved: compressed, of another shape, incomplete.
  explicit ShiftSearch(const Catalog& catalog);

  struct Buffer {
    megatron::JobBuffer buffer;
    megatron::Shift shift;
  };
  using Found = std::vector<Buffer>;
  // Reads all that is moved, and all that must be zero. Throws
  // unfaithful_error if no arrangement holds, or several do.
  Found find();

  const StatesOf& states() const { return states_; }
  static bool is_main(std::string_view state);

  // Where [begin, end) of a parameter is, in order; of replicas the first, or
  // each in turn. `tensors`: those of a state, or null for the model's.
  void each_stored(const megatron::RankParam& param,
                   const std::map<uint32_t, uint32_t>* tensors, uint64_t begin,
                   uint64_t end, bool replicas,
                   const std::function<void(const StoredRun&)>& run) const;
  std::string read(const megatron::RankParam& param,
                   const std::map<uint32_t, uint32_t>* tensors, uint64_t begin,
                   uint64_t end) const;

 private:
  using Run = std::tuple<const megatron::JobBuffer*, uint32_t, uint64_t,
                         uint32_t, uint64_t, uint64_t>;
  // Of each of a group's buffers.
  using Shifts = std::vector<megatron::Shift>;

  void check_tensor(uint32_t tensor) const;
  bool holds(const megatron::JobBuffer& buffer, const megatron::MovedRun& run,
             uint64_t begin, uint64_t end) const;
  bool likely(const megatron::JobBuffer& buffer, const megatron::MovedRun& run);
  std::optional<uint32_t> first_unlikely(const megatron::JobBuffer& buffer,
                                         const megatron::Shift& shift);
  std::vector<Found> found_in(const megatron::Job& job);
  std::vector<Shifts> shifts_of(const megatron::JobBuffers& group);
  void scan(const megatron::JobBuffers& group, uint64_t divisor,
            std::vector<Shifts>& found);
  bool prove(const megatron::JobBuffer& buffer,
             const megatron::Shift& shift) const;
  bool proven(const megatron::JobBuffers& group, const Shifts& shifts) const;
  bool are_zeros(const megatron::JobBuffer& buffer,
                 const megatron::ParamRun& run) const;
  void each_in(uint32_t tensor, const Box& box, uint64_t begin, uint64_t end,
               uint64_t at, bool replicas,
               const std::function<void(const StoredRun&)>& run) const;
  const io::Handle& file(uint32_t index) const;
  [[noreturn]] void refuse() const;

  const Catalog& catalog_;
  StatesOf states_;
  const std::map<uint32_t, uint32_t>* mains_ = nullptr;
  std::map<Run, bool> seen_;
  uint64_t tries_ = 0;
  mutable std::map<uint32_t, io::Handle> files_;
};

}  // namespace ckpt::library
