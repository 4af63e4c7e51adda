// SPDX-License-Identifier: Apache-2.0
// What stands beside the tensors and objects of a distributed checkpoint that
// is written, whatever its backend: common.pt, files that are carried along,
// the tracker above. Private to this room.
#pragma once

#include <string>

#include "ckpt/catalog.h"
#include "ckpt/layout.h"
#include "formats/megatron/dist/boxes.h"
#include "formats/megatron/model/facts.h"

namespace ckpt::megatron {

// Where the checkpoint stands below DST: the level that was opened, so that a
// training root gives a training root. "", "iter_0000007". A model of another
// dialect becomes a training root of its own: "release".
std::string directory_for(const Catalog& source);

// What the args say, and what names and shapes do.
Facts facts_with_shapes(const Catalog& source);

// Expert tensor parallelism follows tp unless the args set it apart.
DistSplit split_for(const Facts& facts, const Layout& layout);

// Files, objects, problems and assumptions of the target; `directory` is that
// of directory_for. Payload files must be in it already.
void add_common(const Catalog& source, const Facts& facts, const Layout& layout,
                const std::string& directory, Target& target);
void add_sidecars(const Catalog& source, const Layout& layout,
                  const std::string& directory, Target& target);
void add_tracker(const std::string& directory, Target& target);

// A small file that is known whole.
void add_text(const std::string& path, std::string bytes, Target& target);

}  // namespace ckpt::megatron
