#include <CLI/CLI.hpp>

#include "app/command.h"
#include "app/target_name.h"
#include "app/write.h"

namespace ckpt::app {
namespace {

class Convert : public Command {
 public:
  std::string_view name() const override { return "convert"; }
  std::string_view help() const override {
    return "rewrite a checkpoint in another format";
  }
  std::string_view examples() const override {
    return "ckpt convert model.pt model.safetensors --to safetensors\n"
           "ckpt convert step_5000 out --to torch --max-shard-size 5GB\n"
           "ckpt convert model.safetensors out --to fairseq2 --tp 4 "
           "--family llama";
  }
  void add_options(CLI::App& app) override {
    add_request_options(app, request_, "Where the new one goes");
    app.add_option("--to", to_, "Format of the target")
        ->type_name("FORMAT")
        ->required()
        ->group("Arguments");
    add_topology_options(app, topology_);
    add_optim_option(app, optim_);
  }
  ExitCode run() override {
    formats::find_format(to_);  // refused before anything is opened
    check_optim(optim_, to_);
    request_.command = "convert";
    request_.output = output;
    Catalog source = open_for_write(request_);
    Layout layout;
    layout.format = to_;
    layout.optimizer = optim_;
    const std::string file = file_format(request_.target_path);
    layout.single_file = !file.empty() && file == to_;
    if (!file.empty() && !layout.single_file)
      throw usage_error({request_.target_path, {}},
                        "--to {} does not fit a name of {}", to_, file);
    // Refused if a left side is not what the source holds.
    layout.topology = topology_.resolve(source.topology);
    if (!same_grid(source.format, to_)) layout.topology = topology_.alone();
    return write_checkpoint(request_, std::move(source), layout);
  }

 private:
  WriteRequest request_;
  TopologyOptions topology_;
  std::string to_;
  std::string optim_;
};

}  // namespace

std::unique_ptr<Command> make_convert() { return std::make_unique<Convert>(); }

}  // namespace ckpt::app
