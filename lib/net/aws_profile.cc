// SPDX-License-Identifier: Apache-2.0
// Keys that a profile does not hold, and says how to get:
//
//   role_arn, source_profile    STS: AssumeRole, signed with another profile's
//   role_arn, credential_source the environment's keys, a container's, a
//                               machine's
//   credential_process          what a program prints
//   sso_session, sso_start_url  what IAM Identity Center gives for the token
//                               that `aws sso login` left in ~/.aws/sso/cache
//
// As botocore does (credentials.py, tokens.py), in its order.
#include "lib/net/aws_profile.h"

#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <memory>

#include "ckpt/error.h"
#include "lib/io/file.h"
#include "lib/io/names.h"
#include "lib/net/aws_profile.h"
#include "lib/net/http.h"
#include "lib/net/settings.h"
#include "lib/net/url.h"
#include "lib/net/xml.h"
#include "lib/text/json.h"

namespace ckpt::net {
namespace {

constexpr int kMostRoles = 8;  // one after the other

std::string member(const Profile& profile, const std::string& key) {
  const auto found = profile.find(key);
  return found == profile.end() ? std::string() : found->second;
}

std::string export_hint(const std::string& name) {
  return fmt::format(
      "eval \"$(aws configure export-credentials --format env --profile {})\", "
      "then run it again",
      name);
}

struct Named {
  const char *key, *secret, *session;
};

Credentials keys_of(const nlohmann::json& all, const Named& names,
                    const std::string& from) {
  Credentials keys{text::string_member(all, names.key, from),
                   text::string_member(all, names.secret, from), ""};
  if (all.contains(names.session))
    keys.session = text::string_member(all, names.session, from);
  return keys;
}

Credentials assume_role(const Profile& profile, const std::string& name,
                        const Credentials& source, const std::string& region) {
  if (!member(profile, "mfa_serial").empty())
    throw usage_error({}, "the profile {} assumes a role with a one-time code",
                      name)
        .with_hint(export_hint(name));
  std::string endpoint = sts_endpoint(region);
  std::string session = member(profile, "role_session_name");
  if (session.empty()) session = "ckpt";
  // In the order of their names: the signature is of a sorted query.
  std::string query = "Action=AssumeRole";
  const auto add = [&](const char* key, const std::string& value) {
    if (!value.empty()) query += fmt::format("&{}={}", key, encode(value));
  };
  add("DurationSeconds", member(profile, "duration_seconds"));
  add("ExternalId", member(profile, "external_id"));
  add("RoleArn", member(profile, "role_arn"));
  add("RoleSessionName", session);
  add("Version", "2011-06-15");
  Request asked;
  asked.path = endpoint;
  asked.url = fmt::format("{}/?{}", endpoint, query);
  asked.signing =
      Signing{fmt::format("aws:amz:{}:sts", region), source.key, source.secret};
  if (!source.session.empty())
    asked.secret_headers.push_back("X-Amz-Security-Token: " + source.session);
  const Response response = fetch(asked);
  if (response.status != 200)
    throw Error(
        ExitCode::kIo, {endpoint, {}},
        fmt::format("the profile {} may not assume the role {} ({})", name,
                    member(profile, "role_arn"), describe(response)));
  return {element(response.body, "AccessKeyId"),
          element(response.body, "SecretAccessKey"),
          element(response.body, "SessionToken")};
}

Credentials from_source(const std::string& source, const std::string& name) {
  std::optional<Credentials> keys;
  if (source == "Environment")
    keys = environment_keys();
  else if (source == "EcsContainer")
    keys = container_credentials();
  else if (source == "Ec2InstanceMetadata")
    keys = machine_credentials();
  else
    throw usage_error({},
                      "the profile {} has credential_source = {}, expected "
                      "Environment, EcsContainer or Ec2InstanceMetadata",
                      name, source);
  if (keys) return *keys;
  throw usage_error({},
                    "the profile {} has credential_source = {}: no keys "
                    "are there",
                    name, source)
      .with_hint(source == "Ec2InstanceMetadata"
                     ? "a machine's metadata service is asked with "
                       "AWS_EC2_METADATA_DISABLED=false only"
                     : "");
}

struct Close {
  void operator()(FILE* pipe) const { ::pclose(pipe); }
};

// The program is the user's own, as their AWS tools run it.
std::optional<Credentials> process_keys(const Profile& profile,
                                        const std::string& name) {
  constexpr size_t kMost = 64 << 10;
  const std::string program = member(profile, "credential_process");
  if (program.empty()) return std::nullopt;
  const std::string from = "the credential_process of the profile " + name;
  std::unique_ptr<FILE, Close> pipe(::popen(program.c_str(), "re"));
  if (!pipe) throw io_error(from, "cannot run it", errno);
  std::string text;
  std::array<char, 4096> block;
  while (text.size() <= kMost) {
    const size_t got = std::fread(block.data(), 1, block.size(), pipe.get());
    if (got == 0) break;
    text.append(block.data(), got);
  }
  const int status = ::pclose(pipe.release());
  if (text.size() > kMost)
    throw Error(ExitCode::kIo, {}, from + " prints more than 64 KiB");
  if (status != 0)
    throw Error(ExitCode::kIo, {}, from + " failed")
        .with_hint("run it by hand: " + program);
  try {
    return keys_of(text::parse_json(text, from),
                   {"AccessKeyId", "SecretAccessKey", "SessionToken"}, from);
  } catch (const Error&) {
    // Never what it printed: that may be half of a secret.
    throw Error(ExitCode::kIo, {}, from + " prints no keys in JSON")
        .with_hint("run it by hand: " + program);
  }
}

// The newest token for that address, of those in ~/.aws/sso/cache.
std::string sso_token(const std::string& start, const std::string& name) {
  const std::string folder = environment("HOME") + "/.aws/sso/cache";
  std::string token, newest;
  std::vector<std::string> names;
  try {
    names = io::names_in(folder);
  } catch (const Error&) {  // nobody logged in
  }
  for (const std::string& file : names) {
    if (!file.ends_with(".json")) continue;
    const auto all = nlohmann::json::parse(read_secret(io::join(folder, file)),
                                           nullptr, false);
    if (!all.is_object()) continue;
    const auto text = [&](const char* key) {
      const auto found = all.find(key);
      return found != all.end() && found->is_string()
                 ? found->get<std::string>()
                 : std::string();
    };
    if (text("startUrl") != start || text("accessToken").empty()) continue;
    if (!token.empty() && text("expiresAt") <= newest) continue;
    newest = text("expiresAt");
    token = text("accessToken");
  }
  if (token.empty())
    throw usage_error({}, "nobody is logged in for the profile {}", name)
        .with_hint("aws sso login --profile " + name);
  return token;
}

std::optional<Credentials> sso_keys(const Profile& profile,
                                    const Profiles& sessions,
                                    const std::string& name) {
  const std::string session = member(profile, "sso_session");
  Profile all = profile;
  if (!session.empty()) {
    const auto found = sessions.find("sso-session " + session);
    if (found == sessions.end())
      throw usage_error({},
                        "the profile {} names the sso_session {}, which is "
                        "not in ~/.aws/config",
                        name, session);
    for (const auto& [key, value] : found->second) all[key] = value;
  }
  const std::string start = member(all, "sso_start_url");
  if (start.empty()) return std::nullopt;
  const std::string account = member(all, "sso_account_id"),
                    role = member(all, "sso_role_name"),
                    region = member(all, "sso_region");
  if (account.empty() || role.empty() || region.empty())
    throw usage_error({}, "the profile {} logs in without {}", name,
                      account.empty() ? "sso_account_id"
                      : role.empty()  ? "sso_role_name"
                                      : "sso_region");
  std::string endpoint = environment("AWS_ENDPOINT_URL_SSO");
  if (endpoint.empty())
    endpoint = fmt::format("https://portal.sso.{}.amazonaws.com", region);
  else
    check_endpoint("AWS_ENDPOINT_URL_SSO", endpoint);
  Request asked;
  asked.path = endpoint;
  asked.url =
      fmt::format("{}/federation/credentials?account_id={}&role_name={}",
                  endpoint, encode(account), encode(role));
  asked.secret_headers.push_back("x-amz-sso_bearer_token: " +
                                 sso_token(start, name));
  const Response response = fetch(asked);
  if (response.status == 401)
    throw Error(ExitCode::kIo, {endpoint, {}},
                fmt::format("the login of the profile {} has expired", name))
        .with_hint("aws sso login --profile " + name);
  if (response.status != 200)
    throw Error(ExitCode::kIo, {endpoint, {}},
                fmt::format("no keys for the role {} of the account {} ({})",
                            role, account, describe(response)));
  const auto body = text::parse_json(response.body, endpoint);
  const auto keys = body.find("roleCredentials");
  if (keys == body.end())
    throw Error(ExitCode::kIo, {endpoint, {}}, "an answer without keys");
  return keys_of(*keys, {"accessKeyId", "secretAccessKey", "sessionToken"},
                 endpoint);
}

std::optional<Credentials> keys_by(const Profiles& profiles,
                                   const std::string& name,
                                   const std::string& region, int depth) {
  const auto found = profiles.find(name);
  if (found == profiles.end())
    throw usage_error({},
                      "no profile {} in ~/.aws, which another names as its "
                      "source_profile",
                      name);
  const Profile& profile = found->second;
  const std::string parent = member(profile, "source_profile"),
                    source = member(profile, "credential_source");
  if (assumes_role(profile)) {
    if (depth == kMostRoles)
      throw usage_error({},
                        "the profile {} assumes a role of a role of a "
                        "role, {} times: a circle of source_profile?",
                        name, kMostRoles);
    std::optional<Credentials> keys;
    if (!source.empty())
      keys = from_source(source, name);
    else if (parent == name)  // its own keys
      keys = keys_in(profile, name);
    else
      keys = keys_by(profiles, parent, region, depth + 1);
    if (!keys)
      throw usage_error({}, "the profile {} has no keys to assume a role with",
                        parent.empty() ? name : parent);
    return assume_role(profile, name, *keys, region);
  }
  if (auto keys = sso_keys(profile, profiles, name)) return keys;
  if (auto keys = keys_in(profile, name)) return keys;
  return process_keys(profile, name);
}

}  // namespace

bool assumes_role(const Profile& profile) {
  return !member(profile, "role_arn").empty() &&
         (!member(profile, "source_profile").empty() ||
          !member(profile, "credential_source").empty());
}

std::optional<Credentials> keys_of_profile(const Profiles& profiles,
                                           const std::string& name,
                                           const std::string& region) {
  if (!profiles.contains(name)) return std::nullopt;
  return keys_by(profiles, name, region, 0);
}

}  // namespace ckpt::net
