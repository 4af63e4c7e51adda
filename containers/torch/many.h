// SPDX-License-Identifier: Apache-2.0
// Opens files of torch.save by the thousand, one for each rank: many at a time,
// and without a read for each record in them.
//
//   rank files ─► in_order: read, decode ─► one after the other ─► catalog
//                 (32 at a time, aside)     (in the order of ranks)
//
// Only the local header, just before the data, says where a record's data
// begin. For 16,384 files with 72 tensors each that is 1.2 million reads all
// over the disk. torch lays records out by a rule, so the directory at the
// file's end is enough to compute it (zip::Headers::kComputed). ckpt::locate
// then reads the headers and compares, before any payload is read.
//
// Most of the files are alike, so their pickles are decoded once (twins.h).
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "containers/torch/container.h"
#include "containers/torch/twins.h"
#include "lib/in_order.h"

namespace ckpt::torch {

// This many files or more are opened that way; fewer are checked at once.
inline constexpr size_t kManyFiles = 256;

// A file opened aside, with a catalog of its own that has one File or more.
struct Opened {
  Catalog aside;
  Container container;
};
Opened open_aside(const std::string& path, const Limits& limits);
// The same for one of many zip files; nothing if it is not one. Local headers
// are computed, not read.
std::optional<Opened> open_computed(const io::Handle& file,
                                    const Limits& limits);
// Opens a file for reading a few small, scattered records.
io::Handle open_scattered(const std::string& path);

// Makes something of files, once for all that are twins. Safe to use on many
// threads.
template <class Made>
class ManyFiles {
 public:
  ManyFiles(size_t count, Limits limits)
      : limits_(limits), many_(count >= kManyFiles) {}

  struct One {
    Catalog aside;
    std::shared_ptr<const Made> made;
  };
  // `make(container)` may throw input_errors about the container's path. Its
  // result is shared with files of other paths.
  template <class Make>
  One open(const std::string& path, Make make) {
    const auto done = [&](Opened opened) -> One {
      auto made = std::make_shared<const Made>(make(opened.container));
      return {std::move(opened.aside), std::move(made)};
    };
    if (!many_) return done(open_aside(path, limits_));
    const io::Handle file = open_scattered(path);
    if (auto twin = twins_.find(file))
      return {std::move(twin->aside),
              std::static_pointer_cast<const Made>(twin->made)};
    auto opened = open_computed(file, limits_);
    if (!opened) return done(open_aside(path, limits_));
    One one = done(std::move(*opened));
    twins_.add(file, one.aside, one.made);
    return one;
  }

 private:
  const Limits limits_;
  const bool many_;
  Twins twins_;
};

// Adds what was found aside to the catalog. Returns the first of the files' new
// numbers.
uint32_t take_aside(Catalog& aside, Catalog& catalog);

// Opens files many at a time and hands them over in order. Storages number the
// files of `catalog`.
void open_each(const std::vector<std::string>& paths, Catalog& catalog,
               const Limits& limits,
               const std::function<void(size_t, Container)>& take);

// Makes catalog.locate read the local headers of all files that hold pieces.
void check_headers_later(Catalog& catalog);

}  // namespace ckpt::torch
