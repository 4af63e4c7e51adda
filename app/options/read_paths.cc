// SPDX-License-Identifier: Apache-2.0
#include "app/options/read_paths.h"

#include <fmt/format.h>

#include <string>

#include "api/edit/rename.h"
#include "ckpt/error.h"
#include "formats/runs/optimizer/order.h"
#include "formats/unrecognized.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::app {
namespace {

// An unnamed validator leaves the option's help as it is.
CLI::Option* checked(CLI::Option* option,
                     void (*check)(const std::string& name,
                                   const std::string& path)) {
  return option->check(
      [check, name = option->get_name()](const std::string& path) {
        check(name, path);
        return std::string();
      });
}

void check_file(const std::string& name, const std::string& path) {
  if (path.starts_with('{'))
    throw usage_error({}, "{} takes a file, not the JSON itself", name)
        .with_hint(
            fmt::format("write it to rules.json, then {} rules.json", name));
  formats::check_named(path);
  if (io::is_directory(path))
    throw usage_error({path, {}}, "{}: is a directory, not a file", name)
        .with_hint("name a file in it");
}

void check_directory(const std::string& name, const std::string& path) {
  formats::check_named(path);
  if (io::is_file(path))
    throw usage_error({path, {}}, "{}: is a file, not a directory", name)
        .with_hint("name the directory that it is in: " +
                   text::printable(io::parent(path)));
}

}  // namespace

CLI::Option* names_file(CLI::Option* option) {
  return checked(option, check_file);
}

CLI::Option* names_rules(CLI::Option* option) {
  return checked(option, [](const std::string& name, const std::string& text) {
    if (!library::is_rule_text(text)) check_file(name, text);
  });
}

CLI::Option* names_directory(CLI::Option* option) {
  return checked(option, check_directory);
}

CLI::Option* names_either(CLI::Option* option) {
  return checked(option, [](const std::string&, const std::string& path) {
    formats::check_named(path);
  });
}

CLI::Option* names_tokenizer(CLI::Option* option) {
  return checked(option, [](const std::string&, const std::string& path) {
    if (path != "none") formats::check_named(path);
  });
}

CLI::Option* names_order(CLI::Option* option) {
  return checked(option, [](const std::string&, const std::string& text) {
    runs::check_order(text);
  });
}

}  // namespace ckpt::app
