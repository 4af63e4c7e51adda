// SPDX-License-Identifier: Apache-2.0
// Is one checkpoint whole, and as it was written?
#pragma once

#include <string>

#include "app/options/options.h"
#include "app/print/report.h"

namespace ckpt::app {

struct IntegrityOptions {
  bool deep = false;    // read everything, so that replicas are compared
  bool finite = false;  // NaN and infinities are reported
  bool quick = false;   // headers, sizes and bounds: no payload is read
};

// Headers and their bounds, an exact cover by pieces, stored checksums, and
// if there is a manifest its sizes and digests. What is wrong is in the
// report; only a path that is missing or unknown, or unsafe input, is thrown.
VerifyReport check_integrity(const std::string& path,
                             const SourceOptions& source,
                             const SelectOptions& selected,
                             const IntegrityOptions& options,
                             const EngineOptions& engine,
                             const OutputOptions& output);

}  // namespace ckpt::app
