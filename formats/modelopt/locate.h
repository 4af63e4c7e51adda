// SPDX-License-Identifier: Apache-2.0
// Which files of a directory make up a checkpoint. As in the peer, the first
// that exists:
//
//   subblocks_safetensors/   all *.pth in it, else all *.safetensors
//   subblocks/               all *.pth
//   model.safetensors.index.json, STEM.pth.index.json
//                            the files that it names, and the empty files of
//                            idle ranks, which it doesn't
//
// A model.safetensors in the directory is an ordinary one, whatever else is
// there.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "containers/hf/index.h"
#include "formats/format.h"

namespace ckpt::modelopt {

enum class Form : uint8_t {
  kNone,
  kShards,
  kPickledShards,
  kBlockFiles,
  kPickledBlocks
};

inline bool is_pickled(Form form) {
  return form == Form::kPickledShards || form == Form::kPickledBlocks;
}

struct Files {
  Form form = Form::kNone;
  std::string index;               // its name; "" if absent
  std::string folder;              // of block files; "" for shards
  std::vector<std::string> names;  // block files: FOLDER/NAME, sorted
};

// Looks at names only.
Files locate(const std::string& directory);

// Rank shards look like any Hugging Face directory. They are ModelOpt's if
// config.json has block_configs, or if the index is written the peer's way and
// no block is cut.
formats::Support supports(const std::string& path);

// The rank files that an index does not name, beside those that it does.
struct RankFiles {
  uint32_t world = 1;
  std::vector<std::string> idle;     // of the same set, in no index
  std::vector<std::string> missing;  // of the same set, absent
  std::vector<std::string> unread;   // other weights present
};
RankFiles rank_files(const std::string& directory, const formats::Index& index);

}  // namespace ckpt::modelopt
