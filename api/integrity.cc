// SPDX-License-Identifier: Apache-2.0
// Is a checkpoint whole? Checks what megatron-core checks when it saves and
// loads, on what is stored.
#include <sys/stat.h>

#include <algorithm>
#include <map>
#include <set>

#include "api/memory.h"
#include "ckpt/ckpt.h"
#include "ckpt/note.h"
#include "formats/megatron/model/keys.h"
#include "lib/io/remote.h"
#include "reshard/engine.h"
#include "reshard/plan/planner.h"
#include "reshard/run/crc_check.h"

namespace ckpt {
namespace {

using Severity = Problem::Severity;

bool is_answer(const Error& error) {
  return error.code() == ExitCode::kDamaged ||
         error.code() == ExitCode::kUnfaithful;
}

Problem problem_of(const Error& error) {
  return damage("incomplete", {error.where().path, error.where().tensor}, "{}",
                error.problem());
}

// Where a piece's bytes end, as far as that can be known before its archive is
// opened.
uint64_t end_of(const Tensor& tensor, const Piece& piece) {
  const Extent& extent = piece.extent;
  if (extent.archive)
    return checked_add(extent.offset, extent.archive).value_or(UINT64_MAX);
  const uint64_t element = element_size(tensor.dtype);
  uint64_t bytes = 0;
  if (piece.flat) {
    bytes = (piece.flat->end - piece.flat->begin) * element;
  } else if (element == 0) {
    bytes = byte_size(tensor);
  } else if (volume(piece.box) != 0) {
    bytes = element;
    const Dims packed = row_major_strides(piece.box.shape);
    for (size_t d = 0; d < packed.size(); ++d)
      bytes +=
          (piece.box.shape[d] - 1) *
          (extent.strides.empty() ? packed[d] * element : extent.strides[d]);
  }
  return checked_add(extent.offset, bytes).value_or(UINT64_MAX);
}

// Checks that what the index names is in a file.
class Places {
 public:
  explicit Places(const Catalog& catalog) : catalog_(catalog) {
    for (const File& file : catalog.files) sizes_.push_back(size_of(file));
  }

  void check(const Tensor& tensor, std::vector<Problem>& problems) const {
    for (const Piece& piece : tensor.pieces) {
      const uint32_t file = piece.extent.file;
      const uint64_t end = end_of(tensor, piece);
      if (file < sizes_.size() && end <= sizes_[file]) continue;
      problems.push_back(damage(
          "extent",
          {file < sizes_.size() ? catalog_.files[file].path : catalog_.path,
           tensor.name},
          "a piece ends at byte {} of a file of {}", end,
          file < sizes_.size() ? sizes_[file] : 0));
      return;  // one per tensor is enough
    }
  }

 private:
  // Bytes that extents may cover: none if the file no longer exists.
  static uint64_t size_of(const File& file) {
    if (file.codec == Codec::kMemory || file.codec == Codec::kFill)
      return file.size;
    struct stat facts;
    if (!io::stat_any(file.path, facts)) return 0;
    const auto there = static_cast<uint64_t>(facts.st_size);
    if (file.codec == Codec::kRaw) return std::min(file.size, there);
    const auto end = checked_add(file.packed_offset, file.packed_size);
    return end && *end <= there ? file.size : 0;
  }

  const Catalog& catalog_;
  std::vector<uint64_t> sizes_;
};

// KEY/shard_AT_GRID: checks that all entries of a grid are there.
void check_grids(const Catalog& catalog, std::vector<Problem>& problems) {
  struct Grid {
    Dims shape;
    std::set<Dims> found;
    bool mixed = false;
  };
  std::map<std::string, Grid> grids;
  for (const Object& object : catalog.objects) {
    const auto key = megatron::parse_object_key(object.name);
    if (!key) continue;
    const Dims shape(key->grid);
    Grid& grid =
        grids.try_emplace(std::string(key->key), Grid{shape, {}}).first->second;
    grid.mixed = grid.mixed || grid.shape != shape;
    grid.found.insert(Dims(key->offset));
  }
  for (const auto& [key, grid] : grids) {
    if (!grid.mixed && element_count(grid.shape) == grid.found.size()) continue;
    problems.push_back(damage("object_grid", {catalog.path, key},
                              "{} objects of a grid of {} are there{}",
                              grid.found.size(), to_string(grid.shape),
                              grid.mixed ? ", and some of another grid" : ""));
  }
}

// Works tensor by tensor, so that one hole does not hide the next. `one` has
// the files and holds one tensor at a time: copying catalogs with many
// thousands of files would cost more than the check.
void check_tensor(Catalog& one, Tensor& tensor, bool deep,
                  std::vector<Problem>& problems) {
  one.tensors.resize(1);
  std::swap(one.tensors[0], tensor);
  try {
    const reshard::Plan plan = reshard::make_read_plan(one, deep);
    if (deep) {
      reshard::Output nowhere;
      reshard::check_replicas(plan, reshard::run(plan, one, nowhere, {}), one);
    }
  } catch (const Error& error) {
    std::swap(one.tensors[0], tensor);
    if (!is_answer(error)) throw;
    problems.push_back(problem_of(error));
    return;
  }
  std::swap(one.tensors[0], tensor);
}

}  // namespace

std::vector<Problem> validate_sharding_integrity(const Catalog& catalog,
                                                 bool deep) {
  library::check_catalog(catalog);
  std::vector<Problem> problems;
  check_grids(catalog, problems);
  const Places places(catalog);
  for (const Tensor& tensor : catalog.tensors) places.check(tensor, problems);

  Catalog one = catalog;
  if (deep) {
    try {
      locate(one);
    } catch (const Error& error) {
      if (!is_answer(error)) throw;
      problems.push_back(problem_of(error));
      return problems;  // what can't be located can't be read
    }
  }
  std::vector<Tensor> tensors = std::move(one.tensors);
  for (Tensor& tensor : tensors) check_tensor(one, tensor, deep, problems);
  if (deep)
    std::ranges::move(reshard::check_crcs(one, {}),
                      std::back_inserter(problems));
  return problems;
}

}  // namespace ckpt
