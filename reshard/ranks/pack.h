// SPDX-License-Identifier: Apache-2.0
// Values in messages. All ranks run one program on machines of one kind, so
// numbers are sent as they are in memory. Reads are checked against the
// message's end all the same.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "ckpt/error.h"

namespace ckpt::ranks {

class Packer {
 public:
  template <class T>
  void put(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  void text(std::string_view value) {
    put(uint64_t{value.size()});
    bytes_ += value;
  }
  template <class T>
  void list(const std::vector<T>& values) {
    static_assert(std::is_trivially_copyable_v<T>);
    put(uint64_t{values.size()});
    bytes_.append(reinterpret_cast<const char*>(values.data()),
                  values.size() * sizeof(T));
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_;
};

class Unpacker {
 public:
  explicit Unpacker(std::string_view bytes) : rest_(bytes) {}

  template <class T>
  T take() {
    static_assert(std::is_trivially_copyable_v<T>);
    T value;
    std::memcpy(&value, raw(sizeof(T)).data(), sizeof(T));
    return value;
  }
  std::string text() { return std::string(raw(take<uint64_t>())); }
  template <class T>
  std::vector<T> list() {
    std::vector<T> values(count(sizeof(T)));
    const std::string_view bytes = raw(values.size() * sizeof(T));
    if (!values.empty()) std::memcpy(values.data(), bytes.data(), bytes.size());
    return values;
  }
  // The number of values that follow, of at least `least` bytes each.
  uint64_t count(uint64_t least) {
    const uint64_t n = take<uint64_t>();
    if (n > rest_.size() / least)
      throw bug_error({}, "a message has {} values in {} bytes", n,
                      rest_.size());
    return n;
  }

 private:
  std::string_view raw(uint64_t bytes) {
    if (bytes > rest_.size())
      throw bug_error({}, "a message ends {} bytes early",
                      bytes - rest_.size());
    const std::string_view found = rest_.substr(0, bytes);
    rest_.remove_prefix(bytes);
    return found;
  }
  std::string_view rest_;
};

}  // namespace ckpt::ranks
