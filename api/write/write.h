// SPDX-License-Identifier: Apache-2.0
// From a source catalog to a published target: shared by the commands and the
// public API.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "api/write/prepared.h"
#include "ckpt/ckpt.h"
#include "lib/progress.h"
#include "reshard/engine.h"

namespace ckpt::library {

// A plan that is only shown need not open every item of an index
// (containers/assume.h) nor keep every job (reshard/plan/plan_size.h).
// kRunAlone: it is run, and nobody asks for the catalogs' pieces after: those
// of a large plan go as they are planned.
enum class Use { kRun, kRunAlone, kShow };
// Gets the parts of a plan that is only shown, with source and target, one at a
// time.
using PlanSeen = std::function<void(
    const reshard::Plan& part, const Catalog& source, const Catalog& target)>;

// Sets `layout.name` from the path. Throws unfaithful_error if the target's
// format can't hold the topology or a tensor.
Prepared prepare(Catalog source, Layout layout, const std::string& path,
                 const SaveOptions& options, Use use = Use::kRun,
                 const PlanSeen& seen = {});

// prepare() refuses a source that lost layers of its model, unless this was
// called.
void accept_lost_layers(Catalog& source);

// Proves from the source's bytes what readers inferred (Catalog::claims).
// Throws unfaithful_error naming the parameter that disproves it.
void prove(const Prepared& prepared, const SaveOptions& options,
           const Progress& progress);

// Engine options for a plan; loads the cast module if the plan casts.
reshard::RunOptions run_options(const Prepared& prepared,
                                const SaveOptions& options);

// The most bytes that a run holds: buffers and plan.
uint64_t peak_memory(const Prepared& prepared, const SaveOptions& options);

// Throws what execute would throw before it writes: the target exists, or its
// directory is missing.
void check_target(const Prepared& prepared, const SaveOptions& options);

// The same, for a run that has a session: what the caller is told, it is told
// outside of that.
SaveOptions told_outside(SaveOptions options);

// Writes beside the target and renames. Throws Interrupted after a signal. The
// result has digests if anything needs them: a manifest of the target or the
// source, replicas to compare, or Prepared::sums.
reshard::RunResult execute(Prepared& prepared, const SaveOptions& options,
                           const Progress& progress);

}  // namespace ckpt::library
