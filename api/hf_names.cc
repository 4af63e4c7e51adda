// SPDX-License-Identifier: Apache-2.0
#include "api/hf_names.h"

#include <utility>

#include "ckpt/error.h"
#include "containers/hf/hf.h"
#include "convert/dialects.h"
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

}  // namespace ckpt::library
