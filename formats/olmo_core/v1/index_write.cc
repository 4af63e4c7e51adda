// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>

#include "formats/olmo_core/v1/index.h"

namespace ckpt::olmo_core::v1 {
namespace {

// Escapes as Python's json does: everything except printable ASCII.
std::string quoted(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', true);
}

std::string list(const Dims& dims) {
  return fmt::format("[{}]", fmt::join(dims, ", "));
}

std::string spec(const Shard& shard) {
  if (shard.box)
    return fmt::format(R"({{"flattened_offsets": null, "local_shape": {}, )"
                       R"("global_offset": {}}})",
                       list(shard.box->shape), list(shard.box->offset));
  std::string ranges;
  for (const FlatRange& range : shard.ranges)
    ranges += fmt::format("{}[{}, {}]", ranges.empty() ? "" : ", ", range.begin,
                          range.end);
  return fmt::format(R"({{"flattened_offsets": [{}], "local_shape": null, )"
                     R"("global_offset": null}})",
                     ranges);
}

}  // namespace

std::string encode_index(const std::vector<Entry>& entries) {
  std::string json = R"({"tensors": {)";
  bool first = true;
  for (const Entry& entry : entries) {
    if (!first) json += ", ";
    first = false;
    json += fmt::format(
        R"({}: {{"shape": {}, "is_sharded": {}, "dtype": "{}", )"
        R"("shard_spec_per_file": {{)",
        quoted(entry.name), list(entry.shape), entry.sharded.value_or(false),
        info(entry.dtype.value_or(DType::f32)).safetensors);
    for (size_t i = 0; i < entry.shards.size(); ++i)
      json +=
          fmt::format("{}\"{}\": {}", i ? ", " : "",
                      rank_file(entry.shards[i].rank), spec(entry.shards[i]));
    json += "}}";
  }
  return json + "}}";
}

}  // namespace ckpt::olmo_core::v1
