// SPDX-License-Identifier: Apache-2.0
#include "lib/net/settings.h"

#include <algorithm>
#include <cstdlib>
#include <fstream>

#include "ckpt/error.h"
#include "lib/net/url.h"
#include "lib/text/format.h"
#include "lib/text/number.h"

namespace ckpt::net {
namespace {

void read_number(const char* name, uint64_t least, uint64_t most,
                 uint64_t& value) {
  const std::string text = environment(name);
  if (text.empty()) return;
  const auto number = text::number(text, most);
  if (!number || *number < least)
    throw usage_error({}, "{}={}: expected a number from {} to {}", name, text,
                      least, most);
  value = *number;
}

Settings read_settings() {
  Settings all;
  read_number("CKPT_NET_RETRIES", 0, 100, all.retries);
  read_number("CKPT_NET_BACKOFF_MS", 0, 60'000, all.backoff_ms);
  read_number("CKPT_NET_STALL", 1, 3600, all.stall_seconds);
  read_number("CKPT_NET_CONNECTIONS", 1, 256, all.connections);
  read_number("CKPT_NET_PART_MIB", 5, 5120, all.part_mib);
  all.allow_http = environment("CKPT_NET_ALLOW_HTTP") == "1";
  const std::string forbidden = environment("CKPT_NET_FORBIDDEN");
  if (!forbidden.empty() && forbidden != "absent")
    throw usage_error({}, "CKPT_NET_FORBIDDEN={}: expected \"absent\"",
                      forbidden);
  all.forbidden_is_absent = !forbidden.empty();
  for (const char* name : {"AWS_CA_BUNDLE", "REQUESTS_CA_BUNDLE",
                           "CURL_CA_BUNDLE", "SSL_CERT_FILE"})
    if (std::string file = environment(name); !file.empty())
      all.ca_file = std::move(file);
  return all;
}

}  // namespace

void check_endpoint(std::string_view name, const std::string& url) {
  const Url parts = parse_url(url);
  if ((parts.scheme == "http" || parts.scheme == "https") &&
      !parts.authority.empty())
    return;
  // It may have a password in it.
  const std::string shown =
      url.find('@') == url.npos ? text::printable(url) : "…";
  throw usage_error({}, "{}={}: expected https://HOST or http://HOST", name,
                    shown)
      .with_hint(url.find("://") == url.npos
                     ? fmt::format("{}=https://{}", name, shown)
                     : "the address of the service, with its scheme");
}

std::string read_secret(const std::string& path) {
  constexpr std::streamsize kMost = 1 << 20;
  std::ifstream file(path, std::ios::binary);
  std::string text(kMost, '\0');
  file.read(text.data(), kMost);
  text.resize(static_cast<size_t>(std::max<std::streamsize>(0, file.gcount())));
  return text;
}

std::string environment(const char* name) {
  const char* const value = std::getenv(name);
  return value ? value : "";
}

// Never destroyed: the client's threads may ask until the process ends.
const Settings& settings() {
  static const Settings* const all = new Settings(read_settings());
  return *all;
}

}  // namespace ckpt::net
