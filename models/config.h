// SPDX-License-Identifier: Apache-2.0
// A model's configuration: the scalars of a config file by dotted key, such
// as "encoder_config.model_dim".
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

namespace ckpt::families {

using Scalar = std::variant<std::monostate, bool, int64_t, double, std::string>;
using Config = std::map<std::string, Scalar, std::less<>>;

// As a message shows it: null, true, 7, 0.5, text.
std::string to_string(const Scalar& value);

// A whole number of at least 0; nothing if the key lacks one.
std::optional<uint64_t> whole_number(const Config& config,
                                     std::string_view key);

}  // namespace ckpt::families
