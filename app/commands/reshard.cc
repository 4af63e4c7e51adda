// SPDX-License-Identifier: Apache-2.0
#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>

#include "api/edit/vocabulary.h"
#include "app/command.h"
#include "app/commands/dialect.h"
#include "app/commands/source.h"
#include "app/commands/target.h"
#include "app/commands/within.h"
#include "app/commands/write.h"
#include "app/print/console.h"
#include "convert/check_source.h"
#include "convert/config/dialects.h"
#include "lib/io/file.h"

namespace ckpt::app {
namespace {

class Reshard : public Command {
 public:
  std::string_view name() const override { return "reshard"; }
  std::string_view help() const override {
    return "rewrite a checkpoint for another topology";
  }
  std::string_view examples() const override {
    return "ckpt reshard step_5000 step_5000_tp8 --tp 8\n"
           "ckpt reshard step_5000 out --tp 4:8 --dp 2 --dry-run\n"
           "ckpt reshard step_5000 out --tp 8 --shard-dims rules.json\n"
           "ckpt reshard Llama-3-8B out --to modelopt --pp 4";
  }
  void add_options(CLI::App& app) override {
    add_request_options(app, request_, "Where the new one goes");
    add_target_options(app, target_);
  }
  ExitCode run() override {
    check_target_options(target_);
    request_.command = "reshard";
    request_.output = output;
    return within_memory(request_, [this] { return write(); });
  }

 private:
  ExitCode write() {
    Catalog source = open_for_write(request_);
    if (target_.to.empty()) {
      log_problems(families::check_beside(
          source, {.family = request_.source.read.family}));
      if (target_.vocab_size != 0 && families::dialect_of(source) == "mcore")
        if (const std::string lost =
                library::follow_vocabulary(source, target_.vocab_size);
            !lost.empty())
          spdlog::warn("{}", lost);
    } else {
      source = into_dialect(std::move(source),
                            {.renamed = !request_.write.rename_file.empty()},
                            request_.source.read.family, target_.to,
                            target_.vocab_size, request_.write.dtype, true);
    }
    const Layout layout = make_layout(request_, target_, source);
    if (target_.to.empty() && source.run && layout.format == source.format &&
        io::is_file(source.path))
      spdlog::warn(
          "what is written is a plain file of {}, which {} does not resume "
          "from: --to run writes its own; `ckpt convert SRC DST --to run "
          "--trainer {} --dp N` a folder for any number of ranks",
          layout.format, source.run->trainer, source.run->trainer);
    if (target_.to.empty() && !target_.topology.any() &&
        target_.options.empty())
      say_note("the topology stays " + to_string(layout.topology) +
               ": --tp, --pp, --dp and --ep change it");
    return write_checkpoint(request_, std::move(source), layout);
  }

  WriteRequest request_;
  TargetOptions target_;
};

}  // namespace

std::unique_ptr<Command> make_reshard() { return std::make_unique<Reshard>(); }

}  // namespace ckpt::app
