// SPDX-License-Identifier: Apache-2.0
// Credentials as AWS's tools find them: the environment, profile files, a web
// identity, what a container is given. A machine's metadata service is asked
// only with AWS_EC2_METADATA_DISABLED=false: elsewhere nobody answers there, or
// somebody else does.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>

namespace ckpt::net {

struct Credentials {
  std::string key;
  std::string secret;
  std::string session;  // token; "" if absent
};

struct AwsSettings {
  std::optional<Credentials> credentials;  // nullopt: requests are not signed
  std::string region;
  std::string endpoint;     // "" for AWS's own
  bool path_style = false;  // https://HOST/BUCKET/KEY
  bool lasting = false;     // they are the environment's
};

// Throws an Error for a profile that does not exist.
AwsSettings find_aws();

// aws_machine.cc: the keys given to a container or a machine, if its
// environment says so.
std::optional<Credentials> container_credentials();
std::optional<Credentials> machine_credentials();
// An access token from Google's metadata service, if GCE_METADATA_HOST names
// it; else "".
std::string google_machine_token();

// [name] sections of KEY = VALUE lines; "profile " before a name is dropped.
using Profiles = std::map<std::string, std::map<std::string, std::string>>;
Profiles parse_profiles(std::string_view text);

}  // namespace ckpt::net
