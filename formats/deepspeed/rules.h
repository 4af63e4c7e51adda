// SPDX-License-Identifier: Apache-2.0
// How the tensor-parallel slices of a parameter are joined: --shard-dims, else
// the client's universal_checkpoint_info, lists of patterns for names of
// parameters, else what the modules of that name do.
//
//   tp_replicated_parameter_patterns           all slices are equal
//   parameter_to_average_patterns              their mean
//   parameter_with_row_parallelism_patterns    joined on dimension 1
//   parameter_with_2_sub_params_cat_dim_0      [a|b] each: a's, then b's
//   parameter_with_sub_params                  any number of such parts
//   vocabulary_parameter_patterns              rows >= original_vocab_size
//                                              are padding
//   anything else                              joined on dimension 0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "lib/pickle/value.h"
#include "models/rules.h"

namespace ckpt::deepspeed {

// Elements [local, local + length) of a rank's slice, on the dimension that
// is split, are [global, global + length) of the whole.
struct Segment {
  uint64_t local = 0;
  uint64_t global = 0;
  uint64_t length = 0;
};

// What becomes of vectors that each rank has whole, and not alike.
enum class Merge : uint8_t { kNone, kMean, kSum };

// What a client's module says.
struct Said {
  TpRule rule;
  Merge merge = Merge::kNone;  // with a rule of replicas
  // With a split: what a rank has one after the other, each joined with that
  // of the other ranks.
  std::vector<uint64_t> parts = {};
};

struct Joined {
  Shape shape;  // of the whole, without vocabulary padding
  TpRule tp;
  uint32_t dim = 0;
  bool replicated = false;  // every rank holds the whole
  Merge merge = Merge::kNone;
  bool unruled = false;  // replicated for all that is known (lib/unruled.h)
  std::vector<std::vector<Segment>> ranks;  // not if replicated
};

class Rules {
 public:
  Rules();
  ~Rules();
  Rules(Rules&&) noexcept;
  Rules& operator=(Rules&&) noexcept;

  // Reads universal_checkpoint_info; kNoId or None gives no rules. Throws
  // input_error for patterns that can't be understood.
  static Rules read(const pickle::Document& document, pickle::Id info,
                    const std::string& path);

  // --shard-dims: comes before the client's patterns.
  void set_user(families::Rules rules);

  // Asked for what neither says: the client's modules.
  using OfModule =
      std::function<Said(const std::string& name, const Shape& local)>;
  void set_modules(OfModule rule);

  // `locals`: the shapes of all ranks' slices. Throws unfaithful_error if there
  // are several but no rules, input_error if they don't fit.
  Joined join(const std::string& name, const std::vector<Shape>& locals) const;

  // True if a pattern says how this tensor is joined.
  bool names(const std::string& name) const;
  // True if anything says how tensors are joined, other than --shard-dims.
  bool any() const;
  // True if the client's module says it.
  bool is_of_module(const std::string& name, const Shape& local) const;
  bool is_vocabulary(const std::string& name) const;

 private:
  struct Data;
  std::unique_ptr<Data> data_;
};

}  // namespace ckpt::deepspeed
