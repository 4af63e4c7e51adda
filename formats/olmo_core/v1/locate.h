// SPDX-License-Identifier: Apache-2.0
// Which directories of a path are a checkpoint of olmo_core_v1.
//
//   step100/model/metadata.json  step100/optim/metadata.json
//   any/metadata.json            one part alone, or the low-level class
//   run/step100, run/step200     a training run: the newest that is complete
#pragma once

#include <string>
#include <vector>

namespace ckpt::olmo_core::v1 {

inline constexpr std::string_view kModelFolder = "model";
inline constexpr std::string_view kOptimFolder = "optim";

struct Found {
  std::string why;   // one clause, also if nothing was found
  std::string home;  // the checkpoint's directory; "": none
  // Folders in it that hold an index: "model", "optim"; "": home itself.
  std::vector<std::string> parts;
  // A folder with files of ranks but without the index, which comes last.
  std::string broken;
  std::string chosen;                   // what was followed: "step100"
  std::vector<std::string> unfinished;  // newer than that
  bool finished() const { return !parts.empty() && broken.empty(); }
};

// Looks into the indexes. Does not throw for what is damaged or of another
// format.
Found locate(const std::string& path);

}  // namespace ckpt::olmo_core::v1
