// SPDX-License-Identifier: Apache-2.0
#include "lib/net/hub_name.h"

#include <algorithm>
#include <string_view>

#include "ckpt/error.h"
#include "lib/net/url.h"

namespace ckpt::net {
namespace {

std::string take_component(std::string_view& rest) {
  const size_t slash = std::min(rest.find('/'), rest.size());
  std::string part(rest.substr(0, slash));
  rest.remove_prefix(std::min(slash + 1, rest.size()));
  return part;
}

// References whose names have slashes, as the hub's own client takes them in a
// path: "refs/pr/7", "refs/convert/parquet". Others are written with %2F.
std::string take_reference(const std::string& first, std::string_view& rest) {
  if (first != "refs") return first;
  std::string_view left = rest;
  const std::string kind = take_component(left);
  const std::string last = take_component(left);
  if ((kind != "pr" && kind != "convert") || last.empty()) return first;
  rest = left;
  return "refs/" + kind + "/" + last;
}

}  // namespace

std::optional<HubName> parse_hub_name(const std::string& path) {
  std::string_view rest = std::string_view(path).substr(5);
  HubName name{.kind = "models", .revision = "main", .root = "hf://"};
  for (const char* kind : {"datasets", "spaces", "models"})
    if (rest.starts_with(std::string(kind) + "/")) {
      name.kind = take_component(rest);
      name.root += name.kind + "/";
    }
  const std::string owner = take_component(rest);
  std::string repo = take_component(rest);
  if (owner.empty() || repo.empty()) return std::nullopt;
  if (const size_t at = repo.find('@'); at != repo.npos) {
    const std::string reference = take_reference(repo.substr(at + 1), rest);
    if (reference.empty())
      throw usage_error({path, {}}, "no revision behind the @")
          .with_hint("hf://ORG/NAME@REVISION: a branch, a tag or a commit");
    name.revision = decode(reference);
    repo.resize(at);
    name.root += owner + "/" + repo + "@" + reference;
  } else {
    name.root += owner + "/" + repo;
  }
  name.repo = owner + "/" + repo;
  name.path = std::string(rest);
  return name;
}

}  // namespace ckpt::net
