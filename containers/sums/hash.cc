// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <span>

#include "containers/sums/sums.h"
#include "lib/interrupt.h"

namespace ckpt::sums {
namespace {

std::variant<net::Md5, Sha1, Sha256> hash_by(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kMd5:
      return net::Md5();
    case Algorithm::kSha1:
    case Algorithm::kGit:
      return Sha1();
    case Algorithm::kSha256:
      break;
  }
  return Sha256();
}

}  // namespace

std::string_view name(Algorithm algorithm) {
  switch (algorithm) {
    case Algorithm::kMd5:
      return "MD5";
    case Algorithm::kSha1:
      return "SHA-1";
    case Algorithm::kGit:
      return "git SHA-1";
    case Algorithm::kSha256:
      return "SHA-256";
  }
  return "";
}

Hash::Hash(Algorithm algorithm, uint64_t size) : hash_(hash_by(algorithm)) {
  if (algorithm != Algorithm::kGit) return;
  std::string head = fmt::format("blob {}", size);
  head.push_back('\0');
  update(std::as_bytes(std::span(head)));
}

void Hash::update(std::span<const std::byte> bytes) {
  std::visit([&](auto& hash) { hash.update(bytes); }, hash_);
}

std::string Hash::hex() {
  return std::visit([](auto& hash) { return hash.hex(); }, hash_);
}

std::string hash_of(const io::Handle& file, Algorithm algorithm,
                    uint64_t begin) {
  constexpr uint64_t kRead = 1 << 20;
  Hash hash(algorithm, file.size());
  std::vector<std::byte> block(std::min(kRead, file.size()));
  while (begin < file.size()) {
    if (interrupted()) throw Interrupted("");
    const auto part = std::span(block).first(
        std::min<uint64_t>(file.size() - begin, block.size()));
    file.read(begin, part);
    hash.update(part);
    begin += part.size();
  }
  return hash.hex();
}

}  // namespace ckpt::sums
