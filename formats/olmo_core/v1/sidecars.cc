// SPDX-License-Identifier: Apache-2.0
#include "formats/olmo_core/v1/sidecars.h"

#include <algorithm>

#include "formats/olmo_core/sidecars.h"
#include "formats/olmo_core/v1/index.h"
#include "lib/io/file.h"
#include "lib/manifest.h"

namespace ckpt::olmo_core::v1 {

// Files of the parts are read, or strays that a problem told about.
void add_sidecars(const Found& found, Catalog& catalog) {
  const auto is_part = [&](const std::string& below, bool) {
    if (below == kManifestName) return true;
    const size_t slash = below.rfind('/');
    const std::string folder =
        slash == below.npos ? std::string() : below.substr(0, slash);
    const std::string name = io::base_name(below);
    return std::ranges::find(found.parts, folder) != found.parts.end() &&
           (name == kIndexName || rank_of_file(name).has_value());
  };
  collect_sidecars(found.home, is_part,
                   "move the checkpoint into a folder of its own", catalog);
}

}  // namespace ckpt::olmo_core::v1
