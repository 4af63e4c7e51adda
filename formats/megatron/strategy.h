// SPDX-License-Identifier: Apache-2.0
// The backends that can be read and written, by version: the registry that
// Megatron-Core had as get_default_strategy(action, backend, version).
//
//   metadata.json
//   {"sharded_backend": "torch_dist", "sharded_backend_version": 1,
//    "common_backend": "torch", "common_backend_version": 1}
//
// Cores from 0.19 on leave out the last two.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace ckpt::megatron {

inline constexpr char kConfigFile[] = "metadata.json";

enum class Action : uint8_t {
  kLoadSharded,
  kSaveSharded,
  kLoadCommon,
  kSaveCommon,
};
std::string_view name(Action action);  // "load_sharded"

struct Strategy {
  Action action = Action::kLoadSharded;
  std::string backend;
  uint64_t version = 1;
  std::string format;  // ckpt's name; "" for common parts
};
// ckpt's own, then the added ones (ckpt/format.h).
const std::vector<Strategy>& strategies();
// To be called before anything is read. Returns false if that action, backend
// and version already have one.
bool add_strategy(Strategy strategy);

// The contents of metadata.json.
struct Config {
  std::string sharded_backend;
  uint64_t sharded_version = 1;
  std::string common_backend;  // "": by the sharded backend itself
  uint64_t common_version = 1;
  std::vector<std::string> unknown;  // other fields
};

// Nothing if the directory has no metadata.json, or one of something else, not
// an object with a string "sharded_backend". Throws input_error for a damaged
// one.
std::optional<Config> read_config(const std::string& directory);

// The strategy for both parts of a checkpoint. Throws input_error, listing what
// is supported.
const Strategy& find_strategy(Action action, std::string_view backend,
                              uint64_t version, const std::string& path);
// Null if there is none.
const Strategy* look_up(Action action, std::string_view backend,
                        uint64_t version);
// "torch_dist 1, zarr 1"
std::string supported(Action action);

// The text of a metadata.json that every core reads.
std::string config_text(std::string_view sharded_backend);

}  // namespace ckpt::megatron
