// SPDX-License-Identifier: Apache-2.0
// A dry run opens one item in each file of a dcp checkpoint. What it then
// assumes must match what a run finds, as far as a plan's sums go.
#include <doctest/doctest.h>

#include <filesystem>
#include <fstream>

#include "ckpt/error.h"
#include "containers/assume.h"
#include "formats/dcp/dcp.h"
#include "formats/dcp/metadata.h"
#include "lib/io/file.h"
#include "tests/support/golden.h"
#include "tests/support/temp_file.h"

namespace ckpt {
namespace {

namespace fs = std::filesystem;

Catalog open_dcp(const std::string& path) {
  return dcp::make_reader()->read_catalog(path, {});
}

// Each piece is where `found` has it, or in the item that begins before it.
void check_same(const Catalog& assumed, const Catalog& found,
                const Catalog& indexed) {
  REQUIRE(assumed.tensors.size() == found.tensors.size());
  for (size_t t = 0; t < found.tensors.size(); ++t) {
    const auto& pieces = found.tensors[t].pieces;
    REQUIRE(assumed.tensors[t].pieces.size() == pieces.size());
    for (size_t p = 0; p < pieces.size(); ++p) {
      const Extent& is = pieces[p].extent;
      const Extent& may_be = assumed.tensors[t].pieces[p].extent;
      const Extent& item = indexed.tensors[t].pieces[p].extent;
      CHECK(may_be.archive == 0);
      CHECK(may_be.file == is.file);
      CHECK((may_be.strides.empty() || may_be.strides == is.strides));
      CHECK((may_be.offset == is.offset || may_be.offset == item.offset));
      CHECK(inside(pieces[p].box, found.tensors[t].shape));
    }
  }
}

TEST_CASE("dcp: a dry run assumes what a run finds") {
  uint64_t assumed = 0;
  for (const auto& entry : fs::directory_iterator(test::data("dcp"))) {
    const std::string path = entry.path().string() + "/ckpt";
    CAPTURE(path);
    if (!dcp::make_reader()->supports(path).yes) continue;
    const Catalog indexed = open_dcp(path);
    Catalog found = indexed, sampled = indexed;
    if (indexed.archive_opener != dcp::item_opener()) continue;
    locate(found);
    const uint64_t skipped = dcp::sample_items(sampled, 1);
    check_same(sampled, found, indexed);
    // Items that were not opened have no checksum yet.
    CHECK(found.crcs.size() - sampled.crcs.size() <= skipped);
    assumed += skipped;
  }
  CHECK(assumed > 0);
}

TEST_CASE("dcp: compressed items are all opened, and so are few") {
  Catalog packed = open_dcp(test::data("dcp/zstd_w2/ckpt"));
  CHECK(dcp::sample_items(packed, 1) == 0);
  Catalog few = open_dcp(test::data("dcp/fsdp2_w8/ckpt"));
  CHECK(formats::assume_places(few) == 0);
  for (const Tensor& tensor : few.tensors)
    for (const Piece& piece : tensor.pieces) CHECK(piece.extent.archive == 0);
  CHECK(few.crcs.size() > 0);
}

TEST_CASE("dcp: a dry run sees that a file is not what the index says") {
  const test::TempDir temp;
  const std::string path = temp.path + "/ckpt";
  fs::copy(test::data("dcp/fsdp2_w8/ckpt"), path);
  for (const auto& entry : fs::directory_iterator(path)) {
    if (entry.path().extension() != ".distcp") continue;
    const auto size = fs::file_size(entry.path());
    std::ofstream(entry.path()) << std::string(size, 'x');
  }
  Catalog catalog = open_dcp(path);
  CHECK_THROWS_WITH_AS(dcp::sample_items(catalog, 1),
                       doctest::Contains("the item at byte"), Error);
}

}  // namespace
}  // namespace ckpt
