// SPDX-License-Identifier: Apache-2.0
// The objects of a distributed checkpoint, each a torch.save archive of its
// own inside of a .distcp file. Private to this room.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "ckpt/catalog.h"
#include "containers/torch/item.h"

namespace ckpt::dcp {

// Opens all objects that have no document, in parallel, file by file. Their
// globals are added to the catalog; with `restricted` those that weights-only
// loading would not allow are refused.
void open_objects(Catalog& catalog, bool restricted);
// For Catalog::object_opener: open_objects.
std::shared_ptr<const ObjectOpener> object_opener(bool restricted);

// The same, and calls `take` for each opened object, in the order of the
// catalog, before its bytes are let go.
using TakeObject = std::function<void(size_t index, torch::OpenedObject&)>;
void open_objects(Catalog& catalog, bool restricted, const TakeObject& take);

}  // namespace ckpt::dcp
