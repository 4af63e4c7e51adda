// SPDX-License-Identifier: Apache-2.0
// Completion of command lines, generated from the options themselves.
#include <CLI/CLI.hpp>

#include "app/command.h"
#include "app/commands/completion_scripts.h"
#include "app/print/console.h"
#include "app/print/json_writer.h"

namespace ckpt::app {
namespace {

class Completion : public Command {
 public:
  std::string_view name() const override { return "completion"; }
  std::string_view help() const override {
    return "print the script by which a shell completes ckpt";
  }
  std::string_view examples() const override {
    return "source <(ckpt completion bash)\n"
           "ckpt completion zsh > ~/.zfunc/_ckpt   # a directory of $fpath\n"
           "ckpt completion fish > ~/.config/fish/completions/ckpt.fish";
  }
  void add_options(CLI::App& app) override {
    app.add_option("SHELL", shell_, "bash, zsh or fish")
        ->required()
        ->check(CLI::IsMember({"bash", "zsh", "fish"}))
        ->group("Arguments");
  }
  ExitCode run() override {
    const std::vector<CommandRow> table = option_table();
    const std::string script = shell_ == "bash"  ? bash_completion(table)
                               : shell_ == "zsh" ? zsh_completion(table)
                                                 : fish_completion(table);
    if (output.json) {
      JsonWriter json;
      json.begin_document("completion").member("shell", shell_);
      json.member("text", script).end_object();
      print(std::move(json).text());
    } else {
      print(script);
    }
    return ExitCode::kDone;
  }

 private:
  std::string shell_;
};

}  // namespace

std::unique_ptr<Command> make_completion() {
  return std::make_unique<Completion>();
}

}  // namespace ckpt::app
