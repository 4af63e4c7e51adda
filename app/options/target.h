// SPDX-License-Identifier: Apache-2.0
// What reshard and convert are told about the target.
#pragma once

#include <string>

#include "app/commands/write.h"
#include "app/options/options.h"
#include "ckpt/layout.h"

namespace CLI {
class App;
}

namespace ckpt::app {

// --to --tp --pp --dp --ep --etp --vpp --pp-layout --optim --block-files
// --vocab-size --make-vocab-size-divisible-by --transformer-impl
struct TargetOptions {
  std::string to;       // "": the source's format
  std::string trainer;  // --to run: whose step; "": the source's own
  TopologyOptions topology;
  std::string optim;
  bool block_files = false;
  Layout::Megatron megatron;
  std::string stage_layers;  // "9,8,8,7"
};

void add_target_options(CLI::App& app, TargetOptions& options);

// Throws a usage_error for what can be told before anything is opened: an
// unknown format, an option that it does not have.
void check_target_options(const TargetOptions& options);

// Throws a usage_error if the options contradict each other, the name of DST
// or the source.
Layout make_layout(const WriteRequest& request, const TargetOptions& options,
                   const Catalog& source);

}  // namespace ckpt::app
