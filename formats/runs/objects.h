// SPDX-License-Identifier: Apache-2.0
// The files of a step that hold values: scheduler, RNG, trainer state.
#pragma once

#include <string>

#include "ckpt/catalog.h"
#include "formats/format.h"
#include "lib/pickle/value.h"

namespace ckpt::runs {

// The values of all files, in one document, with the bytes of the small tensors
// inside them.
struct Values {
  std::shared_ptr<pickle::Document> document =
      std::make_shared<pickle::Document>();
  std::vector<std::pair<uint32_t, Content>> storages;  // as in Skeleton
};

// Adds the file's value as the object `name`: JSON, a pickle, or a torch file,
// whose small tensors stay inside the value. Large ones (such as a registered
// average of all weights) become tensors <name>.<…> of kind other. Other kinds
// of files remain files. Returns the name under which torch.save wrote it; ""
// if the file has none.
std::string add_object(const std::string& path, const std::string& name,
                       const formats::ReadOptions& options, Values& values,
                       Catalog& catalog);

// A whole number at "a.b" in a JSON file or the root of a pickle or a torch
// file.
std::optional<uint64_t> number_in(const std::string& path,
                                  const std::string& key);
// The same for an object of the catalog; opens it.
std::optional<uint64_t> number_of(const Catalog& catalog,
                                  const std::string& object);

}  // namespace ckpt::runs
