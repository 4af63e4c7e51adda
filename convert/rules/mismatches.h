// SPDX-License-Identifier: Apache-2.0
// Collects what does not fit a family's rules: a user wants to see all of it at
// once.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ckpt/error.h"
#include "lib/text/glob.h"
#include "models/numbers.h"

namespace ckpt::families {

struct Finding {
  std::string kind;    // unknown, missing, doubled, misshapen, number
  std::string tensor;  // of hf; of the dialect where it says so
  std::string message;
  std::string hint;
};

class Globs {
 public:
  explicit Globs(const std::vector<std::string>& patterns) {
    for (const std::string& pattern : patterns) globs_.emplace_back(pattern);
  }
  bool match(std::string_view name) const {
    return std::ranges::any_of(
        globs_, [&](const text::Glob& glob) { return glob.matches(name); });
  }

 private:
  std::vector<text::Glob> globs_;
};

class Mismatches {
 public:
  void unknown(const std::string& name) { unknown_.push_back(name); }
  void missing(const std::string& name, const std::string& of);
  void doubled(const std::string& name) { doubled_.push_back(name); }
  void misshapen(const std::string& name, const Error& error);

  // All of them, one by one.
  std::vector<Finding> findings() const;

  // Throws unfaithful_error listing them, if there are any. `direction`: "hf to
  // mcore".
  void check(const std::string& path, const Numbers& numbers,
             const std::string& direction) const;

 private:
  std::string hint(const Numbers& numbers) const;

  std::vector<std::string> unknown_, missing_, doubled_, misshapen_;
  std::vector<Finding> shapes_;
  std::string hint_;
  bool headless_ = false;  // what is missing is an output layer, and only that
};

}  // namespace ckpt::families
