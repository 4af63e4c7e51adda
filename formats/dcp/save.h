// SPDX-License-Identifier: Apache-2.0
// Lays out the files of a PyTorch distributed checkpoint: what torch's
// FileSystemWriter would write, one file (or more) for each rank, and the
// .metadata that finds everything.
//
//   __R_0.distcp  | object | object | … | tensor item | tensor item | …
//   .metadata     written last
//
// Items are torch zips of one tensor each, payload at a multiple of 64 bytes
// from the item's start.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "ckpt/error.h"
#include "ckpt/layout.h"
#include "formats/dcp/metadata.h"

namespace ckpt::dcp {

struct SaveOptions {
  bool planner_data = true;  // paths; false: None
  bool storage_meta = true;  // and version: torch >= 2.4
  std::string directory;     // files go below it: "", "iter_0000007"
};

// Fill in any order; finish() once. `target.catalog.tensors` must be complete
// before the first piece (with no pieces of their own), target.files empty.
class Save {
 public:
  Save(const Catalog& source, Target& target, SaveOptions options);
  ~Save();

  // A box of target.catalog.tensors[tensor], in rank `rank`'s file. Boxes of
  // a tensor are disjoint (the planner proves it).
  void add_piece(uint32_t tensor, const Box& box, uint32_t rank);
  // A source object's archive, carried over byte for byte where the object
  // has one (decompressed if need be), else torch.save of its value.
  // `wrap`: the value is put in a list of one (Megatron's objects).
  void add_object(const std::string& name, const Object& object, uint32_t rank,
                  bool wrap = false);
  // The same of an object that is a tensor subclass: the index lists it as
  // the tensor that it stands for.
  void add_subclass(const std::string& name, const Object& object,
                    uint32_t rank);
  // A tensor that lies in such an archive, at `piece` of the source: it is
  // where its archive comes, and no entry of the index.
  void add_part(uint32_t tensor, const Object& object, const Piece& piece);
  // An object's archive that the caller made.
  void add_archive(const std::string& name, std::string bytes, uint32_t rank);
  // torch.save of a value.
  void add_value(const std::string& name, const pickle::Document& document,
                 uint32_t node, uint32_t rank);
  // The nested path of a tensor or object (planner_data); without it the name
  // is the only element.
  void set_path(const std::string& name, std::vector<PathElement> path);
  // A file beside the others that is known whole: common.pt, metadata.json.
  void add_file(const std::string& name, std::string bytes);

  // Makes the files; every rank below `ranks` has one, empty if it has
  // nothing, unless `skip_empty`.
  void finish(uint32_t ranks, bool skip_empty = false);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// What finish() throws for two entries of one name.
Error name_clash(const std::string& name);

}  // namespace ckpt::dcp
