// SPDX-License-Identifier: Apache-2.0
// The cache of the Hugging Face hub's client: a repository in it, or all of it.
#pragma once

#include <string>
#include <vector>

#include "api/check/integrity.h"
#include "ckpt/catalog.h"

namespace ckpt::library {

// A directory of repositories, as ~/.cache/huggingface/hub is.
bool is_hub(const std::string& path);

// check_integrity of each repository; the report has the problems of all.
Report check_hub(const std::string& path, const Selection& selection,
                 const IntegrityOptions& options, const Engine& engine);

// What is in a repository beside the snapshot that is opened. Empty for any
// other path.
struct HubRepo {
  std::vector<std::string> blobs;
  std::vector<Problem> problems;  // downloads that did not end, dead links
};
HubRepo look_at_repo(const std::string& path);

}  // namespace ckpt::library
