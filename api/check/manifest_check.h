// SPDX-License-Identifier: Apache-2.0
// What a manifest says of the checkpoint that it was written with: the files,
// their digests and those of the tensors, and what was written unproven.
#pragma once

#include <string>
#include <vector>

#include "api/check/read_all.h"
#include "api/edit/select.h"
#include "ckpt/catalog.h"
#include "lib/manifest.h"

namespace ckpt::library {

// Where a tensor begins; the checkpoint, if it has no bytes.
std::string first_file(const Catalog& catalog, const Tensor& tensor);

class ManifestCheck {
 public:
  // `root`: the directory that its names are relative to. Throws if the
  // manifest can't be read.
  ManifestCheck(std::string path, std::string root);

  // Compares the bytes of no tensor, in all files that it lists; also for a
  // checkpoint that can't even be opened.
  std::vector<Problem> files() const;
  // Sizes of files, and digests of the tensors that were read. `selected`: what
  // it lists and the catalog lacks was not asked for.
  std::vector<Problem> tensors(const Catalog& catalog, const Reading& reading,
                               const Edits& edits, bool selected) const;
  // What was wrong when it was written, and was written all the same.
  std::vector<Problem> unproven(const std::string& checkpoint) const;

 private:
  bool is_listed_content(const Catalog& catalog, const Tensor& tensor) const;

  const std::string path_, root_;
  const Manifest manifest_;
};

// A manifest beside `path` that can't be one, and files that have appeared
// beside those that it lists.
std::vector<Problem> manifest_itself(const std::string& path,
                                     const Catalog& catalog);

}  // namespace ckpt::library
