// SPDX-License-Identifier: Apache-2.0
// The heart of the planner: the boxes of one tensor become jobs.
//
// First, dimensions that no piece splits are joined, so that nearly every
// tensor becomes a row or a matrix. Then the matrix is cut at every row
// boundary of every piece. Between two cuts each piece is a lane, and the
// columns that a source lane and a target lane share are a move.
#pragma once

#include <vector>

#include "reshard/plan/placed.h"
#include "reshard/plan/plan.h"
#include "reshard/plan/slabs.h"

namespace ckpt::reshard {

// Adds the jobs that fill `targets` from `sources` (replicas already left
// out). Throws unfaithful_error, naming the elements, if the sources overlap
// or leave a part of a target uncovered.
void merge(const Cells& cells, std::vector<Placed> sources,
           std::vector<Placed> targets, Plan& plan);

// Sorts jobs so that sources are read front to back, file by file.
void order_jobs(Plan& plan);

// Sets bytes_read and bytes_written.
void count_bytes(Plan& plan);

}  // namespace ckpt::reshard
