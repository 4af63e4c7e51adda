// SPDX-License-Identifier: Apache-2.0
#include "app/commands/dialect.h"

#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>

#include "app/commands/source.h"
#include "app/options/read_paths.h"
#include "app/print/console.h"
#include "ckpt/error.h"

namespace ckpt::app {
namespace {

// What a conversion found in the source is listed like the findings of an open;
// what it says about names is printed unchanged; where in a file the model is,
// always.
void log_notes(const std::vector<Problem>& problems) {
  if (problems.size() == 1 && problems[0].kind == "model_at")
    say_note(problems[0].message);
  else if (problems.size() != 1 || problems[0].kind != "naming")
    log_problems(problems);
  else if (problems[0].severity == Problem::Severity::kNote)
    spdlog::info("{}", problems[0].message);
  else
    spdlog::warn("{}", problems[0].message);
}

}  // namespace

std::map<std::string, std::string> numbers_of(const DialectOptions& options) {
  std::map<std::string, std::string> set;
  for (const std::string& text : options.set) {
    const size_t sign = text.find('=');
    if (sign == 0 || sign == text.npos)
      throw usage_error({}, "--set {}: not NAME=VALUE", text)
          .with_hint(
              "a variable of the family: `ckpt family show NAME` lists "
              "them; --set nh=32");
    set[text.substr(0, sign)] = text.substr(sign + 1);
  }
  return set;
}

void add_dialect_options(CLI::App& app, DialectOptions& options) {
  const char* group = "Names";
  app.add_option("--dialect", options.dialect,
                 "Names and arrangement of the target: hf, mcore, meta, "
                 "fairseq2, olmo_core, keep (default: the format's)")
      ->type_name("NAME")
      ->check(CLI::IsMember({"hf", "mcore", "meta", "fairseq2", "olmo_core",
                             "olmo_legacy", "keep"}))
      ->group(group);
  app.add_option("--names", options.names,
                 "transformers' names: hub, transformers4 (both as they are "
                 "published), transformers5 (its modules', experts stacked)")
      ->type_name("HOW")
      ->check(CLI::IsMember({"hub", "transformers4", "transformers5"}))
      ->group(group);
  names_file(app.add_option("--family-file", options.family_file,
                            "Rules of a family that ckpt does not know"))
      ->type_name("FILE")
      ->group(group);
  names_directory(
      app.add_option(
          "--config-from", options.config_from,
          "Directory with the config.json and tokenizer of the model"))
      ->type_name("DIR")
      ->group(group);
  names_tokenizer(
      app.add_option(
          "--tokenizer-from", options.tokenizer_from,
          "Tokenizer of a GGUF target: a directory, a GGUF file, none"))
      ->type_name("PATH")
      ->group(group);
  app.add_flag("--strict-config", options.strict_config,
               "Refuse a config.json with keys that are not known")
      ->group(group);
  app.add_option("--set", options.set, "Override a number of the model: nh=32")
      ->type_name("NAME=VALUE")
      ->allow_extra_args(false)
      ->group(group);
  auto* tie = app.add_flag_callback(
      "--tie", [&options] { options.tied = true; },
      "The output layer is the embedding: it has to equal it");
  app.add_flag_callback(
         "--untie", [&options] { options.tied = false; },
         "The output layer is a tensor of its own")
      ->excludes(tie->group(group))
      ->group(group);
  app.add_option("--drop", options.drop,
                 "Tensors that the conversion may leave out")
      ->type_name("GLOB")
      ->allow_extra_args(false)
      ->group(group);
  app.add_option("--allow-missing", options.allow_missing,
                 "Tensors that may be missing")
      ->type_name("GLOB")
      ->allow_extra_args(false)
      ->group(group);
  app.add_option("--allow-unsaid", options.allow_unsaid,
                 "Facts of the model that the target may lose: names as in "
                 "errors and `inspect -v`")
      ->type_name("GLOB")
      ->allow_extra_args(false)
      ->group(group);
}

Naming naming_of(const DialectOptions& options, const std::string& family,
                 uint64_t vocab_size, std::optional<DType> dtype,
                 bool partial) {
  return {.dialect = options.dialect,
          .family = family,
          .family_file = options.family_file,
          .config_from = options.config_from,
          .set = numbers_of(options),
          .vocab_size = vocab_size,
          .tied = options.tied,
          .drop = options.drop,
          .allow_missing = options.allow_missing,
          .allow_unsaid = options.allow_unsaid,
          .strict_config = options.strict_config,
          .renamed = options.renamed,
          .partial = partial,
          .with_optimizer = options.with_optimizer,
          .dtype = dtype,
          .names = options.names,
          .tokenizer_from = options.tokenizer_from,
          .note = log_notes};
}

Catalog into_dialect(Catalog source, const DialectOptions& options,
                     const std::string& family, const std::string& to_format,
                     uint64_t vocab_size, std::optional<DType> dtype,
                     bool partial) {
  return ckpt::into_dialect(
      std::move(source), to_format,
      naming_of(options, family, vocab_size, dtype, partial));
}

}  // namespace ckpt::app
