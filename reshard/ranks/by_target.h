// SPDX-License-Identifier: Apache-2.0
// --exchange read: divides the work by the files that are written. Pure.
//
//   target files  | a    | b       | c | d       |
//   ranks         |   0      |    1         | 2   |     about equal bytes
//
// One rank writes a file and reads all that goes into it; what several files
// need is read by several ranks. For storage that reads fast from everywhere
// but does not like two machines writing into one file.
#pragma once

#include <cstdint>
#include <vector>

#include "ckpt/layout.h"
#include "reshard/plan/plan.h"
#include "reshard/plan/work.h"

namespace ckpt::ranks {

// The rank that writes each file: files in order, by bytes.
std::vector<uint32_t> owners_of(const Target& target, uint32_t ranks);

// The items refer to `plan`, which has the jobs of the whole plan, followed by
// parts of jobs that write for only one rank. Items of such parts have no
// number.
struct ByTarget {
  reshard::Plan plan;
  std::vector<std::vector<reshard::Item>> parts;  // by rank
};

ByTarget split_by_target(const reshard::Plan& plan, const Target& target,
                         const std::vector<reshard::Item>& items,
                         uint32_t ranks);

}  // namespace ckpt::ranks
