#include <CLI/CLI.hpp>

#include "app/command.h"
#include "app/write.h"

namespace ckpt::app {
namespace {

class Reshard : public Command {
 public:
  std::string_view name() const override { return "reshard"; }
  std::string_view help() const override {
    return "rewrite a checkpoint for another topology, in its own format";
  }
  std::string_view examples() const override {
    return "ckpt reshard step_5000 step_5000_tp8 --tp 8\n"
           "ckpt reshard step_5000 out --tp 4:8 --dp 2 --dry-run\n"
           "ckpt reshard step_5000 out --tp 8 --shard-dims rules.json";
  }
  void add_options(CLI::App& app) override {
    add_request_options(app, request_, "Where the new one goes");
    add_topology_options(app, topology_);
    add_optim_option(app, optim_);
  }
  ExitCode run() override {
    request_.command = "reshard";
    request_.output = output;
    Catalog source = open_for_write(request_);
    Layout layout;
    layout.format = source.format;
    check_optim(optim_, layout.format);
    layout.optimizer = optim_;
    layout.topology = topology_.resolve(source.topology);
    return write_checkpoint(request_, std::move(source), layout);
  }

 private:
  WriteRequest request_;
  TopologyOptions topology_;
  std::string optim_;
};

}  // namespace

std::unique_ptr<Command> make_reshard() { return std::make_unique<Reshard>(); }

}  // namespace ckpt::app
