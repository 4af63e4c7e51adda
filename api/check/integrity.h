// SPDX-License-Identifier: Apache-2.0
// Is one checkpoint whole, and as it was written?
#pragma once

#include <string>

#include "api/engine.h"
#include "ckpt/check.h"
#include "ckpt/select.h"
#include "formats/format.h"

namespace ckpt::library {

struct IntegrityOptions {
  bool deep = false;         // read everything, so that replicas are compared
  bool finite = false;       // NaN and infinities are reported
  bool quick = false;        // headers, sizes and bounds: no payload is read
  bool strict = false;       // warnings and what can't be told are failures
  bool seal = false;         // a manifest is written if there is no problem
  std::string against = {};  // a list of checksums, or a manifest
  std::string from = {};     // the format, if it is not to be detected
  formats::ReadOptions read = {};
};

// verify() of ckpt/check.h, for a source opened with any options.
Report check_integrity(const std::string& path, const Selection& selection,
                       const IntegrityOptions& options, const Engine& engine);

// The checksums of files that can't be opened as a checkpoint.
void check_blobs(const std::string& path, const IntegrityOptions& options,
                 const Engine& engine, Report& report);

// Damage that an error tells of, with its hint.
Problem problem_of(const Error& error, std::string kind);

// True for what is reported, but not as a problem: what the trainer's loader
// does without, checksums that were compared, what is no model at all.
bool is_remark(const Problem& problem);

// From the problems, report.open and `strict`: report.verdict and report.ok.
void judge(Report& report, bool strict);

}  // namespace ckpt::library
