// SPDX-License-Identifier: Apache-2.0
#include "lib/net/upload_sums.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <set>
#include <span>

#include "lib/hash/sha256.h"
#include "lib/io/upload.h"
#include "lib/net/md5.h"
#include "lib/net/xml.h"

namespace ckpt::net {
namespace {

constexpr uint64_t kBlock = uint64_t{1} << 20;

// Each waits for itself at every step, so the processor works on both sums at
// once if their blocks take turns: 0.62 GB/s instead of 0.55.
void add_to_both(std::span<const std::byte> bytes, Sha256& sha256, Md5& md5) {
  constexpr size_t kTurn = 64;
  while (!bytes.empty()) {
    const auto now = bytes.first(std::min(bytes.size(), kTurn));
    sha256.update(now);
    md5.update(now);
    bytes = bytes.subspan(now.size());
  }
}

bool is_md5(const std::string& etag) {
  return etag.size() == 32 && std::ranges::all_of(etag, [](unsigned char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

// With a service's or a customer's keys, an ETag is not an MD5.
bool hides_md5(const Response& response) {
  return response.header("x-amz-server-side-encryption").starts_with("aws:") ||
         !response.header("x-amz-server-side-encryption-customer-algorithm")
              .empty();
}

}  // namespace

Sums sums_of(const io::Handle& file, uint64_t begin, uint64_t bytes) {
  Sha256 sha256;
  Md5 md5;
  std::vector<std::byte> block(std::min(bytes, kBlock));
  for (uint64_t at = 0; at < bytes; at += block.size()) {
    const auto now =
        std::span(block).first(std::min<uint64_t>(block.size(), bytes - at));
    file.read(begin + at, now);
    add_to_both(now, sha256, md5);
  }
  return {sha256.hex(), md5.hex()};
}

Sums sums_of(const std::string& text) {
  Sha256 sha256;
  Md5 md5;
  add_to_both(std::as_bytes(std::span(text)), sha256, md5);
  return {sha256.hex(), md5.hex()};
}

std::string unquoted(std::string etag) {
  std::erase(etag, '"');
  return etag;
}

std::string difference(const Response& response, const Sums& sums) {
  const std::string etag = unquoted(response.header("etag"));
  if (is_md5(etag) && !hides_md5(response) && etag != sums.md5)
    return fmt::format("its MD5 is {} there, {} here", etag, sums.md5);
  const std::string sha = response.header("x-amz-checksum-sha256");
  if (const std::string here = base64_of_hex(sums.sha256);
      !sha.empty() && sha != here)
    return fmt::format("its SHA-256 is {} there, {} here", sha, here);
  return {};
}

std::string etag_of_parts(const std::vector<std::string>& etags) {
  Md5 sum;
  for (const std::string& etag : etags) {
    if (!is_md5(etag)) return "?";
    std::array<std::byte, 16> bytes;
    for (size_t i = 0; i < bytes.size(); ++i) {
      uint8_t byte = 0;
      std::from_chars(&etag[2 * i], &etag[2 * i] + 2, byte, 16);
      bytes[i] = static_cast<std::byte>(byte);
    }
    sum.update(bytes);
  }
  return fmt::format("{}-{}", sum.hex(), etags.size());
}

bool is_etag_of(const std::string& etag, const io::Handle& file) {
  constexpr uint64_t kMiB = uint64_t{1} << 20, kMostPart = uint64_t{4} << 30;
  const uint64_t size = file.size();
  if (is_md5(etag)) return sums_of(file, 0, size).md5 == etag;
  const size_t dash = etag.find('-');
  if (dash == etag.npos || !is_md5(etag.substr(0, dash))) return false;
  std::set<uint64_t> parts{std::max<uint64_t>(1, io::upload_cost(size).part)};
  for (uint64_t part = 8 * kMiB; part <= kMostPart; part *= 2)
    parts.insert(part);
  for (const uint64_t part : parts) {
    const uint64_t count = (size + part - 1) / part;
    if (etag.substr(dash + 1) != std::to_string(count)) continue;
    std::vector<std::string> etags;
    for (uint64_t at = 0; at < size; at += part)
      etags.push_back(sums_of(file, at, std::min(part, size - at)).md5);
    if (etag_of_parts(etags) == etag) return true;
  }
  return false;
}

bool came_otherwise(const Response& response) {
  const std::string code = element(response.body, "Code");
  return response.status == 400 &&
         (code == "BadDigest" || code == "XAmzContentSHA256Mismatch" ||
          code == "XAmzContentChecksumMismatch" || code == "IncompleteBody" ||
          code == "RequestTimeout");
}

}  // namespace ckpt::net
