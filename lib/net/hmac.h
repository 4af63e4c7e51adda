// SPDX-License-Identifier: Apache-2.0
// HMAC-SHA256 (RFC 2104) and base 64 (RFC 4648), for signatures.
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace ckpt::net {

// Returns it as 64 hexadecimal digits.
std::string hmac_sha256(std::string_view key, std::string_view text);

// nullopt if it is not base 64.
std::optional<std::string> from_base64(std::string_view text);

}  // namespace ckpt::net
