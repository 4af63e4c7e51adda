// SPDX-License-Identifier: Apache-2.0
// A source's files in messages. A rank opens those that are on disk, gets the
// bytes of those that are in memory, and computes those that are made of others
// (lib/decoding.h, reshard/sources/made.h) as the rank does that opened the
// source: all that they are made of goes with them.
#pragma once

#include <deque>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "ckpt/catalog.h"
#include "reshard/ranks/pack.h"
#include "reshard/sources/made.h"

namespace ckpt::ranks {

// What files from a message point to.
struct Kept {
  std::deque<std::string> bytes;
  std::list<std::unique_ptr<reshard::Made>> made;
};

void put_files(Packer& out, const std::vector<File>& files);
std::vector<File> take_files(Unpacker& in, Kept& kept);

}  // namespace ckpt::ranks
