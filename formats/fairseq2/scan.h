// SPDX-License-Identifier: Apache-2.0
// The directories of a fairseq2 checkpoint.
//
//   base/model.yaml                                  family, configuration
//   base/scores/step_7.txt
//   base/step_7/model/pp_00/tp_00/sdp_00.pt          at least two digits each,
//   base/step_7/optimizer/pp_00/tp_00/sdp_00.pt      numbered without gaps
//   base/step_7/trainer/rank_00.pt
//   base/step_7/data_reader/dp_00.pt
//   base/step_8.tmp/                                 being written: ignored
//
// 0.3 and 0.4 have files in step_7: model.pt, or model.0.pt, model.1.pt … of
// the tensor-parallel ranks; rank_0.pt, metadata.pt, score.txt.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace ckpt::fairseq2 {

// What the given path is.
enum class Level : uint8_t { kBase, kStep, kModel };

struct Location {
  Level level = Level::kBase;
  bool old = false;       // the layout of 0.3 and 0.4
  std::string path;       // the step directory; for kModel, the model's
  std::string model_dir;  // that holds pp_00; empty if old
  std::optional<uint64_t> step;
  std::string chosen;  // kBase: why this step
};

struct Found {
  std::optional<Location> location;
  std::string why;  // one clause, whatever the outcome
};

// Looks only at directories' names; opens no file and does not throw.
Found locate(const std::string& path);

// Shard files by stage, tensor-parallel rank and data-parallel rank.
struct Grid {
  std::vector<std::vector<std::vector<std::string>>> files;
  std::vector<std::string> strays;  // entries outside the checkpoint

  uint32_t pp() const { return static_cast<uint32_t>(files.size()); }
  uint32_t tp() const { return static_cast<uint32_t>(files.at(0).size()); }
  uint32_t dp() const {
    return static_cast<uint32_t>(files.at(0).at(0).size());
  }
};

// The same files one after the other: stage by stage, then by tp, then dp.
struct RankFile {
  uint32_t pp = 0;
  uint32_t tp = 0;
  uint32_t dp = 0;
  const std::string* path = nullptr;  // in the grid
  bool first() const { return tp == 0 && dp == 0; }
};
std::vector<RankFile> rank_files(const Grid& grid);

// Throws input_error for gaps in the numbering, unequal counts and an empty
// directory: fairseq2 itself would silently read less.
Grid scan_grid(const std::string& directory);
// model.pt or model.<tp rank>.pt of a step of 0.3 or 0.4.
Grid scan_old(const std::string& step_dir);

// "pp_07" for ("pp_", 7).
std::string numbered(const char* prefix, uint64_t number);
// The number in PREFIXdigitsSUFFIX; nothing for other names.
std::optional<uint64_t> number_in(const std::string& name,
                                  const std::string& prefix,
                                  const std::string& suffix = {});

}  // namespace ckpt::fairseq2
