// SPDX-License-Identifier: Apache-2.0
// The archive of an object, for a backend that keeps it in another form.
//
//   torch_dist  an item of a .distcp file   torch.save([value])
//   zarr        <key>/shard_0_1.pt          torch.save(value)
//
// Where both sides keep it in the same form, its bytes are carried over as
// they are, and this is never called.
#pragma once

#include <string>

#include "ckpt/catalog.h"

namespace ckpt::megatron {

enum class Form : uint8_t { kBare, kListOfOne };

// In which form a source of that format keeps the objects of grids.
Form form_of(std::string_view format);

// A whole archive with the same value in that form; the tensors in it come
// along. `archive_root` is the directory in the zip. Throws input_error for an
// archive that is damaged or in another form than its source's.
std::string object_archive(const Catalog& source, const Object& object,
                           Form form, const std::string& archive_root);

}  // namespace ckpt::megatron
