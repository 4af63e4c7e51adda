// SPDX-License-Identifier: Apache-2.0
// What a command is. commands.cc lists all of them; one file defines each.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "app/options/options.h"
#include "ckpt/error.h"

namespace ckpt::app {

class Command {
 public:
  virtual ~Command() = default;
  virtual std::string_view name() const = 0;
  virtual std::string_view help() const = 0;  // one line
  // Lines for --help: "ckpt inspect step_5000   # comment".
  virtual std::string_view examples() const = 0;
  // Declares options and arguments that parse into members of the command.
  virtual void add_options(CLI::App& app) = 0;
  // Prints data with print() of console.h, logs with spdlog. Returns kDone or
  // kNegative; throws everything else as an Error.
  virtual ExitCode run() = 0;

  // Every command takes these; commands.cc adds them.
  OutputOptions output;
};

using Commands = std::vector<std::unique_ptr<Command>>;

std::unique_ptr<Command> make_completion();
std::unique_ptr<Command> make_convert();
std::unique_ptr<Command> make_demo();
std::unique_ptr<Command> make_diff();
std::unique_ptr<Command> make_doctor();
std::unique_ptr<Command> make_edit();
std::unique_ptr<Command> make_family();
std::unique_ptr<Command> make_fetch();
std::unique_ptr<Command> make_sync();
std::unique_ptr<Command> make_inspect();
std::unique_ptr<Command> make_ls();
std::unique_ptr<Command> make_man();
std::unique_ptr<Command> make_merge();
std::unique_ptr<Command> make_prune();
std::unique_ptr<Command> make_reshard();
std::unique_ptr<Command> make_run();
std::unique_ptr<Command> make_scan();
std::unique_ptr<Command> make_salvage();
std::unique_ptr<Command> make_show();
std::unique_ptr<Command> make_unshard();
std::unique_ptr<Command> make_verify();
std::unique_ptr<Command> make_view();
std::unique_ptr<Command> make_wait();
std::unique_ptr<Command> make_watch();

}  // namespace ckpt::app
