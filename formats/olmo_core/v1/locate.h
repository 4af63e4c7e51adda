// SPDX-License-Identifier: Apache-2.0
// Finds the directories of an olmo_core_v1 checkpoint from a path.
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
  std::string why;   // one clause, found or not
  std::string home;  // the checkpoint's directory; "": none
  // Folders in it that have an index: "model", "optim"; "": home itself.
  std::vector<std::string> parts;
  // A folder with ranks' files but without the index, which is written last.
  std::string broken;
  std::string chosen;                   // what was chosen: "step100"
  std::vector<std::string> unfinished;  // newer than that
  bool finished() const { return !parts.empty() && broken.empty(); }
};

// Looks into the indexes. Does not throw for damage or another format.
Found locate(const std::string& path);

}  // namespace ckpt::olmo_core::v1
