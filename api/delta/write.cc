// SPDX-License-Identifier: Apache-2.0
#include "api/delta/write.h"

#include <fmt/format.h>

#include <utility>

#include "api/check/as_numbers.h"
#include "api/check/compare.h"
#include "api/check/meet.h"
#include "api/delta/lora.h"
#include "api/delta/lossless.h"
#include "api/delta/tensor_file.h"
#include "api/deltas.h"
#include "api/edit/select.h"
#include "api/memory.h"
#include "api/places.h"
#include "api/write/unproven.h"
#include "ckpt/error.h"
#include "formats/options.h"
#include "lib/session.h"
#include "lib/text/shell.h"

namespace ckpt {
namespace library {
namespace {

// What is computed of a source has to be of what was stored.
void need_stored_of(const Catalog& source, const Engine& engine) {
  try {
    need_stored(source, engine);
  } catch (const Error& error) {
    throw error.with_hint(fmt::format("`ckpt verify {}` lists all",
                                      text::shell_path(source.path)));
  }
}

// Throws unfaithful_error for a tensor that no difference is of.
std::vector<std::string> names_that_differ(const Comparison& result) {
  std::vector<std::string> names;
  for (const Difference& difference : result.differences) {
    if (difference.distance && difference.kind != "replica") {
      if (difference.distance->differing != 0)
        names.push_back(difference.tensor);
    } else if (!is_note(difference) && difference.kind != "object" &&
               difference.kind != "file") {
      throw unfaithful_error({{}, difference.tensor},
                             "{}: {}; no delta holds it", difference.kind,
                             difference.message)
          .with_hint("--model-only, or --exclude " + difference.tensor);
    }
  }
  return names;
}

std::vector<std::string> compared(Catalog& a, Catalog& b,
                                  const DeltaOptions& options,
                                  const Engine& engine) {
  const bool met = meet(a, b, options.family, engine);
  if (met && options.note)
    for (const Catalog* catalog : {&a, &b})
      for (const std::string& line : catalog->assumptions)
        options.note(catalog->path + ": " + line);
  const ReadAsNumbers read = as_numbers(a, b, engine);
  // Of the tensors alone: not its trainer's step, or files beside it.
  Comparison result = compare(a, b, {.describe = true}, engine);
  say_read(read, result);
  return names_that_differ(result);
}

LosslessOptions lossless_options(const DeltaOptions& options,
                                 const Engine& engine) {
  return {.threads = engine.threads,
          .max_mem = engine.max_mem,
          .overwrite = options.overwrite,
          .sync = options.sync,
          .dry_run = options.dry_run};
}

DeltaReport report_of(LosslessResult result) {
  return {.written = std::move(result.written),
          .tensors = result.tensors,
          .files = result.files,
          .bytes = result.bytes,
          .xored = result.xored};
}

}  // namespace

DeltaReport write_delta(Catalog a, Catalog b, const std::string& target,
                        const DeltaOptions& options, const Engine& engine) {
  check_target_name(target);
  for (const Catalog* source : {&a, &b}) need_stored_of(*source, engine);
  if (options.form == DeltaForm::kLossless)
    return report_of(write_lossless(std::move(a), std::move(b), target,
                                    lossless_options(options, engine),
                                    engine.make_progress()));
  select_both(a, b, options.selection);
  const std::vector<std::string> differing = compared(a, b, options, engine);
  const DifferenceOptions file{
      .dtype = options.dtype,
      .base = options.base.empty() ? a.path : options.base,
      .threads = engine.threads,
      .max_mem = engine.max_mem,
      .overwrite = options.overwrite,
      .sync = options.sync,
      .dry_run = options.dry_run};
  DeltaReport report{.tensors = b.tensors.size()};
  if (options.form == DeltaForm::kLora) {
    LoraResult result =
        write_lora(std::move(a), std::move(b), differing, target,
                   {file, options.rank}, engine.make_progress());
    report.written = std::move(result.written);
    report.modules = std::move(result.modules);
    report.saved = std::move(result.saved);
    return report;
  }
  const bool folder =
      target.ends_with('/') || formats::format_of_name(target).empty();
  report.written =
      write_difference(std::move(a), std::move(b), differing, target, folder,
                       file, engine.make_progress());
  return report;
}

DeltaReport restore_delta(Catalog base, const std::string& delta,
                          const std::string& target,
                          const DeltaOptions& options, const Engine& engine) {
  check_target_name(target);
  if (!is_lossless(delta))
    throw usage_error({delta, {}}, "not a lossless delta")
        .with_hint("`ckpt diff A B --write DELTA --lossless` writes one");
  return report_of(restore_lossless(std::move(base), delta, target,
                                    lossless_options(options, engine),
                                    engine.make_progress()));
}

}  // namespace library

namespace {

// What the caller gave to be called opens files of its own.
DeltaOptions told_outside(DeltaOptions options) {
  options.progress = outside(std::move(options.progress));
  options.note = outside(std::move(options.note));
  return options;
}

library::Engine engine_of(const DeltaOptions& options) {
  library::Engine engine{.threads = options.threads,
                         .max_mem = options.max_mem,
                         .note = options.note};
  if (options.progress)
    engine.progress = [tell = options.progress] {
      return library::stages_told(tell);
    };
  return engine;
}

}  // namespace

DeltaReport write_delta(Catalog a, Catalog b, const std::string& target,
                        const DeltaOptions& asked) {
  library::check_catalog(a);
  library::check_catalog(b);
  if (asked.form == DeltaForm::kLora && asked.rank == 0)
    throw usage_error({target, {}}, "a LoRA of rank 0");
  if (asked.form == DeltaForm::kLossless && asked.selection != Selection())
    throw usage_error({target, {}}, "a lossless delta is of all files of B");
  const DeltaOptions options = told_outside(asked);
  const Session::Own session;
  Session::current()->watch.begin();
  return library::write_delta(std::move(a), std::move(b),
                              library::target_place(target), options,
                              engine_of(options));
}

DeltaReport restore_delta(Catalog base, const std::string& delta,
                          const std::string& target,
                          const DeltaOptions& asked) {
  library::check_catalog(base);
  const DeltaOptions options = told_outside(asked);
  const Session::Own session;
  Session::current()->watch.begin();
  return library::restore_delta(std::move(base), delta,
                                library::target_place(target), options,
                                engine_of(options));
}

bool is_difference(const Catalog& catalog) {
  return library::is_delta(catalog);
}

}  // namespace ckpt
