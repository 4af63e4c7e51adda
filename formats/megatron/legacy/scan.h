// SPDX-License-Identifier: Apache-2.0
// The directories of a legacy Megatron checkpoint.
//
//   ROOT/latest_checkpointed_iteration.txt      "5", or "release"
//   ROOT/iter_0000005/                          ROOT/release/
//     mp_rank_TT[_PPP][_EEE]/model_optim_rng.pt
//                            distrib_optim.pt
//
// _PPP is there if the pipeline has several stages, _EEE if experts are spread
// over ranks. So a name with two numbers is ambiguous: sizes decide.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "formats/megatron/model/facts.h"

namespace ckpt::megatron {

// In NeMo's archives a rank's file has this name and is just its state dict.
inline constexpr char kNemoWeights[] = "model_weights.ckpt";

struct LegacyDir {
  std::string name;  // "mp_rank_00_001"
  std::string path;
  uint32_t tp = 0;
  std::optional<uint32_t> second, third;  // as the name has them
  std::string model_file;                 // path
  std::string optimizer_file;             // path of distrib_optim.pt, or ""
  // What they mean, once the sizes are known.
  uint32_t pp = 0, ep = 0;
};

struct LegacyPlace {
  std::string path;     // the directory with the mp_rank_… directories
  std::string chosen;   // why this one, if there was a choice
  std::string warning;  // something to know about that choice
  bool root = false;    // the given path is above `path`
};

// No place, but the reason, if the directory has no checkpoint. Does not throw
// for readable directories.
struct LegacyFound {
  std::optional<LegacyPlace> place;
  std::string why;
};
LegacyFound locate_legacy(const std::string& path);

struct LegacyScan {
  std::vector<LegacyDir> dirs;      // by name
  std::vector<std::string> strays;  // unread files, and directories without a
                                    // model
};
LegacyScan scan_legacy(const std::string& path);

// Sets pp and ep of the directories, sorts them by (pp, tp, ep) and checks that
// all ranks that `facts` promises are there. Throws missing_error naming those
// that are not.
void resolve_legacy(std::vector<LegacyDir>& dirs, const Facts& facts,
                    const std::string& path);

}  // namespace ckpt::megatron
