// SPDX-License-Identifier: Apache-2.0
// Adapters in the C interface (ckpt/adapter.h).
#include "ckpt/adapter.h"

#include <cstring>
#include <nlohmann/json.hpp>

#include "api/c/handles.h"

namespace ckpt {
namespace {

AdapterOptions options_of(const ckpt_adapter_options* given) {
  AdapterOptions options;
  if (!given) return options;
  if (given->alpha) options.alpha = *given->alpha;
  options.allow_nonfinite = given->allow_nonfinite != 0;
  options.naming.family = text_of(given->family);
  options.naming.config_from = text_of(given->config_from);
  return options;
}

template <class Value>
nlohmann::json or_null(const std::optional<Value>& value) {
  return value ? nlohmann::json(*value) : nlohmann::json();
}

std::string described(const AdapterInfo& info) {
  return nlohmann::ordered_json{{"kind", info.kind},
                                {"names", info.names},
                                {"base", info.base},
                                {"rank", or_null(info.rank)},
                                {"alpha", or_null(info.alpha)},
                                {"rslora", info.rslora},
                                {"dora", info.dora},
                                {"targets", info.targets},
                                {"saved", info.saved}}
      .dump(-1, ' ', true, nlohmann::json::error_handler_t::replace);
}

}  // namespace
}  // namespace ckpt

extern "C" {

char* ckpt_adapter(const ckpt_checkpoint* checkpoint, char** error) {
  return ckpt::guarded(error, [&]() -> char* {
    const auto info = ckpt::adapter_of(checkpoint->open.catalog());
    return info ? ::strdup(ckpt::described(*info).c_str()) : nullptr;
  });
}

int ckpt_has_adapter_inside(const ckpt_checkpoint* checkpoint) {
  try {
    return ckpt::has_adapter_inside(checkpoint->open.catalog()) ? 1 : 0;
  } catch (...) {
    return 0;
  }
}

ckpt_checkpoint* ckpt_add_adapters(const ckpt_checkpoint* base,
                                   const ckpt_adapter_use* adapters,
                                   size_t count,
                                   const ckpt_adapter_options* options,
                                   char** error) {
  return ckpt::guarded(error, [&] {
    std::vector<ckpt::AdapterUse> uses;
    for (size_t i = 0; i < count; ++i)
      uses.push_back({.path = ckpt::text_of(adapters[i].path),
                      .weight = adapters[i].weight});
    ckpt::Catalog sum = base->open.catalog();
    ckpt::locate(sum);
    const auto asked = ckpt::options_of(options);
    auto added = count == 0 ? ckpt::add_adapter_inside(sum, asked)
                            : ckpt::add_adapters(sum, uses, asked);
    // Of a base that is itself a sum, both are needed.
    const auto both =
        std::make_shared<const std::pair<ckpt::AdapterHold, ckpt::AdapterHold>>(
            base->held, std::move(added));
    return new ckpt_checkpoint(ckpt::Checkpoint(std::move(sum)), both);
  });
}

ckpt_checkpoint* ckpt_adapter_as_peft(const ckpt_checkpoint* adapter,
                                      const ckpt_adapter_options* options,
                                      char** error) {
  return ckpt::guarded(error, [&] {
    return ckpt::changed(*adapter, [&](ckpt::Catalog source) {
      return ckpt::translate_adapter(std::move(source), "hf", 1,
                                     ckpt::options_of(options));
    });
  });
}

}  // extern "C"
