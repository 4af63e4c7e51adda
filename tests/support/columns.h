// SPDX-License-Identifier: Apache-2.0
// A matrix with its rows in one file and its columns in many: work in which all
// ranks of an exchange send to all.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "lib/io/file.h"
#include "reshard/plan/planner.h"
#include "reshard/ranks/exchange.h"
#include "reshard/ranks/job.h"
#include "reshard/ranks/run.h"
#include "tests/support/random_catalog.h"
#include "tests/support/temp_file.h"

namespace ckpt::test {

inline constexpr uint64_t kWork = 42;  // a fingerprint

// A matrix in one file of rows and in `files` files of columns: each rank has
// bytes for every file.
struct Columns {
  explicit Columns(uint64_t files, uint64_t rows = 2048, uint64_t width = 96) {
    Tensor tensor{.name = "t", .dtype = DType::u8};
    tensor.shape = Shape{rows, files * width};
    Tensor cut = tensor;
    tensor.pieces = {{.box = Box::whole(tensor.shape)}};
    for (uint64_t f = 0; f < files; ++f)
      cut.pieces.push_back(
          {.box = {.offset = {0, f * width}, .shape = {rows, width}}});
    source.tensors = {tensor};
    target.catalog.tensors = {cut};
    Random random(1);
    place_randomly(random, source, 1, false);
    place_randomly(random, target.catalog, 1, false);
    // Each piece in a file of its own.
    target.catalog.files.assign(files, target.catalog.files[0]);
    for (uint64_t f = 0; f < files; ++f) {
      Piece& piece = target.catalog.tensors[0].pieces[f];
      piece.extent.file = static_cast<uint32_t>(f);
      piece.extent.offset = 0;
      target.catalog.files[f].size = rows * width;
      target.files.push_back(
          {.path = "out" + std::to_string(f), .size = rows * width});
    }
    const auto bytes = files_of(source).at(0);
    source.files[0].path = dir.write(
        "in", {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
    plan = reshard::make_plan(source, target);
  }

  std::string make_root(const std::string& name) const {
    const std::string root = dir.file(name);
    std::filesystem::create_directories(root);
    io::Handle::create(io::join(root, "lock"));
    for (const TargetFile& file : target.files)
      io::Handle::create(io::join(root, file.path)).allocate(file.size);
    return root;
  }

  void write(const std::string& root, bool sync = false) const {
    reshard::RunOptions options;
    options.threads = 2;
    options.block = 64 << 10;
    options.device = device;
    reshard::Output output(target, root);
    ranks::run(plan, source, output, options,
               {.target = &target,
                .root = root,
                .journal = root + "/journal",
                .work = kWork,
                .sync = sync});
  }

  std::vector<std::string> read(const std::string& root) const {
    std::vector<std::string> files;
    for (const TargetFile& file : target.files)
      files.push_back(io::read_file(io::join(root, file.path), 1 << 30));
    return files;
  }

  Catalog source;
  Target target;
  reshard::Plan plan;
  TempDir dir;
  const reshard::CudaModule* device = nullptr;  // that ranks have one of
};

struct SendMode {
  explicit SendMode(uint64_t buffer = ranks::kLeastExchangeBuffer) {
    ranks::set_sharing({ranks::Mode::kSend, buffer});
  }
  ~SendMode() { ranks::set_sharing({}); }
};

}  // namespace ckpt::test
