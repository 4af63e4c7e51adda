// SPDX-License-Identifier: Apache-2.0
// A cache directory of the Hugging Face hub's client:
//
//   models--ORG--NAME/
//     refs/main                  the commit that the branch was at
//     snapshots/COMMIT/FILE      links to ../../blobs/…
//     blobs/                     *.incomplete are downloads that did not end
#pragma once

#include <optional>
#include <string>

namespace ckpt::formats {

// models--ORG--NAME, datasets--…, spaces--…
bool is_hub_repo_name(const std::string& name);

struct Snapshot {
  std::string path;
  std::string why;  // "revision 0123abcd, which refs/main names"
};

// Nothing if the directory is not a cache. Throws missing_error if the cache
// has no snapshot.
std::optional<Snapshot> find_snapshot(const std::string& path);

}  // namespace ckpt::formats
