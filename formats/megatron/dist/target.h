// SPDX-License-Identifier: Apache-2.0
// What a written distributed checkpoint has beside its tensors and objects,
// whatever its backend: common.pt, carried files, the tracker above. Private to
// this room.
#pragma once

#include <string>

#include "ckpt/catalog.h"
#include "ckpt/layout.h"
#include "formats/megatron/dist/boxes.h"
#include "formats/megatron/model/facts.h"

namespace ckpt::megatron {

// Where the checkpoint is below DST: at the level that was opened, so that a
// training root gives a training root. "", "iter_0000007". A model of another
// dialect becomes a new training root: "release".
std::string directory_for(const Catalog& source);

// What the args say, and what names and shapes say. `keys` are those of the
// tensors.
Facts facts_with_shapes(const Catalog& source, const KeyList& keys);
Facts facts_with_shapes(const Catalog& source);

// Expert tensor parallelism follows tp unless the args differ.
DistSplit split_for(const Facts& facts, const Layout& layout);

// Adds files, objects, problems and assumptions of the target; `directory` is
// directory_for's. Payload files must already be in the target.
void add_common(const Catalog& source, const Facts& facts, const Layout& layout,
                const std::string& directory, Target& target);
void add_sidecars(const Catalog& source, const Layout& layout,
                  const std::string& directory, Target& target);
void add_tracker(const std::string& directory, Target& target);

// Adds a small file whose content is known.
void add_text(const std::string& path, std::string bytes, Target& target);

}  // namespace ckpt::megatron
