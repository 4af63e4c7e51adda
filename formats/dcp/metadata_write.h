// SPDX-License-Identifier: Apache-2.0
// The pickle of a .metadata file, written front to back: a checkpoint may have
// millions of chunks, so no value tree is built. Classes and texts are spelled
// out once and referred to afterwards.
//
//   Metadata { state_dict_metadata { name: TensorStorageMetadata {…}
//                                    name: BytesStorageMetadata }
//              planner_data { name: (path, …) } | None
//              storage_data { MetadataIndex {name, index, offset}:
//                             _StorageInfo {file, offset, length} }
//              storage_meta, version }
//
// Private to this room.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/box.h"
#include "ckpt/dtype.h"
#include "formats/dcp/metadata.h"

namespace ckpt::dcp {

struct WrittenItem {
  std::string file;  // relative path
  uint64_t offset = 0;
  uint64_t length = 0;
};

// Make each kind of call in this order, once per entry in turn.
class MetadataWriter {
 public:
  MetadataWriter();
  ~MetadataWriter();

  void begin_state_dict();
  void begin_tensor(std::string_view name, DType dtype, const Shape& size,
                    bool requires_grad);
  void add_chunk(const Box& box);
  void end_tensor();
  void add_bytes(std::string_view name);

  // If not called, planner_data is None.
  void begin_planner();
  void add_path(std::string_view name, std::span<const PathElement> path);

  void begin_storage();
  // `index` counts a tensor's chunks; without an offset it is a bytes entry.
  void add_stored(std::string_view name, uint64_t index,
                  const std::optional<Dims>& offset, const WrittenItem& item);

  // Returns the whole pickle. `storage_meta`: with a version and a save_id made
  // from the content, as torch >= 2.9 writes them.
  std::string finish(bool storage_meta);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace ckpt::dcp
