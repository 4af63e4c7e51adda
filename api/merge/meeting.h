// SPDX-License-Identifier: Apache-2.0
// Sources of one model are made to have the same names, or are refused.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "api/engine.h"
#include "ckpt/merge.h"
#include "reshard/run/run_options.h"

namespace ckpt::library {

class Meeting {
 public:
  // The others are compared with the one at `frame`.
  Meeting(std::vector<Catalog>& sources, size_t frame,
          const MergeOptions& options);

  // With `all_names` each source has to have all tensors. Throws
  // unfaithful_error for another model, input_error for one that has changed
  // since its manifest was written.
  void meet(bool all_names);

 private:
  reshard::RunOptions run_options() const;
  void prepare(Catalog& source);
  void check_facts() const;
  void warn_of_factors() const;
  void warn_of_tokenizers() const;
  void bring_names();
  void check_names(size_t i) const;
  std::string hint_of_names(const Catalog& other) const;

  std::vector<Catalog>& sources_;
  const size_t frame_;
  const MergeOptions& options_;
  Engine engine_;
};

}  // namespace ckpt::library
