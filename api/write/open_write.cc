// SPDX-License-Identifier: Apache-2.0
#include "api/write/open_write.h"

#include <fmt/format.h>

#include "api/write/losses.h"
#include "api/write/manifests.h"
#include "api/write/unproven.h"
#include "api/write/write_steps.h"
#include "lib/io/file.h"
#include "reshard/engine.h"
#include "reshard/ranks/run.h"

namespace ckpt::library {

OpenWrite::OpenWrite(Prepared prepared, const SaveOptions& options,
                     ranks::Owners owners, uint32_t ranks, bool one_machine)
    : prepared_(std::move(prepared)), options_(options) {
  const bool sent = io::is_target_url(prepared_.path);
  if (sent && !one_machine)
    throw usage_error({prepared_.path, {}},
                      "what is sent lies on one machine until then, and the "
                      "ranks of this save are on several")
        .with_hint(
            "save to a directory that all of them see, then copy it: ckpt "
            "reshard SRC URL");
  check_target(prepared_, options_);
  ranks::cut_by_owner(prepared_.plan, owners);
  parts_ = ranks::split_by_owner(prepared_.plan, owners, ranks);
  staging_ = std::make_unique<io::Staging>(
      prepared_.path, staging_options(prepared_, options_));
  if (prepared_.single_file)
    prepared_.target.files.front().path = io::base_name(staging_->target());
  if (sent) {
    staging_->check_space(prepared_.file_bytes());  // all of it lies there
    options_.sync = false;  // a spool need not survive a power loss
  }
  make_files(prepared_, *staging_, false);
  staging_->share_lock();
}

OpenWrite::~OpenWrite() = default;

reshard::RunOptions OpenWrite::run_options() const {
  reshard::RunOptions run = library::run_options(prepared_, options_);
  run.digest =
      wants_sums(prepared_, options_) || !prepared_.plan.replicas.empty();
  return run;
}

ranks::Share OpenWrite::share_of(uint32_t rank, uint32_t neighbours) const {
  const reshard::RunOptions run = run_options();
  ranks::Share share = ranks::make_share(prepared_.plan, prepared_.source,
                                         &prepared_.target, parts_.at(rank));
  share.root = staging_->root();
  // Its lock excludes a later run while this rank may still write.
  if (rank != 0)
    share.journal = fmt::format("{}.{}", staging_->journal_path(), rank);
  share.max_mem = run.max_mem;
  share.block = run.block;
  share.threads = run.threads;
  share.neighbours = neighbours;
  share.io = run.io;
  share.digest = run.digest;
  share.sync = options_.sync;
  share.cuda = options_.cuda;
  share.count_losses = run.count_losses;
  share.saturate = run.saturate;
  return share;
}

Preview OpenWrite::finish(const std::vector<std::string>& reports) {
  reshard::Output output(prepared_.target, staging_->root());
  const reshard::RunResult result = ranks::add_up(
      prepared_.plan, prepared_.source, output, run_options(), reports);
  check_losses(prepared_.path, prepared_.plan, result, options_.overflow);
  check_copies(prepared_, result, options_);
  write_rest(prepared_, output, staging_->root(), true);
  if (options_.manifest) write_manifest(prepared_, result, *staging_);
  publish(prepared_, *staging_, options_);
  Preview preview;
  preview.bytes_read = result.bytes_read;
  preview.bytes_written = prepared_.file_bytes();
  preview.peak_memory = peak_memory(prepared_, options_);
  preview.target = std::move(prepared_.target);
  return preview;
}

}  // namespace ckpt::library
