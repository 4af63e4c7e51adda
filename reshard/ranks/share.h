// SPDX-License-Identifier: Apache-2.0
// What one rank needs to do its part of a plan: the jobs of its items, the
// files and records that they touch. Tensors, digest slots and target files
// keep their numbers, so that journals and sums of all ranks speak of the same
// things; jobs, lanes, source files and records are numbered anew, and of a
// target file's checksums only those are there that the items touch.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/catalog.h"
#include "ckpt/layout.h"
#include "ckpt/read_mode.h"
#include "reshard/plan.h"
#include "reshard/ranks/pack.h"
#include "reshard/work.h"

namespace ckpt::ranks {

// --exchange send: who writes what, and where this rank is in it.
struct Mailing {
  uint32_t round = 0;            // 0: nothing is sent
  uint32_t rank = 0;             // this one
  uint64_t buffer = 0;           // of a message
  std::vector<uint32_t> owners;  // by target file: the rank that writes it
  std::vector<uint8_t> away;     // by rank: true on another machine
  std::string gpus;              // Exchange::Setup
};

struct Share {
  reshard::Plan plan;
  std::vector<uint32_t> tensors;  // in plan.tensors; the others are empty
  std::vector<reshard::Item> items;
  Catalog source;              // files and crcs only
  std::vector<uint32_t> crcs;  // where source.crcs stand in the whole catalog
  Target target;               // of the files: path, size and crcs
  // By file: where its crcs stand in the whole target's.
  std::vector<std::vector<uint32_t>> target_crcs;
  Mailing mailing;
  std::deque<std::string> memory;  // bytes of source files that have none

  // How to run it.
  std::string root;     // of the target's files; "" and no files: only read
  std::string journal;  // "": none
  uint64_t work = 0;    // the journal's fingerprint
  uint64_t max_mem = 0;
  uint64_t block = 0;
  uint32_t threads = 0;     // 0: the processors that are its own …
  uint32_t neighbours = 1;  // … of a machine with that many ranks
  ReadMode io = ReadMode::kAuto;
  bool digest = true;
  bool check_crcs = false;
  bool stats = false;         // of each tensor's elements
  bool sync = false;          // flush what was written
  bool cuda = false;          // with this machine's GPUs
  bool count_losses = false;  // of casts
  bool saturate = false;      // what overflows
};

// The share of `items`, which split() dealt out. `target` may be null. With a
// `mailing`, also the files that its rank writes for others.
Share make_share(const reshard::Plan& plan, const Catalog& source,
                 const Target* target, const std::vector<reshard::Item>& items,
                 const Mailing& mailing = {});

// The parts of messages about a source's files and their records.
void put_source(Packer& out, const Catalog& source,
                const std::deque<std::string>& memory);
void take_source(Unpacker& in, Catalog& source,
                 std::deque<std::string>& memory);

std::string pack(const Share& share);
Share unpack_share(std::string_view bytes);

}  // namespace ckpt::ranks
