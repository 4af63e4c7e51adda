// SPDX-License-Identifier: Apache-2.0
// The rules of a dialect applied to the tensors of a model, and undone. Private
// to this room: translate.h decides which rules, and what else has to follow.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "convert/options.h"
#include "convert/rules/mismatches.h"
#include "convert/rules/named_tensors.h"
#include "convert/rules/ops.h"
#include "convert/rules/optimizer.h"

namespace ckpt::families {

// What is translated by a model's rules. Parameters may lack state but none may
// have only part of it, and a moment does not change when a constant is added
// to the weight.
enum class Of : uint8_t { kWeights, kMains, kMoments };

class Translation {
 public:
  Translation(Catalog& source, const TranslateOptions& options,
              Of of = Of::kWeights, std::string what = {});

  // Undoes the rules: `model` in the dialect becomes hf.
  NamedTensors to_hf(NamedTensors model, const Numbers& numbers);
  // Applies the rules: hf becomes the dialect.
  NamedTensors from_hf(NamedTensors hf, const Numbers& numbers);
  // What each tensor of the result was made from.
  const Parents& parents() const { return parents_; }
  // Names as the family has them: prefixes of wrapped models replaced.
  NamedTensors normal(std::vector<Tensor> tensors, const Family& family) const;

 private:
  bool weights() const { return of_ == Of::kWeights; }
  [[noreturn]] void refuse_constant(const Instance& one) const;
  void settle(Tensor& made, const Rule& rule) const;
  // Refuses what does not fit, or adds it to the findings.
  void settle(const Mismatches& mismatches, const Numbers& numbers,
              const std::string& direction) const;
  static std::vector<std::string> names_of(const NamedTensors& tensors);
  // Parameters that transformers' model does not read, and rows that it makes
  // of others: told, not written.
  void leave_unread(NamedTensors& hf, const Numbers& numbers);
  void tell_unread_rows();
  // Files of transformers have these copies, and its readers want them.
  static void add_repeats(const HfSide::Repeat& repeat, NamedTensors& hf);
  static bool pads(const Rule& rule);
  // Rows past the vocabulary are cut: nothing is lost if they are zero.
  void check_padding(const Instance& one, const Tensor& tensor,
                     const Numbers& numbers);
  // What several tensors of the dialect hold of one of hf's.
  struct Slices {
    const Instance* one = nullptr;  // any of theirs
    std::map<uint64_t, View> views;
  };
  void undo(const Instance& one, const Tensor& tensor, const Numbers& numbers,
            NamedTensors& hf, std::map<std::string, Slices>& stacks,
            Mismatches& mismatches);
  static void stack(const std::string& name, const Slices& slices,
                    const Numbers& numbers, NamedTensors& hf,
                    Mismatches& mismatches);
  // The tensors that a rule fuses: all of them or none. False if the rule makes
  // nothing because they are left out or missing.
  bool sources_of(const Instance& one, NamedTensors& hf,
                  std::vector<const Tensor*>& from, Mismatches& mismatches);
  // A second copy is left out if it equals the first.
  void same(const Instance& one, const Tensor& tensor, const Numbers& numbers,
            const NamedTensors& hf);
  // Checks that the embedding has as many rows as config.json says.
  void check_rows(const Instance& one, const std::vector<const Tensor*>& from,
                  const Numbers& numbers);
  Tensor made_of(const Instance& one, const std::vector<const Tensor*>& from,
                 const Numbers& numbers, uint64_t spare);
  // Extra copies of the embedding and the output layer in a checkpoint: from
  // tied weights, or in layers that predict further tokens. Left out if they
  // equal what they repeat.
  void repeats(NamedTensors& hf);
  // Handles what no rule used: it is a buffer, dropped, or listed.
  void leftovers(NamedTensors& model, const std::vector<std::string>& ignored,
                 Mismatches& mismatches, NamedTensors& result);
  // False if it is not a buffer, whatever its name. Its bytes are checked
  // later.
  bool leave_buffer(const Tensor& tensor);
  void note(std::string text);

  Catalog& source_;
  const Of of_;
  const std::string what_;
  const bool lenient_;
  std::vector<Finding>* const findings_;
  const Globs drop_, allow_;
  const bool vocabulary_given_;
  Parents parents_;
  bool says_cuts_ = false;    // the dialect's rules do
  size_t unread_rows_ = 0;    // tensors with rows that are not written
  std::vector<Tensor> kept_;  // if lenient: parts of what is fused
};

}  // namespace ckpt::families
