// SPDX-License-Identifier: Apache-2.0
// Pickles for tests: those inside torch files, and trees compared.
#pragma once

#include <cstring>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lib/io/file.h"
#include "lib/pickle/decode.h"
#include "lib/zip/archive.h"

namespace ckpt::test {

inline std::string data_path(const std::string& name) {
  return std::string(CKPT_TEST_DATA) + "/" + name;
}

inline pickle::Decoded decode_text(std::string_view bytes,
                                   const pickle::Limits& limits = {}) {
  return pickle::decode(std::as_bytes(std::span(bytes)), "test.pkl", limits);
}

// The object in a torch.save file: data.pkl, or the fourth pickle of a legacy
// file.
inline std::string pickle_of(const std::string& path) {
  const auto file = io::Handle::open_read(path);
  if (file.read_string(0, 2) == "PK") {
    const auto archive = zip::Archive::read(file);
    for (const zip::Entry& entry : archive.entries()) {
      if (entry.name.ends_with("/data.pkl"))
        return zip::read_entry(file, entry, uint64_t{1} << 30);
    }
    return {};
  }
  uint64_t offset = 0;
  for (int i = 0; i < 3; ++i)
    offset = pickle::decode(file, offset, file.size()).end;
  const uint64_t end = pickle::decode(file, offset, file.size()).end;
  return file.read_string(offset, end - offset);
}

// Compares two trees: the same values in the same order, shared in the same
// places. Says where they differ.
inline std::string difference(const pickle::Document& a, pickle::Id root_a,
                              const pickle::Document& b, pickle::Id root_b) {
  using namespace pickle;
  std::unordered_map<Id, Id> same, back;
  std::vector<std::pair<Id, Id>> pending{{root_a, root_b}};
  const auto push_all = [&](std::span<const Id> x, std::span<const Id> y) {
    for (size_t i = 0; i < x.size(); ++i) pending.push_back({x[i], y[i]});
  };
  while (!pending.empty()) {
    const auto [x, y] = pending.back();
    pending.pop_back();
    if (x == kNoId && y == kNoId) continue;
    if (x == kNoId || y == kNoId) return "one has a part that the other lacks";
    const Type type = a.type(x);
    if (type != b.type(y))
      return std::string(name(type)) + " against " +
             std::string(name(b.type(y)));
    const bool scalar = type < Type::kByteArray || type == Type::kGlobal;
    if (!scalar) {
      const auto [found, fresh] = same.emplace(x, y);
      const auto [found_back, fresh_back] = back.emplace(y, x);
      if (found->second != y || found_back->second != x)
        return "shared in other places: " + std::string(name(type));
      if (!fresh) continue;
    }
    switch (type) {
      case Type::kNone:
        break;
      case Type::kBool:
        if (a.boolean(x) != b.boolean(y)) return "bool";
        break;
      case Type::kInt:
        if (a.integer(x) != b.integer(y)) return "int";
        break;
      case Type::kFloat: {
        const double u = a.real(x), v = b.real(y);
        if (std::memcmp(&u, &v, sizeof u) != 0) return "float";
        break;
      }
      case Type::kBigInt:
      case Type::kString:
      case Type::kBytes:
      case Type::kByteArray:
        if (a.text(x) != b.text(y)) return "text " + std::string(a.text(x));
        break;
      case Type::kGlobal:
        if (a.callable_name(x) != b.callable_name(y))
          return "global " + a.callable_name(x);
        break;
      case Type::kCall: {
        const Call c = a.call(x), d = b.call(y);
        if (c.how != d.how || c.items.size() != d.items.size() ||
            c.pairs.size() != d.pairs.size())
          return "call of " + a.callable_name(x);
        pending.push_back({c.callable, d.callable});
        pending.push_back({c.args, d.args});
        pending.push_back({c.kwargs, d.kwargs});
        pending.push_back({c.state, d.state});
        push_all(c.items, d.items);
        push_all(c.pairs, d.pairs);
        break;
      }
      default:
        if (a.items(x).size() != b.items(y).size())
          return "size of a " + std::string(name(type));
        push_all(a.items(x), b.items(y));
    }
  }
  return {};
}

// Every file below a directory of the test data.
inline std::vector<std::string> files_below(const std::string& name) {
  std::vector<std::string> files;
  for (const auto& entry :
       std::filesystem::recursive_directory_iterator(data_path(name))) {
    if (entry.is_regular_file()) files.push_back(entry.path().string());
  }
  return files;
}

}  // namespace ckpt::test
