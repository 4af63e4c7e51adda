// SPDX-License-Identifier: Apache-2.0
// The manual, generated from the options themselves.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>

#include "app/command.h"
#include "app/commands/man_page.h"
#include "app/options/options.h"
#include "app/options/written.h"
#include "app/print/console.h"
#include "app/print/json_writer.h"
#include "lib/io/file.h"
#include "lib/text/format.h"
#include "lib/text/suggest.h"

namespace ckpt::app {
namespace {

class Man : public Command {
 public:
  std::string_view name() const override { return "man"; }
  std::string_view help() const override {
    return "print the manual, or write it as pages for man(1)";
  }
  std::string_view examples() const override {
    return "ckpt man convert | man -l -\n"
           "ckpt man --dir ~/.local/share/man/man1   # all pages";
  }
  void add_options(CLI::App& app) override {
    app.add_option("COMMAND", command_, "Its page (default: of ckpt itself)")
        ->group("Arguments");
    app.add_option("--dir", directory_, "Write all pages there")
        ->type_name("DIR")
        ->group("Output");
  }
  ExitCode run() override {
    const std::vector<CommandRow> table = option_table();
    JsonWriter json;
    json.begin_document("man");
    if (!directory_.empty()) {
      json.key("files").begin_array();
      for (const std::string& path : write_all(table)) json.value(path);
      json.end_array();
    } else {
      const std::string page =
          command_.empty() ? main_page(table) : command_page(row_of(table));
      json.member("text", page);
      if (!output.json) {
        print(page);
        if (stdout_is_terminal())
          say_note("this is roff, for `man -l -`; --help is plain text");
      }
    }
    json.end_object();
    if (output.json) print(std::move(json).text());
    return ExitCode::kDone;
  }

 private:
  const CommandRow& row_of(const std::vector<CommandRow>& table) const {
    std::vector<std::string> names;
    for (const CommandRow& row : table) {
      if (row.name == command_) return row;
      names.push_back(row.name);
    }
    const std::string near = text::nearest(command_, names);
    throw usage_error({}, "unknown command '{}'", text::printable(command_))
        .with_hint(near.empty() ? "ckpt --help lists them"
                                : fmt::format("did you mean {}?", near));
  }

  std::vector<std::string> write_all(
      const std::vector<CommandRow>& table) const {
    std::error_code failure;
    std::filesystem::create_directories(directory_, failure);
    if (failure)
      throw io_error(directory_, "can't create the directory", failure.value());
    std::vector<std::pair<std::string, std::string>> pages = {
        {place("ckpt"), main_page(table)}};
    for (const CommandRow& row : table)
      pages.emplace_back(place("ckpt-" + row.name), command_page(row));
    // None is written if another is in the way.
    for (const auto& [path, page] : pages)
      io::check_note_place(path, note_rules("--dir", output));
    std::vector<std::string> paths;
    for (const auto& [path, page] : pages) {
      write_output(path, "--dir", output, page);
      paths.push_back(path);
    }
    return paths;
  }

  std::string place(const std::string& name) const {
    return io::join(directory_, name + ".1");
  }

  std::string command_;
  std::string directory_;
};

}  // namespace

std::unique_ptr<Command> make_man() { return std::make_unique<Man>(); }

}  // namespace ckpt::app
