#include <CLI/CLI.hpp>

#include "app/command.h"
#include "app/dialect.h"
#include "app/target.h"
#include "app/target_name.h"
#include "app/words.h"
#include "app/write.h"
#include "ckpt/error.h"

namespace ckpt::app {
namespace {

class Convert : public Command {
 public:
  std::string_view name() const override { return "convert"; }
  std::string_view help() const override {
    return "rewrite a checkpoint in another format";
  }
  std::string_view examples() const override {
    return "ckpt convert model.pt model.safetensors\n"
           "ckpt convert step_5000 out --to torch --max-shard-size 5GB\n"
           "ckpt convert Llama-3-8B out --to megatron_torch_dist --tp 8 --pp "
           "4\n"
           "ckpt convert iter_0001000 out --to safetensors --family llama";
  }
  void add_options(CLI::App& app) override {
    add_request_options(app, request_, "Where the new one goes");
    add_target_options(app, target_);
    add_dialect_options(app, dialect_);
  }
  ExitCode run() override {
    check_target_name(request_.target_path);
    // The ending of a file's name says it, as it does for unshard.
    if (target_.to.empty()) target_.to = file_format(request_.target_path);
    if (target_.to.empty())
      throw usage_error({}, "--to FORMAT is required")
          .with_hint(
              "ckpt convert SRC DST --to safetensors; the name of a file "
              "(.safetensors, .pt) says it, too");
    check_target_options(target_);
    check_optim(target_.optim, target_.to);
    request_.command = "convert";
    request_.output = output;
    Catalog source = open_for_write(request_);
    const bool any = !source.tensors.empty();
    const SelectOptions& select = request_.select;
    const bool partial = !select.keys.empty() || !select.exclude.empty() ||
                         !select.layers.empty() || !select.blocks.empty();
    source = into_dialect(
        std::move(source), dialect_, request_.source.read.family, target_.to,
        target_.megatron.vocab_size, request_.write.dtype, partial);
    if (source.tensors.empty() && any)
      throw usage_error({request_.source_path, {}},
                        "--drop leaves no tensor: nothing would be written");
    const Layout layout = make_layout(request_, target_, source);
    return write_checkpoint(request_, std::move(source), layout);
  }

 private:
  WriteRequest request_;
  TargetOptions target_;
  DialectOptions dialect_;
};

}  // namespace

std::unique_ptr<Command> make_convert() { return std::make_unique<Convert>(); }

}  // namespace ckpt::app
