// SPDX-License-Identifier: Apache-2.0
// The shift of fully_reshardable optimizer states (megatron-core up to 0.19.2,
// its pull request 5077): buckets are joined without the padding at their ends,
// but parameters are cut out where they stand with it.
//
//   gathered   | e | d   | c | b | a |            elements 0 … unpadded
//   cut out    | e | d   |:::| c | b | a |        ::: padding
//   saved as c           :   |b'…|                what is `shift` further on
//   in no file           |:::|                    it stood under the padding
//
// Everything after the first padding is shifted by the sum of the paddings
// before it. Past the end of what was gathered, zeros are saved.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "ckpt/catalog.h"
#include "formats/megatron/buckets/model.h"
#include "formats/megatron/state/buffers.h"

namespace ckpt::megatron {

// One buffer of a model-parallel rank, in module order.
struct JobBuffer {
  std::vector<RankParam> params;
  // False: another rank's copy of this parameter is the one that was saved.
  std::vector<bool> saved;
};

// Buffers that one divisor and one bucket size lay out.
struct JobBuffers {
  std::vector<JobBuffer> buffers;
  uint64_t ranks = 0;     // that share each of them; 0: unknown
  bool bucketed = false;  // if not, only shared embeddings have a bucket
};

// A job that may have saved a checkpoint: those of its buffers that may have
// several buckets, which are the first chunk's (and the last one's, if an
// embedding is shared). Whatever is not in them isn't shifted.
struct Job {
  std::vector<JobBuffers> groups;
};

// Calls `each` with the jobs that args, names and shapes leave possible. Throws
// unfaithful_error if there is none.
void each_job(const Catalog& catalog,
              const std::function<void(const Job&)>& each);

// What bucket ends may be padded to.
std::vector<uint64_t> divisors_of(uint64_t ranks);

// Elements of one parameter that were saved as elements of another, or of the
// same.
struct MovedRun {
  uint32_t to = 0;  // of the buffer's parameters
  uint64_t to_begin = 0;
  uint32_t from = 0;
  uint64_t from_begin = 0;
  uint64_t count = 0;
  bool moved() const { return to != from || to_begin != from_begin; }
};
struct ParamRun {
  uint32_t param = 0;
  uint64_t begin = 0;
  uint64_t end = 0;
};

struct Shift {
  std::vector<MovedRun> runs;   // in the buffer's order: none is before the
                                // place that it is read from
  std::vector<ParamRun> lost;   // in no file
  std::vector<ParamRun> zeros;  // saved, but of no parameter
};

Shift shift_of(const JobBuffer& buffer, const BufferLayout& layout);

BufferLayout lay_out(const JobBuffer& buffer, const BufferRules& rules);

}  // namespace ckpt::megatron
