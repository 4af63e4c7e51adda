// SPDX-License-Identifier: Apache-2.0
#include "containers/torch/same_lists.h"

#include <algorithm>
#include <functional>
#include <mutex>
#include <string_view>
#include <unordered_map>

namespace ckpt::torch {
namespace {

// The archive of one object is not worth an entry in the table: an index has
// millions of them.
constexpr size_t kLeastLiterals = 8;

bool same(const Literal& a, const Literal& b) {
  return a.offset == b.offset && a.bytes == b.bytes;
}
bool same(const LateCrc& a, const LateCrc& b) {
  return a.begin == b.begin && a.end == b.end && a.at == b.at;
}

uint64_t mix(uint64_t hash, uint64_t value) {
  return (hash ^ value) * 0x9E3779B97F4A7C15;
}
uint64_t mix(uint64_t hash, const Literal& literal) {
  return mix(mix(hash, literal.offset),
             std::hash<std::string_view>()(literal.bytes));
}
uint64_t mix(uint64_t hash, const LateCrc& crc) {
  return mix(mix(hash, crc.begin), crc.end);
}

template <typename T>
class Pool {
 public:
  void share(SharedList<T>& list) {
    uint64_t hash = list.size();
    for (const T& item : list) hash = mix(hash, item);
    const std::lock_guard lock(mutex_);
    auto [at, end] = lists_.equal_range(hash);
    while (at != end) {
      const auto known = SharedList<T>::from(at->second);
      if (!known) {
        at = lists_.erase(at);
        continue;
      }
      if (std::ranges::equal(*known, list, [](const T& a, const T& b) {
            return same(a, b);
          })) {
        list = *known;
        return;
      }
      ++at;
    }
    lists_.emplace(hash, list.watch());
  }

 private:
  std::mutex mutex_;
  std::unordered_multimap<uint64_t, typename SharedList<T>::Watch> lists_;
};

}  // namespace

void share_lists(TargetFile& file) {
  if (file.literals.size() < kLeastLiterals) return;
  static Pool<Literal> literals;
  static Pool<LateCrc> crcs;
  literals.share(file.literals);
  crcs.share(file.crcs);
}

}  // namespace ckpt::torch
