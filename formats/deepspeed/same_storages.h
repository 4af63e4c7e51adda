// SPDX-License-Identifier: Apache-2.0
// A torch.save file with other values beside the same storages: what no tensor
// of the catalog covers is carried from the source's file, with its checksum
// there.
//
//   source   | data.pkl  | data/0: views of parameters | data/1: a buffer |
//   target   | data.pkl' | data/0: carried             | data/1: a piece  |
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "ckpt/catalog.h"
#include "ckpt/layout.h"
#include "containers/torch/container.h"
#include "containers/torch/file_plan.h"
#include "lib/pickle/value.h"

namespace ckpt::deepspeed {

class SameStorages {
 public:
  // `opened`: the catalog that `container` was opened into. Storages in
  // `without` (indexes) are not in the new file. Throws unfaithful_error for
  // containers whose storages can't be carried.
  SameStorages(const torch::Container& container, const Catalog& opened,
               std::span<const uint32_t> without = {});

  // Adds a slot for each storage that is kept, and to `substitutes` the nodes
  // that stand for them in the new document.
  void add_slots(pickle::Document& document,
                 std::vector<torch::TensorSlot>& slots,
                 std::unordered_map<pickle::Id, pickle::Id>& substitutes);

  // A tensor's bytes in the source's file: a piece, so not carried.
  struct Use {
    uint64_t begin = 0;
    uint64_t end = 0;
  };
  // Sets checksums and carries what is between the uses (sorted, disjoint).
  // `source_file`: the container's file in the source's catalog.
  void carry(torch::FilePlan& plan, uint32_t source_file,
             std::span<const Use> uses) const;

  // Where byte `offset` of the source's file ends up in the new one.
  uint64_t moved(const torch::FilePlan& plan, uint64_t offset) const;

 private:
  uint32_t crc_of(const torch::Storage& storage) const;

  const torch::Container& container_;
  const Catalog& opened_;
  std::vector<uint32_t> kept_;  // storages, in the order of their slots
  size_t first_ = 0;            // their first slot
};

}  // namespace ckpt::deepspeed
