// SPDX-License-Identifier: Apache-2.0
// What one rank needs to do its part of a plan: the jobs of its items, and the
// files and records that they touch. Tensors, digest slots and target files
// keep their numbers, so that journals and sums of all ranks refer to the same
// things. Jobs, lanes, source files and records are renumbered, and a target
// file has only those checksums that the items touch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"
#include "ckpt/layout.h"
#include "ckpt/read_mode.h"
#include "reshard/plan/plan.h"
#include "reshard/plan/work.h"
#include "reshard/ranks/pack.h"
#include "reshard/ranks/share_files.h"

namespace ckpt::ranks {

// --exchange send: who writes what, and this rank's place in it.
struct Mailing {
  uint32_t round = 0;            // 0: nothing is sent
  uint32_t rank = 0;             // this rank
  uint64_t buffer = 0;           // bytes of a message
  std::vector<uint32_t> owners;  // by target file: the rank that writes it
  std::vector<uint8_t> away;     // by rank: true on another machine
  std::string gpus;              // Exchange::Setup
};

struct Share {
  reshard::Plan plan;
  std::vector<uint32_t> tensors;  // in plan.tensors; the others are empty
  std::vector<reshard::Item> items;
  Catalog source;              // files and crcs only
  std::vector<uint32_t> crcs;  // indexes of source.crcs in the whole catalog
  Target target;               // only path, size and crcs of the files
  // By file: the indexes of its crcs in the whole target's.
  std::vector<std::vector<uint32_t>> target_crcs;
  Mailing mailing;
  Kept kept;  // what source.files point to

  // How to run it.
  std::string root;     // of the target's files; "" and no files: only read
  std::string journal;  // "": none
  uint64_t work = 0;    // the journal's fingerprint
  uint64_t max_mem = 0;
  uint64_t block = 0;
  uint32_t threads = 0;     // 0: the processors that are its share …
  uint32_t neighbours = 1;  // … of a machine with this many ranks
  ReadMode io = ReadMode::kAuto;
  bool digest = true;
  bool check_crcs = false;
  bool stats = false;         // of each tensor's elements
  bool sync = false;          // flush what is written
  bool cuda = false;          // with this machine's GPUs
  bool count_losses = false;  // of casts
  bool saturate = false;      // values that overflow
};

// The share for `items`, as dealt out by split(). `target` may be null. With a
// `mailing`, includes the files that its rank writes for others.
Share make_share(const reshard::Plan& plan, const Catalog& source,
                 const Target* target, const std::vector<reshard::Item>& items,
                 const Mailing& mailing = {});

// The parts of messages that describe a source's files and their records.
void put_source(Packer& out, const Catalog& source);
void take_source(Unpacker& in, Catalog& source, Kept& kept);

std::string pack(const Share& share);
Share unpack_share(std::string_view bytes);

}  // namespace ckpt::ranks
