// SPDX-License-Identifier: Apache-2.0
// The settings of the transport that the environment can change.
#pragma once

#include <cstdint>
#include <string>

namespace ckpt::net {

struct Settings {
  uint64_t retries = 5;         // CKPT_NET_RETRIES, for one request
  uint64_t backoff_ms = 200;    // CKPT_NET_BACKOFF_MS, doubled each time
  uint64_t stall_seconds = 30;  // CKPT_NET_STALL: below 1 KiB/s for this long
  uint64_t connections = 64;    // CKPT_NET_CONNECTIONS, to one host at most
  uint64_t part_mib = 16;       // CKPT_NET_PART_MIB, for uploads; at least 5
  bool allow_http = false;      // CKPT_NET_ALLOW_HTTP=1: not only to loopback
  std::string ca_file;          // SSL_CERT_FILE and its other names
};

// Throws usage_error for a value that is not a number.
const Settings& settings();

// The text of a credentials file, "" if there is none. It is not a source:
// rewriting it during the run does no harm.
std::string read_secret(const std::string& path);

// "" if it is not set.
std::string environment(const char* name);

}  // namespace ckpt::net
