#include "app/dialect.h"

#include <spdlog/spdlog.h>

#include <CLI/CLI.hpp>

#include "ckpt/error.h"
#include "formats/families/translate.h"

namespace ckpt::app {
namespace {

constexpr std::string_view kKeep = "keep";

families::Overrides overrides_of(const DialectOptions& options,
                                 uint64_t vocab_size) {
  families::Overrides set;
  for (const std::string& text : options.set) {
    const size_t sign = text.find('=');
    if (sign == 0 || sign == text.npos)
      throw usage_error({}, "--set {}: not NAME=VALUE", text)
          .with_hint(
              "a variable of the family: `ckpt family show NAME` lists "
              "them; --set nh=32");
    set[text.substr(0, sign)] = text.substr(sign + 1);
  }
  if (vocab_size != 0) set["V"] = std::to_string(vocab_size);
  return set;
}

// True if a container of any dialect is to get that of transformers.
bool wants_hf(const Catalog& source, const families::TranslateOptions& options,
              const std::string& to_format) {
  if (to_format != "safetensors" && to_format != "torch") return false;
  if (source.format == "meta" || !options.family.empty() ||
      !options.family_file.empty() || !options.config_from.empty())
    return true;
  // A checkpoint of Megatron's that ckpt made of another says its family.
  return source.format.starts_with("megatron_") &&
         families::find_family(source, options) != nullptr;
}

// What only a conversion between dialects looks at.
void check_unused(const DialectOptions& options, uint64_t vocab_size,
                  const std::string& to_format) {
  const bool megatron = to_format.starts_with("megatron_");
  for (const auto& [name, given] :
       {std::pair{"--config-from", !options.config_from.empty()},
        std::pair{"--set", !options.set.empty()},
        std::pair{"--drop", !options.drop.empty()},
        std::pair{"--allow-missing", !options.allow_missing.empty()},
        std::pair{"--vocab-size", vocab_size != 0 && !megatron}})
    if (given)
      throw usage_error({}, "{}: nothing is converted between dialects here",
                        name)
          .with_hint(
              "--dialect NAME asks for it; --exclude leaves tensors "
              "out in any case");
}

}  // namespace

void add_dialect_options(CLI::App& app, DialectOptions& options) {
  const char* group = "Names";
  app.add_option("--dialect", options.dialect,
                 "Names and arrangement of the target: hf, mcore, meta, "
                 "fairseq2, olmo_core, keep (default: the format's)")
      ->type_name("NAME")
      ->check(CLI::IsMember({"hf", "mcore", "meta", "fairseq2", "olmo_core",
                             "olmo_legacy", "keep"}))
      ->group(group);
  app.add_option("--family-file", options.family_file,
                 "Rules of a family that ckpt does not know")
      ->type_name("FILE")
      ->group(group);
  app.add_option("--config-from", options.config_from,
                 "Directory with the config.json and tokenizer of the model")
      ->type_name("DIR")
      ->group(group);
  app.add_option("--set", options.set,
                 "A number of the model, in the place of what is found: nh=32")
      ->type_name("NAME=VALUE")
      ->allow_extra_args(false)
      ->group(group);
  app.add_option("--drop", options.drop,
                 "Tensors that the conversion may leave out")
      ->type_name("GLOB")
      ->allow_extra_args(false)
      ->group(group);
  app.add_option("--allow-missing", options.allow_missing,
                 "Tensors that the conversion may do without")
      ->type_name("GLOB")
      ->allow_extra_args(false)
      ->group(group);
}

Catalog into_dialect(Catalog source, const DialectOptions& options,
                     const std::string& family, const std::string& to_format,
                     uint64_t vocab_size, std::optional<DType> dtype,
                     bool partial) {
  if (options.dialect == kKeep) return source;
  families::TranslateOptions translate{.to = options.dialect,
                                       .family = family,
                                       .family_file = options.family_file,
                                       .config_from = options.config_from,
                                       .set = overrides_of(options, vocab_size),
                                       .drop = options.drop,
                                       .allow_missing = options.allow_missing,
                                       .dtype = dtype};
  const std::string_view from = families::dialect_of(source);
  if (translate.to.empty())
    translate.to =
        to_format == "vllm" ? "hf" : families::dialect_of_format(to_format);
  if (translate.to.empty() && wants_hf(source, translate, to_format))
    translate.to = "hf";
  const bool foreign = from.empty() && options.dialect.empty();
  // Names that no dialect has: the format's writer says what it makes of them.
  if (translate.to.empty() || translate.to == from || foreign ||
      from == "vllm") {
    check_unused(options, vocab_size, to_format);
    if (from == "mcore" && translate.to.empty() &&
        (to_format == "safetensors" || to_format == "torch"))
      spdlog::warn(
          "names stay Megatron's: --family NAME makes them those of "
          "transformers (`ckpt family list`), --dialect keep is silent");
    return source;
  }
  if (partial) translate.allow_missing.emplace_back("*");
  const auto problems = static_cast<ptrdiff_t>(source.problems.size());
  const auto assumptions = static_cast<ptrdiff_t>(source.assumptions.size());
  source = families::translate(std::move(source), translate);
  log_problems({source.problems.begin() + problems, source.problems.end()});
  for (auto line = source.assumptions.begin() + assumptions;
       line != source.assumptions.end(); ++line)
    spdlog::info("{}", *line);
  return source;
}

bool meet(Catalog& a, Catalog& b, const std::string& family) {
  const std::string_view from_a = families::dialect_of(a);
  const std::string_view from_b = families::dialect_of(b);
  if (from_a.empty() || from_b.empty()) return false;
  // Megatron's formats have names of their own for one dialect.
  const bool same_names =
      from_a == from_b && (from_a != "mcore" || a.format == b.format);
  if (same_names || from_a == "vllm" || from_b == "vllm") return false;
  families::TranslateOptions options{.to = "hf", .family = family};
  options.lenient = true;
  auto of_a = families::find_family(a, options);
  auto of_b = families::find_family(b, options);
  if (!of_a && !of_b) {
    spdlog::warn(
        "{} has the names of {}, {} of {}: --family NAME compares "
        "them as one model",
        a.path, from_a, b.path, from_b);
    return false;
  }
  const std::string path_a = a.path, path_b = b.path;
  const auto bring = [&](Catalog& catalog, const auto& own, const auto& other,
                         const std::string& beside) {
    if (families::dialect_of(catalog) == "hf") return;
    families::TranslateOptions one = options;
    if (!own) one.family = other->name();
    if (families::values_of(catalog, families::dialect_of(catalog))
            .source.empty())
      one.config_from = beside;
    catalog = families::translate(std::move(catalog), one);
  };
  bring(a, of_a, of_b, path_b);
  bring(b, of_b, of_a, path_a);
  return true;
}

}  // namespace ckpt::app
