// SPDX-License-Identifier: Apache-2.0
// Lays out the files of a PyTorch distributed checkpoint: what torch's
// FileSystemWriter would write, one file (or more) per rank, and the .metadata
// that locates everything.
//
//   __R_0.distcp  | object | object | … | tensor item | tensor item | …
//   .metadata     written last
//
// Items are torch zips of one tensor each, with the payload at a multiple of 64
// bytes from the item's start.
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

// Fill in any order, then call finish() once. `target.catalog.tensors` must be
// complete before the first piece (without pieces of their own), and
// target.files empty.
class Save {
 public:
  Save(const Catalog& source, Target& target, SaveOptions options);
  ~Save();

  // Adds a box of target.catalog.tensors[tensor] to rank `rank`'s file. Boxes
  // of a tensor are disjoint (the planner proves it).
  void add_piece(uint32_t tensor, const Box& box, uint32_t rank);
  // Adds a source object: its archive, byte for byte (decompressed if need be),
  // or torch.save of its value if it has none. `wrap` puts the value in a list
  // of one (Megatron's objects).
  void add_object(const std::string& name, const Object& object, uint32_t rank,
                  bool wrap = false);
  // The same for an object that is a tensor subclass: the index lists it as the
  // tensor that it stands for.
  void add_subclass(const std::string& name, const Object& object,
                    uint32_t rank);
  // Adds a tensor inside such an archive, at `piece` of the source: it is
  // placed with its archive and has no index entry.
  void add_part(uint32_t tensor, const Object& object, const Piece& piece);
  // Adds an object's archive made by the caller.
  void add_archive(const std::string& name, std::string bytes, uint32_t rank);
  // Adds torch.save of a value.
  void add_value(const std::string& name, const pickle::Document& document,
                 uint32_t node, uint32_t rank);
  // Sets the nested path of a tensor or object (planner_data); without it the
  // name is the only element.
  void set_path(const std::string& name, std::vector<PathElement> path);
  // Adds a file beside the others whose content is known: common.pt,
  // metadata.json.
  void add_file(const std::string& name, std::string bytes);

  // Makes the files; every rank below `ranks` has one, empty if it holds
  // nothing, unless `skip_empty`.
  void finish(uint32_t ranks, bool skip_empty = false);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// What finish() throws for two entries with the same name.
Error name_clash(const std::string& name);

}  // namespace ckpt::dcp
