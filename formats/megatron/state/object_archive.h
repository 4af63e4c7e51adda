// SPDX-License-Identifier: Apache-2.0
// The archive of an object, for a backend that stores it in another form.
//
//   torch_dist  an item of a .distcp file   torch.save([value])
//   zarr        <key>/shard_0_1.pt          torch.save(value)
//
// If both sides store it in the same form, its bytes are carried over
// unchanged, and this is never called.
#pragma once

#include <string>

#include "ckpt/catalog.h"

namespace ckpt::megatron {

enum class Form : uint8_t { kBare, kListOfOne };

// The form in which a source of that format stores the objects of grids.
Form form_of(std::string_view format);

// A whole archive with the same value, including its tensors, in that form.
// `archive_root` is the directory in the zip. Throws input_error for an archive
// that is damaged or not in its source's form.
std::string object_archive(const Catalog& source, const Object& object,
                           Form form, const std::string& archive_root);

}  // namespace ckpt::megatron
