// SPDX-License-Identifier: Apache-2.0
// Finds the directory of an OLMo-core checkpoint from a path.
//
//   step7/model_and_optim/.metadata    a trainer's checkpoint
//   any/.metadata                      save_model_and_optim_state: told by the
//                                      class _StorageInfo that it names, or by
//                                      a .metadata.json beside it
//   run/step7, run/step9-tmp           a training run: the newest that is
//                                      complete is taken
#pragma once

#include <optional>
#include <string>
#include <vector>

namespace ckpt::olmo_core {

struct Found {
  std::string why;   // one clause, found or not
  std::string home;  // the checkpoint's directory; "": none
  std::string data;  // where .metadata is, or should be: below home, or home
  bool finished = false;                // .metadata is there
  std::string chosen;                   // what was chosen: "step7"
  std::vector<std::string> unfinished;  // newer than that: "step9-tmp"
};

// Looks at names and, for a bare directory, at the bytes of .metadata. Does not
// throw for damage or another format.
Found locate(const std::string& path);

// What .metadata.json in a directory says: "3.0.0", the OLMo-core release that
// wrote it. Nothing if there is no such file, or it names no release.
std::optional<std::string> note_version(const std::string& directory);

// True for the name of a part of a checkpoint: .metadata, __0_0.distcp.
bool is_part_name(const std::string& name);

}  // namespace ckpt::olmo_core
