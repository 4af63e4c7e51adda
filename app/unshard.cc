#include <CLI/CLI.hpp>

#include "app/command.h"
#include "app/target_name.h"
#include "app/write.h"

namespace ckpt::app {
namespace {

class Unshard : public Command {
 public:
  std::string_view name() const override { return "unshard"; }
  std::string_view help() const override {
    return "join all shards: one file, or a directory of whole tensors";
  }
  std::string_view examples() const override {
    return "ckpt unshard step_5000 model.safetensors --model-only\n"
           "ckpt unshard step_5000 model.pt --dtype bf16\n"
           "ckpt unshard step_5000 whole/ --max-shard-size 5GB";
  }
  void add_options(CLI::App& app) override {
    add_request_options(
        app, request_, "A directory, or a file: .safetensors, .pt, .pth, .bin");
  }
  ExitCode run() override {
    request_.command = "unshard";
    request_.output = output;
    Catalog source = open_for_write(request_);
    Layout layout;
    layout.format = file_format(request_.target_path);
    layout.single_file = !layout.format.empty();
    if (!layout.single_file)
      layout.format = has_grid(source.format) ? "safetensors" : source.format;
    return write_checkpoint(request_, std::move(source), layout);
  }

 private:
  WriteRequest request_;
};

}  // namespace

std::unique_ptr<Command> make_unshard() { return std::make_unique<Unshard>(); }

}  // namespace ckpt::app
