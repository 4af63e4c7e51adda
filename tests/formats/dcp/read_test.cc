// SPDX-License-Identifier: Apache-2.0
// The dcp reader: torch's own checkpoints, malformed ones, and the small
// archives inside .distcp files.
#include <doctest/doctest.h>

#include <filesystem>
#include <map>
#include <set>

#include "ckpt/error.h"
#include "containers/torch/item.h"
#include "containers/torch/item_ends.h"
#include "formats/dcp/dcp.h"
#include "formats/safetensors/safetensors.h"
#include "lib/pickle/json.h"
#include "tests/support/golden.h"
#include "tests/support/materialise.h"
#include "tests/support/temp_file.h"

namespace ckpt {
namespace {

namespace fs = std::filesystem;
using test::data;
using test::TempDir;

Catalog open_dcp(const std::string& path) {
  return dcp::make_reader()->read_catalog(path, {});
}

// Opens everything that a conversion would ask for.
Catalog open_whole(const std::string& path) {
  Catalog catalog = open_dcp(path);
  locate(catalog);
  load_objects(catalog);
  return catalog;
}

std::string message(const std::string& path) {
  try {
    open_whole(path);
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

bool has_problem(const Catalog& catalog, std::string_view kind) {
  for (const Problem& problem : catalog.problems)
    if (problem.kind == kind) return true;
  return false;
}

std::vector<std::string> cases() {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(data("dcp"))) {
    const std::string path = entry.path().string();
    if (dcp::make_reader()->supports(path + "/ckpt").yes) names.push_back(path);
  }
  std::ranges::sort(names);
  return names;
}

// --- torch's own ---

void check_tensors(const std::string& file, Catalog& catalog, bool optim) {
  if (!fs::exists(file)) return;
  const Catalog expected = safetensors::make_reader()->read_catalog(file, {});
  for (const Tensor& wanted : expected.tensors) {
    CAPTURE(wanted.name);
    const Tensor* found = catalog.find(wanted.name);
    REQUIRE(found != nullptr);
    CHECK(found->dtype == wanted.dtype);
    CHECK(found->shape == wanted.shape);
    CHECK((found->kind == Kind::optim) == optim);
    CHECK(test::content(catalog, *found) == test::content(expected, wanted));
    if (!optim || found->state.empty()) continue;
    const Tensor* param = catalog.find(found->param);
    REQUIRE(param != nullptr);
    CHECK(param->kind == Kind::model);
    CHECK(found->name.ends_with("." + found->state));
  }
}

void check_objects(const std::string& file, const Catalog& catalog) {
  if (!fs::exists(file)) return;
  const auto wanted = nlohmann::ordered_json::parse(test::read_all(file));
  nlohmann::ordered_json found = nlohmann::ordered_json::object();
  for (const Object& object : catalog.objects)
    found[object.name] = pickle::to_json(*object.document, object.node);
  CHECK(found.dump() == wanted.dump());  // also in this order
}

TEST_CASE("dcp: what torch wrote") {
  CHECK(cases().size() == 24);
  for (const std::string& path : cases()) {
    CAPTURE(path);
    Catalog catalog = open_whole(path + "/ckpt");
    CHECK(catalog.format == "dcp");
    const auto facts = test::read_json(path + "/case.json")["topology"];
    if (facts.contains("ranks"))
      CHECK(catalog.topology.dp == facts["ranks"].get<uint32_t>());
    for (const Tensor& tensor : catalog.tensors)
      for (const Piece& piece : tensor.pieces) CHECK(piece.extent.archive == 0);
    // Flat parameters are not the tensors that were flattened.
    if (path.ends_with("fsdp1_w4_local")) {
      CHECK(has_problem(catalog, "flat_parameter"));
      continue;
    }
    check_tensors(path + "/expected.safetensors", catalog, false);
    check_tensors(path + "/expected_optim.safetensors", catalog, true);
    check_objects(path + "/expected_objects.json", catalog);
  }
}

// Where each tensor and object is in the nested state dict.
TEST_CASE("dcp: the nesting of planner_data") {
  const Catalog catalog = open_whole(data("dcp/plain_w1/ckpt"));
  REQUIRE(catalog.skeleton);
  const pickle::Document& document = *catalog.skeleton->document;
  const pickle::Id root = catalog.skeleton->root;
  std::map<std::string, pickle::Id> tensors;
  for (const auto& [node, name] : catalog.skeleton->tensors)
    tensors[name] = node;
  CHECK(tensors.size() == catalog.tensors.size());

  const pickle::Id list = document.find(root, "lst");
  REQUIRE(document.is(list, pickle::Type::kList));
  const auto items = document.items(list);
  REQUIRE(items.size() == 3);
  CHECK(items[0] == tensors.at("lst.0"));
  CHECK(document.items(items[1])[0] == tensors.at("lst.1.0"));
  CHECK(document.text(document.items(items[1])[1]) == "s");
  CHECK(document.find(items[2], "k") == tensors.at("lst.2.k"));
  CHECK(document.find(root, "key.with.dots") == tensors.at("key.with.dots"));
  const pickle::Id keys = document.find(root, "int_keys");
  CHECK(document.find(keys, "0") == tensors.at("int_keys.0"));
  CHECK(document.text(document.find(keys, "1")) == "one");
  for (const Object& object : catalog.objects)
    CHECK(object.document == catalog.skeleton->document);
}

// --- archives inside of files ---

struct Item {
  std::string file;
  uint64_t offset = 0;
  uint64_t length = 0;
  DType dtype = DType::f32;
  Shape shape;
};

std::vector<Item> all_items() {
  std::vector<Item> items;
  for (const std::string& path : cases()) {
    const Catalog catalog = open_dcp(path + "/ckpt");
    for (const Tensor& tensor : catalog.tensors)
      for (const Piece& piece : tensor.pieces) {
        const File& file = catalog.files[piece.extent.file];
        if (piece.extent.archive > 0 && file.codec == Codec::kRaw)
          items.push_back({file.path, piece.extent.offset, piece.extent.archive,
                           tensor.dtype, piece.box.shape});
      }
  }
  return items;
}

struct Found {
  std::string error;
  torch::LocatedTensor tensor;
  std::vector<StoredCrc> crcs;
};

Found from_ends(const std::string& bytes, const Item& item) {
  Found found;
  const auto handle = io::Handle::of_memory(bytes, "item");
  torch::TensorLocator locator(handle, 0);
  const auto located = locator.locate_ends(bytes, bytes, bytes.size(),
                                           item.dtype, item.shape, &found.crcs);
  if (located)
    found.tensor = *located;
  else
    found.error = "not told by its ends";
  return found;
}

Found as_a_whole(const std::string& bytes, const Item& item) {
  Found found;
  try {
    const auto handle = io::Handle::of_memory(bytes, "item");
    const torch::Container container =
        torch::open_item(handle, 0, 0, &found.crcs);
    const auto ref = torch::as_tensor(
        *container.document, container.document->root(), container.storages);
    if (!ref || ref->dtype != item.dtype || ref->shape != item.shape)
      found.error = "another value";
    else
      found.tensor = {ref->extent, ref->transform};
  } catch (const Error& error) {
    found.error = error.what();
  }
  return found;
}

void check_same(const Found& a, const Found& b) {
  CHECK(a.tensor.extent.offset == b.tensor.extent.offset);
  CHECK(a.tensor.extent.strides == b.tensor.extent.strides);
  CHECK(a.tensor.transform == b.tensor.transform);
  REQUIRE(a.crcs.size() == b.crcs.size());
  for (size_t i = 0; i < a.crcs.size(); ++i) {
    CHECK(a.crcs[i].begin == b.crcs[i].begin);
    CHECK(a.crcs[i].end == b.crcs[i].end);
    CHECK(a.crcs[i].crc32 == b.crcs[i].crc32);
    CHECK(a.crcs[i].record == b.crcs[i].record);
  }
}

TEST_CASE("dcp items: both ends tell what the whole archive tells") {
  const std::vector<Item> items = all_items();
  CHECK(items.size() > 500);
  uint64_t random = 1;
  for (const Item& item : items) {
    CAPTURE(item.file);
    CAPTURE(item.offset);
    const std::string bytes =
        io::Handle::open_read(item.file).read_string(item.offset, item.length);
    const Found whole = as_a_whole(bytes, item);
    const Found ends = from_ends(bytes, item);
    CHECK(whole.error == "");
    REQUIRE(ends.error == "");
    check_same(ends, whole);
    // If a damaged item's ends are accepted, the whole must be too, and read
    // the same: the short way is never the more tolerant one.
    for (int i = 0; i < 40; ++i) {
      std::string damaged = bytes;
      for (int k = 0; k <= i % 2; ++k) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        damaged[(random >> 33) % damaged.size()] ^=
            static_cast<char>(1 << (random >> 20) % 8);
      }
      const Found short_way = from_ends(damaged, item);
      if (!short_way.error.empty()) continue;
      const Found long_way = as_a_whole(damaged, item);
      REQUIRE(long_way.error == "");
      check_same(short_way, long_way);
    }
  }
}

TEST_CASE("dcp items: an item is one tensor of the index's kind") {
  const std::string path = data("bad/dcp/_control_good/__0_0.distcp");
  const auto file = io::Handle::open_read(path);
  torch::TensorLocator locator(file, 3);
  const auto found = locator.locate(0, 1577, DType::f32, {3, 4}, "model.w");
  CHECK(found.extent.file == 3);
  CHECK(found.extent.strides.empty());
  CHECK_THROWS_WITH_AS(
      locator.locate(0, 1577, DType::f32, {4, 3}, "model.w"),
      doctest::Contains("model.w: the item at byte 0 is a tensor f32 [3, 4], "
                        "its index says f32 [4, 3]"),
      Error);
  CHECK_THROWS_WITH_AS(
      locator.locate(0, 1 << 20, DType::f32, {3, 4}, "model.w"),
      doctest::Contains("an item of 1048576 bytes at byte 0 of a file of"),
      Error);
}

// --- malformed ones ---

TEST_CASE("dcp: refuses, and says why") {
  struct Row {
    const char* name;
    const char* why;  // "": it is read
  };
  const Row rows[] = {
      {"_control_good", ""},
      {"no_metadata", "incomplete save"},
      {"metadata_tmp_only", "incomplete save"},
      {"metadata_empty", "is empty: incomplete save"},
      {"metadata_truncated", "pickle at byte 2: a frame of"},
      {"metadata_not_metadata", "holds a dict, not the Metadata of a"},
      {"missing_distcp", "files listed in the index are missing: __1_0.distcp"},
      {"truncated_distcp", "1577 bytes at byte 0 of a file of 1377"},
      {"empty_distcp", "1577 bytes at byte 0 of a file of 0"},
      {"relative_path_parent", "leads out of the directory"},
      {"relative_path_absolute", "'/etc/hostname' is absolute"},
      {"relative_path_metadata", "is an index, no data file"},
      {"relative_path_dir", "'.' is not a file name"},
      {"offset_past_eof", "at byte 1099511627776 of a file of 1577"},
      {"offset_negative", "model.w: item offset -5 is negative"},
      {"length_negative", "model.w: item length -1 is negative"},
      {"length_huge", "an item of 4611686018427387904 bytes"},
      {"length_short", "model.w: the item at byte 0: the zip archive has no"},
      {"wrong_piece", "is a tensor f32 [4], its index says f32 [3, 4]"},
      {"gap", "model.w: its 1 chunks hold 12 of 24 elements"},
      {"overlap", "hold more than its 24 elements: they overlap"},
      {"chunk_out_of_bounds", "[3, 4] at offsets [4, 0] is not inside"},
      {"chunk_negative_offset", "model.w: chunk offset -1 is negative"},
      {"chunk_rank_mismatch", "[3] at offsets [3] is not inside"},
      {"chunk_without_storage", "no item for the chunk at offsets [3, 0]"},
      {"bytes_without_storage", "step: storage_data has no item"},
      {"storage_without_metadata", ""},
      {"dtype_mismatch", "a tensor f32 [3, 4], its index says f64 [3, 4]"},
      {"size_huge_no_chunks", "hold 0 of 1125899906842624 elements"},
      {"unknown_transform", "not known: stream.rot13/1"},
      {"unknown_transform_version", "not known: stream.zstd/2"},
      {"transform_claimed_but_plain", "bad zstd stream"},
      {"zstd_bomb", "inflates to more than the 65584 bytes"},
      {"evil_metadata_reduce", "holds an object posix system"},
      {"evil_metadata_planner_data", ""},
      {"evil_bytes_entry", ""},
      {"evil_chunk", "it is not a tensor (but: object posix system)"},
      {"piece_is_not_tensor", "it is not a tensor (but: dict)"},
      {"index_hint_wrong", ""},
      {"storage_data_none", "storage_data is None"},
      {"fqn_traversal", ""},
      {"duplicate_chunks", "the chunk at offsets [0] is listed twice"},
      {"planner_data_conflict", ""},
      {"version_unknown", ""},
      {"unknown_metadata_class", "x: its entry is an object collections "},
  };
  std::set<std::string> seen{"dcp/outside_secret/"};
  for (const Row& row : rows) {
    CAPTURE(row.name);
    const std::string path = data("bad/dcp/" + std::string(row.name));
    seen.insert("dcp/" + std::string(row.name) + "/");
    if (*row.why == '\0')
      CHECK(message(path) == "");
    else
      CHECK(message(path).find(row.why) != std::string::npos);
    if (*row.why == '\0') continue;
    CHECK(message(path).find(path) != std::string::npos);
  }
  for (const test::Bad& row : test::bad_rows("dcp/"))
    CHECK_MESSAGE(seen.contains(row.file), row.file);
}

TEST_CASE("dcp: what is odd is told") {
  struct Row {
    const char* name;
    const char* kind;
  };
  const Row rows[] = {
      {"storage_without_metadata", "unknown_item"},
      {"evil_metadata_planner_data", "planner_data"},
      {"planner_data_conflict", "planner_conflict"},
      {"version_unknown", "version"},
  };
  for (const Row& row : rows) {
    CAPTURE(row.name);
    const Catalog catalog = open_whole(data("bad/dcp/") + row.name);
    CHECK(has_problem(catalog, row.kind));
    CHECK(catalog.find("model.w") != nullptr);
  }
  CHECK_FALSE(open_dcp(data("bad/dcp/planner_data_conflict")).skeleton);
  const Catalog evil = open_whole(data("bad/dcp/evil_bytes_entry"));
  CHECK(std::ranges::find(evil.globals, "posix system") != evil.globals.end());
}

TEST_CASE("dcp: --restrict") {
  const formats::ReadOptions restricted{.restrict_globals = true};
  const auto reader = dcp::make_reader();
  const auto open = [&](const char* name) {
    Catalog catalog = reader->read_catalog(data("bad/dcp/") + name, restricted);
    load_objects(catalog);
  };
  open("_control_good");
  CHECK_THROWS_WITH_AS(open("evil_bytes_entry"),
                       doctest::Contains("posix system"), Error);
  CHECK_THROWS_WITH_AS(open("evil_metadata_planner_data"),
                       doctest::Contains("posix system"), Error);
}

// --- directories ---

void copy(const std::string& from, const std::string& to) {
  fs::create_directories(fs::path(to).parent_path());
  fs::copy(from, to, fs::copy_options::recursive);
}

TEST_CASE("dcp: a training run is followed to the newest whole step") {
  const TempDir dir;
  const std::string good = data("bad/dcp/_control_good");
  for (const char* name : {"step-9", "step-100", "notes-500", "step-x"})
    copy(good, dir.file(name));
  copy(data("bad/dcp/no_metadata"), dir.file("step-200"));
  copy(data("bad/dcp/no_metadata"), dir.file("step-50"));
  REQUIRE(dcp::make_reader()->supports(dir.path).yes);
  const Catalog catalog = open_dcp(dir.path);
  CHECK(catalog.path == dir.file("step-100"));
  CHECK(catalog.root == dir.path);
  CHECK(catalog.assumptions[0].starts_with("step-100: the newest complete"));
  REQUIRE(catalog.problems.size() == 1);
  CHECK(catalog.problems[0].message ==
        "step-200 is newer, but an incomplete save; step-100 is read");

  copy(good, dir.file("epoch_3"));
  CHECK(message(dir.path).find("count steps and others") != std::string::npos);
}

TEST_CASE("dcp: files that don't belong together") {
  const TempDir dir;
  copy(data("bad/dcp/_control_good"), dir.file("a"));
  dir.write("a/__7_0.distcp", "of an earlier, larger run");
  dir.write("a/__8_0.distcp", "");
  dir.write("a/.metadata.tmp", "half");
  const Catalog catalog = open_dcp(dir.file("a"));
  CHECK(has_problem(catalog, "unfinished_save"));
  REQUIRE(has_problem(catalog, "unnamed_file"));
  for (const Problem& problem : catalog.problems)
    if (problem.kind == "unnamed_file")
      CHECK(problem.message.find("__7_0.distcp:") != std::string::npos);
  // A part's path opens the whole.
  CHECK(open_dcp(dir.file("a/__0_0.distcp")).path == dir.file("a"));
  CHECK(open_dcp(dir.file("a/.metadata")).path == dir.file("a"));
}

TEST_CASE("dcp: an index for each rank") {
  const TempDir dir;
  const std::string good = data("dcp/nocollectives_w2/ckpt");
  copy(good, dir.file("a"));
  fs::remove(dir.file("a/__1.metadata"));
  CHECK(message(dir.file("a")).find("elements: the others are nowhere") !=
        std::string::npos);
  copy(good, dir.file("b"));
  fs::rename(dir.file("b/__1.metadata"), dir.file("b/__2.metadata"));
  CHECK(has_problem(open_dcp(dir.file("b")), "missing_rank"));
  copy(good, dir.file("c"));
  fs::rename(dir.file("c/__1.metadata"), dir.file("c/__1.metadata.tmp"));
  CHECK(message(dir.file("c")).find("incomplete save of that rank") !=
        std::string::npos);
}

TEST_CASE("dcp: parts in safetensors files") {
  const TempDir dir;
  const std::string good = data("dcp/hf_sharded_2files_w4/ckpt");
  copy(good, dir.file("a/sharded"));
  CHECK(open_dcp(dir.file("a")).path == dir.file("a/sharded"));
  fs::remove(
      dir.file("a/sharded/shard-00002-model-00001-of-00002.safetensors"));
  CHECK(message(dir.file("a")).find("parts hold only") != std::string::npos);
  // Whole files beside them belong to another reader.
  copy(good, dir.file("b"));
  dir.write("b/model.safetensors.index.json", "{}");
  CHECK_FALSE(dcp::make_reader()->supports(dir.file("b")).yes);
}

}  // namespace
}  // namespace ckpt
