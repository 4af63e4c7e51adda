// SPDX-License-Identifier: Apache-2.0
// Files of tests/data, and the tables beside them.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace ckpt::test {

inline std::string data(const std::string& path) {
  return std::string(CKPT_TEST_DATA) + "/" + path;
}

inline std::string read_all(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

inline nlohmann::json read_json(const std::string& path) {
  return nlohmann::json::parse(read_all(path));
}

// A row of bad/EXPECT.tsv.
struct Bad {
  std::string file;     // below tests/data/bad
  std::string what;     // what is wrong with it
  std::string outcome;  // "REJECT", "ACCEPT_WARN: list it, warn" …
  bool may(const std::string& word) const {
    return outcome.find(word) != std::string::npos;
  }
};

// The rows whose file begins with `prefix`.
inline std::vector<Bad> bad_rows(const std::string& prefix) {
  std::ifstream table(data("bad/EXPECT.tsv"));
  std::vector<Bad> rows;
  for (std::string line; std::getline(table, line);) {
    const size_t a = line.find('\t');
    const size_t b = line.find('\t', a + 1);
    const size_t c = line.find('\t', b + 1);
    if (line.starts_with(prefix))
      rows.push_back({line.substr(0, a), line.substr(a + 1, b - a - 1),
                      line.substr(b + 1, c - b - 1)});
  }
  return rows;
}

}  // namespace ckpt::test
