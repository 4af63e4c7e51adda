// SPDX-License-Identifier: Apache-2.0
// Which directory of a path is a checkpoint of OLMo-core.
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
  std::string why;   // one clause, also if nothing was found
  std::string home;  // the checkpoint's directory; "": none
  std::string data;  // where .metadata is, or should be: below home, or home
  bool finished = false;                // .metadata is there
  std::string chosen;                   // what was followed: "step7"
  std::vector<std::string> unfinished;  // newer than that: "step9-tmp"
};

// Looks at names and, for a bare directory, at the bytes of .metadata. Does
// not throw for what is damaged or of another format.
Found locate(const std::string& path);

// What .metadata.json in a directory says: "3.0.0", the release of OLMo-core
// that wrote it. Nothing if it is not there, or says none.
std::optional<std::string> note_version(const std::string& directory);

// True for a part of a checkpoint by its name: .metadata, __0_0.distcp.
bool is_part_name(const std::string& name);

}  // namespace ckpt::olmo_core
