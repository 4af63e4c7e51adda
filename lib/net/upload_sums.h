// SPDX-License-Identifier: Apache-2.0
// Checksums of what is uploaded, here and as the server answers them.
#pragma once

#include <cstdint>
#include <string>

#include "lib/io/file.h"
#include "lib/net/http.h"

namespace ckpt::net {

// Both in hexadecimal digits.
struct Sums {
  std::string sha256;
  std::string md5;
};

Sums sums_of(const io::Handle& file, uint64_t begin, uint64_t bytes);
Sums sums_of(const std::string& text);

std::string unquoted(std::string etag);

// What the server says that it has, where it is not what was sent; else "".
std::string difference(const Response& response, const Sums& sums);

// A reply that says that other bytes came than were sent.
bool came_otherwise(const Response& response);

}  // namespace ckpt::net
