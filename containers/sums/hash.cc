// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <span>

#include "containers/sums/sums.h"
#include "lib/interrupt.h"
#include "lib/net/md5.h"
#include "lib/sha1.h"
#include "lib/sha256.h"

namespace ckpt::sums {
namespace {

template <class Hash>
std::string run(Hash hash, const io::Handle& file, uint64_t begin) {
  constexpr uint64_t kRead = 1 << 20;
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

std::string hash_of(const io::Handle& file, Algorithm algorithm,
                    uint64_t begin) {
  switch (algorithm) {
    case Algorithm::kMd5:
      return run(net::Md5(), file, begin);
    case Algorithm::kSha1:
      return run(Sha1(), file, begin);
    case Algorithm::kGit: {
      Sha1 hash;
      std::string head = fmt::format("blob {}", file.size());
      head.push_back('\0');
      hash.update(std::as_bytes(std::span(head)));
      return run(std::move(hash), file, begin);
    }
    case Algorithm::kSha256:
      return run(Sha256(), file, begin);
  }
  return "";
}

}  // namespace ckpt::sums
