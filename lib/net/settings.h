// SPDX-License-Identifier: Apache-2.0
// The settings of the transport that the environment can change.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace ckpt::net {

struct Settings {
  uint64_t retries = 5;         // CKPT_NET_RETRIES, for one request
  uint64_t backoff_ms = 200;    // CKPT_NET_BACKOFF_MS, doubled each time
  uint64_t stall_seconds = 30;  // CKPT_NET_STALL: below 1 KiB/s for this long
  uint64_t connections = 0;     // CKPT_NET_CONNECTIONS, to one host at most; 0:
                                // as many as its kind takes
  uint64_t part_mib = 16;   // CKPT_NET_PART_MIB, of what is sent; 5 at least
  bool allow_http = false;  // CKPT_NET_ALLOW_HTTP=1: not to loopback alone
  // CKPT_NET_FORBIDDEN=absent: 403 for what no listing has means that it is
  // not there. Where listings are forbidden, S3 answers so.
  bool forbidden_is_absent = false;
  std::string ca_file;  // SSL_CERT_FILE and what others call it
};

// Throws usage_error for a value that is not a number.
const Settings& settings();

// Throws a usage_error unless it is a whole http:// or https:// URL. `name` is
// what it was set by.
void check_endpoint(std::string_view name, const std::string& url);

// The text of a credentials file, "" if there is none. It is not a source:
// rewriting it during the run does no harm.
std::string read_secret(const std::string& path);

// "" if it is not set.
std::string environment(const char* name);

}  // namespace ckpt::net
