// SPDX-License-Identifier: Apache-2.0
// Compares files with the checksums that lie beside them (containers/sums).
#pragma once

#include <set>
#include <string>
#include <vector>

#include "api/engine.h"
#include "ckpt/catalog.h"
#include "ckpt/check.h"
#include "containers/sums/sums.h"

namespace ckpt::library {

// A file, or all files in and below a directory, without hidden folders.
std::vector<std::string> files_at(const std::string& path);

// The files of what was opened; with `tensors`, those alone that tensors are
// read from.
std::vector<std::string> files_of(const Catalog& catalog, bool tensors);

// Reads each file whole. What differs is damage, named with file and algorithm;
// a remark says whose checksums were compared. Returns the files of which all
// bytes have the content that was promised.
std::set<std::string> check_sums(const std::vector<sums::Sum>& sums,
                                 const Engine& engine, Report& report);

// Of the files that tensors are read from, those that SHA256SUMS or the like
// contradicts; with `all`, that anything beside them does. (The hub cache's
// names are not compared unasked: that would read each file twice.)
std::vector<Problem> wrong_sums(const Catalog& source, const Engine& engine,
                                bool all);

// A list of checksums, or a manifest of ckpt's, from elsewhere. Each file that
// a list names must be there.
struct Against {
  std::vector<sums::Sum> sums;
  bool manifest = false;  // it is a manifest
};
Against read_against(const std::string& path, const std::string& root);

// Counts tensors with a piece in a record without a checksum. Those are read,
// which at least finds unreadable sectors and chunks that can't be inflated.
// `proven`: files whose whole content has the checksum that lies beside them.
uint64_t without_checksum(const Catalog& catalog,
                          const std::set<std::string>& proven = {});

}  // namespace ckpt::library
