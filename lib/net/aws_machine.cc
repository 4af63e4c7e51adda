// SPDX-License-Identifier: Apache-2.0
// Temporary keys of a container or a machine.
//
//   GET  http://169.254.170.2$AWS_CONTAINER_CREDENTIALS_RELATIVE_URI
//   GET  $AWS_CONTAINER_CREDENTIALS_FULL_URI
//
//   PUT  http://169.254.169.254/latest/api/token       -> a token for the next
//   GET  …/latest/meta-data/iam/security-credentials/  -> a role
//   GET  …/latest/meta-data/iam/security-credentials/ROLE
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "ckpt/error.h"
#include "lib/net/aws.h"
#include "lib/net/http.h"
#include "lib/net/settings.h"
#include "lib/net/url.h"
#include "lib/text/json.h"

namespace ckpt::net {
namespace {

constexpr uint64_t kPatience = 5;  // seconds: this machine itself answers

Request ask(const std::string& url) {
  return {.path = url, .url = url, .patience = kPatience};
}

Response get(const Request& asked, const char* what) {
  const Response response = fetch(asked);
  if (response.status != 200)
    throw Error(ExitCode::kIo, {asked.path, {}},
                fmt::format("{} gives no keys ({})", what, describe(response)));
  return response;
}

Credentials parse_keys(const std::string& text, const std::string& from) {
  const auto all = text::parse_json(text, from);
  return {text::string_member(all, "AccessKeyId", from),
          text::string_member(all, "SecretAccessKey", from),
          text::string_member(all, "Token", from)};
}

// Only these may be asked by http: what is sent there is a secret.
bool may_be_asked(const Url& url) {
  constexpr std::array<std::string_view, 3> kHosts = {
      "169.254.170.2", "169.254.170.23", "[fd00:ec2::23]"};
  return url.scheme == "https" || is_loopback(url.authority) ||
         std::ranges::find(kHosts, url.authority) != kHosts.end();
}

}  // namespace

std::optional<Credentials> container_credentials() {
  std::string url = environment("AWS_CONTAINER_CREDENTIALS_FULL_URI");
  if (const std::string path =
          environment("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI");
      !path.empty())
    url = "http://169.254.170.2" + path;
  if (url.empty()) return std::nullopt;
  if (!may_be_asked(parse_url(url)))
    throw unsafe_error({},
                       "AWS_CONTAINER_CREDENTIALS_FULL_URI names {}, which "
                       "is asked by https only",
                       parse_url(url).authority);
  Request asked = ask(parse_url(url).shown());
  asked.url = url;
  std::string token = environment("AWS_CONTAINER_AUTHORIZATION_TOKEN");
  if (const std::string file =
          environment("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE");
      !file.empty()) {
    token = read_secret(file);
    while (token.ends_with('\n') || token.ends_with('\r')) token.pop_back();
  }
  if (!token.empty()) asked.secret_headers.push_back("Authorization: " + token);
  return parse_keys(get(asked, "the container's service").body, asked.path);
}

std::optional<Credentials> machine_credentials() {
  constexpr const char* kService = "the machine's metadata service";
  if (environment("AWS_EC2_METADATA_DISABLED") != "false") return std::nullopt;
  std::string base = environment("AWS_EC2_METADATA_SERVICE_ENDPOINT");
  if (base.empty()) base = "http://169.254.169.254";
  while (base.ends_with('/')) base.pop_back();
  Request asked = ask(base + "/latest/api/token");
  asked.method = "PUT";
  asked.headers.push_back("X-aws-ec2-metadata-token-ttl-seconds: 21600");
  const std::string token =
      "X-aws-ec2-metadata-token: " + get(asked, kService).body;
  const std::string folder =
      base + "/latest/meta-data/iam/security-credentials/";
  asked = ask(folder);
  asked.secret_headers.push_back(token);
  const std::string roles = get(asked, kService).body;
  const std::string role = roles.substr(0, roles.find('\n'));
  asked = ask(folder + encode(role));
  asked.secret_headers.push_back(token);
  return parse_keys(get(asked, kService).body, asked.path);
}

std::string google_machine_token() {
  const std::string host = environment("GCE_METADATA_HOST");
  if (host.empty()) return {};
  Request asked =
      ask("http://" + host +
          "/computeMetadata/v1/instance/service-accounts/default/token");
  asked.headers.push_back("Metadata-Flavor: Google");
  const Response response = get(asked, "Google's metadata service");
  return text::string_member(text::parse_json(response.body, asked.path),
                             "access_token", asked.path);
}

}  // namespace ckpt::net
