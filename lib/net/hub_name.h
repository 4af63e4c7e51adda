// SPDX-License-Identifier: Apache-2.0
// hf://ORG/NAME[@REVISION][/PATH], hf://datasets/ORG/NAME…, cut into its parts.
#pragma once

#include <optional>
#include <string>

namespace ckpt::net {

struct HubName {
  std::string kind;  // "models", "datasets", "spaces"
  std::string repo;  // ORG/NAME
  std::string revision;
  std::string path;  // in the repository
  std::string root;  // of the URL: "hf://ORG/NAME@REV"
};

// nullopt if it names no repository. Throws usage_error for a lone "@".
std::optional<HubName> parse_hub_name(const std::string& path);

}  // namespace ckpt::net
