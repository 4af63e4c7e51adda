// SPDX-License-Identifier: Apache-2.0
// From two catalogs to byte copies. Pure: values in, values out; no file is
// opened, so a plan can be printed, compared and tested by itself.
#pragma once

#include "ckpt/catalog.h"
#include "ckpt/layout.h"
#include "reshard/plan/plan.h"

namespace ckpt::reshard {

struct PlanSize;

// Proves, then plans: every element of every target piece has exactly one
// source, every source element reaches the target, no byte of a target file is
// written twice or left out. Otherwise throws unfaithful_error naming the
// tensor and the elements. Tensors are matched by name; differing dtypes are
// cast.
Plan make_plan(const Catalog& source, const Target& target,
               bool compare_replicas = true);

// For a run that needs no digests of tensors: digests only what compares
// replicas.
void leave_tensor_digests(Plan& plan);

// Reads every element once and writes nothing: digests, statistics, replica
// comparison. `size`: of the plan, if it is known (reshard/plan/plan_size.h).
Plan make_read_plan(const Catalog& source, bool compare_replicas,
                    const PlanSize* size = nullptr);

// Reads one box of one tensor to byte 0 of target file 0, row-major.
Plan make_box_plan(const Catalog& source, const Tensor& tensor, const Box& box);

}  // namespace ckpt::reshard
