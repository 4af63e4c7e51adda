// SPDX-License-Identifier: Apache-2.0
#include "api/write/config_name.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "api/edit/config_edit.h"
#include "ckpt/note.h"
#include "containers/hf/hf.h"
#include "convert/config/dialects.h"
#include "formats/traits.h"
#include "lib/io/file.h"

namespace ckpt::library {
namespace {

bool names_a_model(const TargetFile& file) {
  Sidecar config{
      .name = formats::kConfig, .path = file.copy_of, .size = file.size};
  if (file.copy_of.empty()) {
    if (file.literals.size() != 1) return false;
    config.text =
        std::make_shared<const std::string>(file.literals.begin()->bytes);
  }
  if (!is_config_file(config)) return false;
  const ConfigTable table = config_of(config);
  return table.is_object() && table.contains("model_type");
}

// True if the source has it under the other name.
bool is_apart(const Catalog& source) {
  const auto has = [&](std::string_view name) {
    return std::ranges::any_of(source.file_list, [&](const SourceFile& file) {
      return io::base_name(file.path) == name;
    });
  };
  return has(formats::kForeignConfig) && !has(formats::kConfig);
}

bool is_foreign(const Catalog& source, std::string_view dialect) {
  if (std::ranges::find(source.problems, kOwnNames, &Problem::kind) !=
      source.problems.end())
    return true;
  if (dialect.empty()) return is_apart(source);
  if (dialect == "hf" || dialect == "vllm") return false;
  return !formats::traits_of(source.format).is_container ||
         source.dialect == dialect || is_apart(source);
}

}  // namespace

void name_config(const Catalog& source, Target& target) {
  if (!formats::traits_of(target.catalog.format).is_container) return;
  const std::string path = io::join(target.beside, formats::kConfig);
  const auto config = std::ranges::find(target.files, path, &TargetFile::path);
  const std::string_view dialect = families::dialect_of(source);
  std::string foreign = io::join(target.beside, formats::kForeignConfig);
  if (config == target.files.end() || !is_foreign(source, dialect) ||
      std::ranges::find(target.files, foreign, &TargetFile::path) !=
          target.files.end() ||
      !names_a_model(*config))
    return;
  config->path = std::move(foreign);
  target.problems.push_back(warning(
      "foreign_config", {},
      "config.json is written as {}: with {}, transformers would open the "
      "directory and not find its parameters",
      config->path,
      dialect.empty() || dialect == "hf"
          ? std::string("these names")
          : fmt::format("the names of {}", families::owner_of(dialect))));
}

}  // namespace ckpt::library
