// Reads the folder of a step: its containers, then the files beside them.
#pragma once

#include "ckpt/catalog.h"
#include "formats/format.h"
#include "formats/runs/find.h"

namespace ckpt::runs {

// Throws input_error for a step without a model, of two world sizes, or that
// lacks the file of a rank.
Catalog read_step(const Found& found, const formats::ReadOptions& options);

}  // namespace ckpt::runs
