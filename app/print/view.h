// SPDX-License-Identifier: Apache-2.0
// What `inspect` shows to people.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt::app {

// The header: path, format, the model's numbers, topology, sizes, age.
struct SummaryRow {
  std::string_view label;
  std::string value;  // printable
};
std::vector<SummaryRow> summary_rows(const Catalog& catalog);
std::string summary_text(const Catalog& catalog, size_t width);
// One row per pattern of names, a section per kind.
std::string pattern_text(const Catalog& catalog, size_t width);
// The patterns as a tree of their dotted names, with sums.
std::string tree_text(const Catalog& catalog, size_t width);
// Every piece of one tensor: where it is in the tensor and on disk.
std::string shards_text(const Catalog& catalog, const Tensor& tensor,
                        size_t width);
// Names, types and (cut) values of what is not a tensor.
std::string objects_text(const Catalog& catalog, size_t width);

// "step_3/model/pp_00/tp_00.pt": relative to the checkpoint if inside it.
std::string short_path(const Catalog& catalog, const std::string& path);

}  // namespace ckpt::app
