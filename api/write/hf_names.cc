// SPDX-License-Identifier: Apache-2.0
#include "api/write/hf_names.h"

#include <fmt/format.h>

#include <utility>

#include "ckpt/error.h"
#include "containers/hf/hf.h"
#include "convert/config/dialects.h"
#include "convert/config/values.h"
#include "convert/rules/optimizer.h"
#include "formats/traits.h"
#include "models/hf_names.h"

namespace ckpt::library {

void take_hub_names(Catalog& source) {
  const auto config = formats::config_json_of(source);
  if (families::dialect_of(source) != "hf" ||
      !families::has_module_names(source, config))
    return;
  try {
    Catalog copy = source;
    locate(copy);
    families::take_hf_names(copy, config, families::HfNames::kHub);
    source = std::move(copy);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUnfaithful) throw;
  }
}

void take_names(Catalog& source, const Naming& naming,
                const std::string& to_format) {
  const formats::Traits& target = formats::traits_of(to_format);
  if (!(target.is_container || target.any_tensors) ||
      families::dialect_of(source) != "hf")
    throw usage_error({source.path, {}},
                      "--names {}: is for transformers' names, and the "
                      "target's are others",
                      naming.names)
        .with_hint("leave --names out, or write --to safetensors");
  locate(source);
  families::take_hf_names(source, formats::config_json_of(source),
                          naming.names == "transformers5"
                              ? families::HfNames::kModule
                              : families::HfNames::kHub);
}

std::string hindrance(const Catalog& source, std::string_view from,
                      const families::TranslateOptions& options) {
  if (families::has_optimizer(source))
    return "optimizer state is named by them; --model-only leaves it out";
  try {
    (void)families::values_of(source, from);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUnfaithful) throw;
    return error.problem();
  }
  const auto family = families::find_family(source, options);
  if (!family)
    return "the model's family is not known: --family NAME says it "
           "(`ckpt family list`)";
  if (!family->dialect(from))
    return fmt::format("family {} has no rules for them", family->name());
  if (families::values_of(source, from).source.empty() &&
      families::values_of(source, "hf").source.empty())
    return "nothing says the model's numbers: --config-from DIR does";
  return {};
}

}  // namespace ckpt::library
