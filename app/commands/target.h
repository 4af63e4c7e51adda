// SPDX-License-Identifier: Apache-2.0
// The options of reshard and convert that describe the target.
#pragma once

#include <map>
#include <string>

#include "app/commands/write.h"
#include "app/options/options.h"
#include "ckpt/layout.h"

namespace CLI {
class App;
}

namespace ckpt::app {

// --to --tp --pp --dp --ep --vocab-size and the options that formats own
struct TargetOptions {
  std::string to;  // "": the source's format
  TopologyOptions topology;
  uint64_t vocab_size = 0;  // 0: as the source says
  decltype(Layout::options) options;
};

void add_target_options(CLI::App& app, TargetOptions& options);

// Throws usage_error for mistakes that are clear before anything is opened: an
// unknown format, an option that it lacks.
void check_target_options(const TargetOptions& options);

// The format of a target that nobody names: a trainer's step stays one, except
// for a single file and for formats whose steps are rewritten as themselves.
std::string own_format(const WriteRequest& request, const Catalog& source);
// The same where a step may become another thing: the model alone is a folder
// of weights.
std::string own_container(const WriteRequest& request, const Catalog& source);

// Throws usage_error if options contradict each other, the name of DST or the
// source.
Layout make_layout(const WriteRequest& request, const TargetOptions& options,
                   const Catalog& source);

}  // namespace ckpt::app
