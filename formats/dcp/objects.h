// SPDX-License-Identifier: Apache-2.0
// The objects of a distributed checkpoint, each its own torch.save archive
// inside a .distcp file. Private to this room.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "ckpt/catalog.h"
#include "containers/torch/item.h"

namespace ckpt::dcp {

// Opens all objects that have no document, in parallel, file by file. Adds
// their globals to the catalog; with `restricted`, refuses those that
// weights-only loading would not allow.
void open_objects(Catalog& catalog, bool restricted);
// For Catalog::object_opener: open_objects.
std::shared_ptr<const ObjectOpener> object_opener(bool restricted);

// The same, but calls `take` for each opened object, in catalog order, before
// its bytes are released.
using TakeObject = std::function<void(size_t index, torch::OpenedObject&)>;
void open_objects(Catalog& catalog, bool restricted, const TakeObject& take);

}  // namespace ckpt::dcp
