// SPDX-License-Identifier: Apache-2.0
#include "lib/net/aws.h"

#include <fmt/format.h>

#include <initializer_list>

#include "ckpt/error.h"
#include "lib/net/aws_profile.h"
#include "lib/net/http.h"
#include "lib/net/settings.h"
#include "lib/net/url.h"
#include "lib/net/xml.h"
#include "lib/text/words.h"

namespace ckpt::net {
namespace {

std::string aws_file(const char* variable, const char* name) {
  const std::string set = environment(variable);
  return set.empty() ? environment("HOME") + "/.aws/" + name : set;
}

// "" if none is named.
std::string profile_name() {
  const std::string name = environment("AWS_PROFILE");
  return name.empty() ? environment("AWS_DEFAULT_PROFILE") : name;
}

// Both files, the credentials file last: it wins.
Profiles read_profiles() {
  Profiles all;
  for (const std::string& path :
       {aws_file("AWS_CONFIG_FILE", "config"),
        aws_file("AWS_SHARED_CREDENTIALS_FILE", "credentials")})
    for (const auto& [name, profile] : parse_profiles(read_secret(path)))
      for (const auto& [key, value] : profile) all[name][key] = value;
  return all;
}

// STS exchanges a token that the cluster wrote into a file for keys.
std::optional<Credentials> web_identity(const std::string& token_file,
                                        const std::string& role,
                                        const std::string& region) {
  if (token_file.empty() || role.empty()) return std::nullopt;
  const std::string endpoint = sts_endpoint(region);
  std::string session = environment("AWS_ROLE_SESSION_NAME");
  if (session.empty()) session = "ckpt";
  const std::string token = read_secret(token_file);
  if (token.empty())
    throw missing_error({token_file, {}},
                        "an empty file, expected a web identity token")
        .with_hint("AWS_WEB_IDENTITY_TOKEN_FILE names it");
  Request asked;
  asked.path = endpoint;
  asked.url = fmt::format(
      "{}/?Action=AssumeRoleWithWebIdentity&Version=2011-06-15&RoleArn={}"
      "&RoleSessionName={}&WebIdentityToken={}",
      endpoint, encode(role), encode(session), encode(text::trimmed(token)));
  const Response response = fetch(asked);
  if (response.status != 200)
    throw Error(ExitCode::kIo, {endpoint, {}},
                fmt::format("the web identity of {} is refused ({})",
                            token_file, describe(response)));
  return Credentials{element(response.body, "AccessKeyId"),
                     element(response.body, "SecretAccessKey"),
                     element(response.body, "SessionToken")};
}

std::string first_of(std::initializer_list<std::string> values) {
  for (const std::string& value : values)
    if (!value.empty()) return value;
  return {};
}

// Half of a pair would sign with an empty secret.
std::optional<Credentials> whole_keys(Credentials keys,
                                      const std::string& from) {
  if (keys.key.empty()) return std::nullopt;
  if (keys.secret.empty())
    throw usage_error(
        {}, "{} has an AWS access key id, and no secret access key", from)
        .with_hint(
            "AWS_SECRET_ACCESS_KEY, or aws_secret_access_key in a "
            "profile");
  return keys;
}

}  // namespace

std::string sts_endpoint(const std::string& region) {
  const std::string set = environment("AWS_ENDPOINT_URL_STS");
  if (set.empty()) return fmt::format("https://sts.{}.amazonaws.com", region);
  check_endpoint("AWS_ENDPOINT_URL_STS", set);
  return set;
}

std::optional<Credentials> environment_keys() {
  return whole_keys(
      {environment("AWS_ACCESS_KEY_ID"), environment("AWS_SECRET_ACCESS_KEY"),
       environment("AWS_SESSION_TOKEN")},
      "the environment");
}

std::optional<Credentials> keys_in(const Profile& profile,
                                   const std::string& name) {
  const auto member = [&](const char* key) {
    const auto found = profile.find(key);
    return found == profile.end() ? std::string() : found->second;
  };
  return whole_keys(
      {member("aws_access_key_id"), member("aws_secret_access_key"),
       member("aws_session_token")},
      "the profile " + name);
}

Profiles parse_profiles(std::string_view text) {
  Profiles profiles;
  std::map<std::string, std::string>* section = nullptr;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view raw = text.substr(0, end);
    const std::string_view line = text::trimmed(raw);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty() || line[0] == '#' || line[0] == ';') continue;
    if (line[0] == '[') {
      std::string_view name = text::trimmed(line.substr(1, line.find(']') - 1));
      if (name.starts_with("profile ")) name = text::trimmed(name.substr(8));
      section = &profiles[std::string(name)];
      continue;
    }
    // An indented line belongs to a key above.
    const size_t equals = line.find('=');
    if (!section || equals == line.npos || raw[0] == ' ' || raw[0] == '\t')
      continue;
    (*section)[std::string(text::trimmed(line.substr(0, equals)))] =
        std::string(text::trimmed(line.substr(equals + 1)));
  }
  return profiles;
}

AwsSettings find_aws() {
  AwsSettings aws;
  const std::string asked = profile_name();
  const std::string name = asked.empty() ? "default" : asked;
  const Profiles profiles = read_profiles();
  const auto found = profiles.find(name);
  if (!asked.empty() && found == profiles.end())
    throw usage_error({}, "AWS_PROFILE={}: no such profile in ~/.aws", name);
  Profile profile = found == profiles.end() ? Profile() : found->second;
  aws.region =
      first_of({environment("AWS_REGION"), environment("AWS_DEFAULT_REGION"),
                profile["region"], "us-east-1"});
  for (const char* variable : {"AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL"}) {
    if (!aws.endpoint.empty()) break;
    aws.endpoint = environment(variable);
    if (!aws.endpoint.empty()) check_endpoint(variable, aws.endpoint);
  }
  if (aws.endpoint.empty() && !profile["endpoint_url"].empty()) {
    aws.endpoint = profile["endpoint_url"];
    check_endpoint("endpoint_url", aws.endpoint);
  }
  while (aws.endpoint.ends_with('/')) aws.endpoint.pop_back();
  aws.path_style = !aws.endpoint.empty();
  aws.lasting = true;
  if (environment("AWS_NO_SIGN_REQUEST") == "1") return aws;
  aws.credentials = environment_keys();
  if (aws.credentials) return aws;
  aws.lasting = false;
  if (!assumes_role(profile))
    aws.credentials = web_identity(
        first_of({environment("AWS_WEB_IDENTITY_TOKEN_FILE"),
                  profile["web_identity_token_file"]}),
        first_of({environment("AWS_ROLE_ARN"), profile["role_arn"]}),
        aws.region);
  if (!aws.credentials)
    aws.credentials = keys_of_profile(profiles, name, aws.region);
  if (!aws.credentials) aws.credentials = container_credentials();
  if (!aws.credentials) aws.credentials = machine_credentials();
  return aws;
}

}  // namespace ckpt::net
