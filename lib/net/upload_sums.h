// SPDX-License-Identifier: Apache-2.0
// Checksums of uploads, computed here and returned by the server.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "lib/io/file.h"
#include "lib/net/http.h"

namespace ckpt::net {

// Both as hexadecimal digits.
struct Sums {
  std::string sha256;
  std::string md5;
};

Sums sums_of(const io::Handle& file, uint64_t begin, uint64_t bytes);
Sums sums_of(const std::string& text);

std::string unquoted(std::string etag);

// What the server says it has, if that is not what was sent; else "".
std::string difference(const Response& response, const Sums& sums);

// The ETag of an object put together of parts with these: the MD5 of their
// MD5s, and their number. "?" if the server's are no MD5s.
std::string etag_of_parts(const std::vector<std::string>& etags);

// True if an object of this content can have that ETag, uploaded at once or in
// parts of a usual size.
bool is_etag_of(const std::string& etag, const io::Handle& file);

// True for a reply saying that the bytes received are not those sent.
bool came_otherwise(const Response& response);

}  // namespace ckpt::net
