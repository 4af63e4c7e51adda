// SPDX-License-Identifier: Apache-2.0
// .metadata files made by hand: indexes that torch would not write like this,
// or that are hostile.
#include <doctest/doctest.h>

#include <algorithm>
#include <random>

#include "ckpt/error.h"
#include "formats/dcp/dcp.h"
#include "formats/dcp/metadata.h"
#include "lib/pickle/encode.h"
#include "tests/support/temp_file.h"

namespace ckpt {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::Type;
using test::TempDir;

constexpr const char* kModule = "torch.distributed.checkpoint.metadata";

// Builds the object graph of docs/formats/dcp.md, section 3.
class Index {
 public:
  Index() {
    entries_ = document_.add_container(Type::kDict);
    storage_ = document_.add_container(Type::kDict);
    planner_ = document_.add_none();
  }

  // torch.Size((2, 3))
  Id size(const Dims& dims) {
    std::vector<Id> items;
    for (const uint64_t value : dims)
      items.push_back(document_.add_int(static_cast<int64_t>(value)));
    const Id tuple = document_.add_container(Type::kTuple, items);
    return document_.add_call(document_.add_global("torch", "Size"),
                              document_.add_container(Type::kTuple, {tuple}));
  }
  // An instance of a dataclass.
  Id make(const char* module, const char* name,
          const std::vector<std::pair<const char*, Id>>& fields) {
    const Id state = document_.add_container(Type::kDict);
    for (const auto& [key, value] : fields)
      document_.set(state, std::string_view(key), value);
    pickle::Call call;
    call.how = pickle::How::kNewObj;
    call.callable = document_.add_global(module, name);
    call.args = document_.add_container(Type::kTuple);
    call.state = state;
    return document_.add_call(call);
  }
  Id chunk(const Box& box) {
    return make(kModule, "ChunkStorageMetadata",
                {{"offsets", size(box.offset)}, {"sizes", size(box.shape)}});
  }
  void add_tensor(const std::string& name, const Dims& shape,
                  const std::vector<Id>& chunks) {
    pickle::Call properties;
    properties.how = pickle::How::kNewObj;
    properties.callable = document_.add_global(kModule, "TensorProperties");
    properties.args = document_.add_container(Type::kTuple);
    properties.state = document_.add_container(
        Type::kTuple, {document_.add_global("torch", "float32")});
    document_.set(
        entries_, name,
        make(kModule, "TensorStorageMetadata",
             {{"properties", document_.add_call(properties)},
              {"size", size(shape)},
              {"chunks", document_.add_container(Type::kList, chunks)}}));
  }
  void add_item(const std::string& name, const Dims& offset, int64_t hint,
                const std::string& file, int64_t at, int64_t length) {
    const Id key = make(kModule, "MetadataIndex",
                        {{"fqn", document_.add_string(name)},
                         {"offset", size(offset)},
                         {"index", document_.add_int(hint)}});
    document_.set(
        storage_, key,
        make("torch.distributed.checkpoint.filesystem", "_StorageInfo",
             {{"relative_path", document_.add_string(file)},
              {"offset", document_.add_int(at)},
              {"length", document_.add_int(length)}}));
  }
  void set_planner(Id planner) { planner_ = planner; }
  Document& document() { return document_; }

  std::string encode() {
    return pickle::encode(document_, make(kModule, "Metadata",
                                          {{"state_dict_metadata", entries_},
                                           {"planner_data", planner_},
                                           {"storage_data", storage_}}));
  }

 private:
  Document document_;
  Id entries_ = pickle::kNoId;
  Id storage_ = pickle::kNoId;
  Id planner_ = pickle::kNoId;
};

// A directory with this index and one data file of `bytes` zeros.
std::string write(const TempDir& dir, Index& index, uint64_t bytes = 1 << 20) {
  dir.write("__0_0.distcp", std::string(bytes, '\0'));
  dir.write(".metadata", index.encode());
  return dir.file(".metadata");
}

std::string message(const std::string& path) {
  try {
    check_cover(dcp::read_metadata(path, {}));
  } catch (const Error& error) {
    return error.what();
  }
  return {};
}

// Each chunk finds its item whatever the order and the hints. Here an item's
// offset in the file is the number of its chunk.
TEST_CASE("dcp index: items are found by name and offsets") {
  std::mt19937_64 random(7);
  for (int round = 0; round < 60; ++round) {
    Index index;
    struct Item {
      std::string name;
      Dims offset;
      int64_t number;
    };
    std::vector<Item> items;
    const size_t tensors = 1 + random() % 4;
    for (size_t t = 0; t < tensors; ++t) {
      const std::string name = "layers." + std::to_string(t) + ".weight";
      const Dims steps{1 + random() % 5, 1 + random() % 4};
      const Dims shape{steps[0] * 3, steps[1] * 2};
      std::vector<Box> boxes;
      for (uint64_t r = 0; r < shape[0]; r += 3)
        for (uint64_t c = 0; c < shape[1]; c += 2)
          boxes.push_back({{r, c}, {3, 2}});
      // Ranks without rows have an empty chunk.
      if (random() % 2) boxes.push_back({{shape[0], 0}, {0, shape[1]}});
      std::ranges::shuffle(boxes, random);
      std::vector<Id> chunks;
      for (const Box& box : boxes) {
        chunks.push_back(index.chunk(box));
        items.push_back({name, box.offset, static_cast<int64_t>(items.size())});
      }
      index.add_tensor(name, shape, chunks);
    }
    std::ranges::shuffle(items, random);
    for (const Item& item : items)
      index.add_item(item.name, item.offset,
                     static_cast<int64_t>(random() % 40) - 5, "__0_0.distcp",
                     item.number, 100);
    const TempDir dir;
    const dcp::Metadata metadata = dcp::read_metadata(write(dir, index), {});
    check_cover(metadata);
    uint64_t chunks = 0;
    for (const dcp::TensorEntry& tensor : metadata.tensors)
      for (const dcp::Chunk& chunk : tensor.chunks) {
        ++chunks;
        const auto item = std::ranges::find_if(items, [&](const Item& i) {
          return i.name == tensor.name && i.offset == chunk.box.offset;
        });
        REQUIRE(item != items.end());
        CHECK(chunk.stored.offset == static_cast<uint64_t>(item->number));
        CHECK(volume(chunk.box) == 6);
      }
    CHECK(chunks <= items.size());
    CHECK(chunks + tensors >= items.size());
  }
}

TEST_CASE("dcp index: made to hurt") {
  const TempDir dir;
  SUBCASE("one chunk a million times") {
    Index index;
    const Dims ones(64, 1);
    const Id chunk = index.chunk({Dims(64, 0), ones});
    index.add_tensor("x", ones, std::vector<Id>(1'000'000, chunk));
    CHECK(message(write(dir, index)).find("far more than the pickle") !=
          std::string::npos);
  }
  SUBCASE("two items for one chunk") {
    Index index;
    index.add_tensor("x", {4}, {index.chunk({{0}, {4}})});
    index.add_item("x", {0}, 0, "__0_0.distcp", 0, 10);
    index.add_item("x", {0}, 0, "__0_0.distcp", 20, 10);
    CHECK(message(write(dir, index)).find("two items for it at offsets [0]") !=
          std::string::npos);
  }
  SUBCASE("sizes that overflow") {
    Index index;
    const uint64_t large = uint64_t{1} << 40;
    index.add_tensor("x", {large, large}, {});
    CHECK(message(write(dir, index)).find("overflows") != std::string::npos);
  }
  SUBCASE("an offset that wraps") {
    Index index;
    index.add_tensor("x", {4}, {index.chunk({{INT64_MAX}, {4}})});
    CHECK(message(write(dir, index)).find("is not inside") !=
          std::string::npos);
  }
  SUBCASE("a gap beside an overlap") {
    Index index;
    index.add_tensor("x", {6},
                     {index.chunk({{0}, {2}}), index.chunk({{1}, {2}})});
    index.add_item("x", {0}, 0, "__0_0.distcp", 0, 10);
    index.add_item("x", {1}, 1, "__0_0.distcp", 10, 10);
    CHECK(message(write(dir, index)).find("hold 4 of 6 elements") !=
          std::string::npos);
  }
  SUBCASE("names of other directories") {
    for (const char* name : {"a/../../b", "/etc/passwd", "a//b", "./a", "",
                             "a/.metadata", "..", "a/.."}) {
      CAPTURE(name);
      Index index;
      index.add_tensor("x", {4}, {index.chunk({{0}, {4}})});
      index.add_item("x", {0}, 0, name, 0, 10);
      CHECK(message(write(dir, index)).find("relative_path") !=
            std::string::npos);
    }
  }
  SUBCASE("fields of other types") {
    Index index;
    index.document().set_root(0);
    const Id entry = index.make(kModule, "TensorStorageMetadata", {});
    Document& document = index.document();
    const Id entries =
        document.add_container(Type::kDict, {document.add_string("x"), entry});
    const Id root = index.make(kModule, "Metadata",
                               {{"state_dict_metadata", entries},
                                {"storage_data", document.add_none()}});
    dir.write(".metadata", pickle::encode(document, root));
    CHECK(message(dir.file(".metadata")).find("properties is nothing") !=
          std::string::npos);
  }
}

// Paths that would fill memory or contradict each other: the nesting is
// dropped, with a note.
TEST_CASE("dcp index: paths that can't be") {
  using Path = std::vector<dcp::PathElement>;
  struct Row {
    Path first;
    Path second;
    const char* why;  // nullptr: accepted
  };
  const Row rows[] = {
      {{"a", "b"}, {"a", "c"}, nullptr},
      {{"a", int64_t{1}}, {"a", int64_t{0}}, nullptr},
      {{"a"}, {"a", "b"}, "what holds it is another entry"},
      {{"a", "b"}, {"a"}, "another entry has this path"},
      {{"a"}, {"a"}, "another entry has this path"},
      {{"a", "0"}, {"a", int64_t{0}}, "both a dict and a list"},
      {{"a"}, {"b", int64_t{1} << 40}, "index 1099511627776 of a list"},
      {{"a"}, {"b", int64_t{-1}}, "index -1 of a list"},
      {{int64_t{0}}, {"b"}, "both a dict and a list"},
  };
  for (size_t i = 0; i < std::size(rows); ++i) {
    CAPTURE(i);
    Index index;
    Document& document = index.document();
    const Id planner = document.add_container(Type::kDict);
    const auto add = [&](const char* name, const Path& path) {
      index.add_tensor(name, {4}, {index.chunk({{0}, {4}})});
      index.add_item(name, {0}, 0, "__0_0.distcp", 0, 10);
      std::vector<Id> items;
      for (const dcp::PathElement& element : path)
        items.push_back(
            std::holds_alternative<std::string>(element)
                ? document.add_string(std::get<std::string>(element))
                : document.add_int(std::get<int64_t>(element)));
      document.set(planner, name, document.add_container(Type::kTuple, items));
    };
    add("first", rows[i].first);
    add("second", rows[i].second);
    index.set_planner(planner);
    const TempDir dir;
    write(dir, index);
    const Catalog catalog = dcp::make_reader()->read_catalog(dir.path, {});
    CHECK(catalog.skeleton.has_value() == (rows[i].why == nullptr));
    if (rows[i].why == nullptr) continue;
    REQUIRE(catalog.problems.size() == 1);
    CHECK(catalog.problems[0].kind == "planner_conflict");
    CHECK(catalog.problems[0].message.find(rows[i].why) != std::string::npos);
  }
}

}  // namespace
}  // namespace ckpt
