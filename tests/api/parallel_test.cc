// SPDX-License-Identifier: Apache-2.0
// Ranks are threads here; tests/app/formats/parallel_test.py has processes.
#include "ckpt/parallel.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <functional>
#include <numeric>
#include <thread>

#include "ckpt/error.h"
#include "ckpt/mcore.h"
#include "tests/support/temp_file.h"

namespace ckpt {
namespace {

namespace fs = std::filesystem;

// Runs `work(rank)` on threads. Returns what each of them threw.
std::vector<std::string> in_ranks(
    uint32_t count,
    const std::function<void(std::shared_ptr<Communicator>)>& work) {
  std::vector<std::string> thrown(count);
  std::vector<std::jthread> threads;
  for (const auto& rank : make_thread_ranks(count))
    threads.emplace_back([&, rank] {
      try {
        work(rank);
      } catch (const Error& error) {
        thrown[rank->rank()] = error.what();
      }
    });
  threads.clear();
  return thrown;
}

std::vector<std::byte> bytes_of(uint64_t count, uint64_t first) {
  std::vector<std::byte> bytes(count);
  for (uint64_t i = 0; i < count; ++i)
    bytes[i] = static_cast<std::byte>((first + i) * 7);
  return bytes;
}

// A tensor of 12 x 8 bytes, cut over ranks along each dimension in turn, and
// one of 6 x 8 that every rank has.
struct Shards {
  std::vector<std::vector<std::byte>> bytes;
  RankState state;

  Shards(uint32_t rank, uint32_t count) {
    const uint64_t rows = 12 / count;
    add("rows", {12, 8}, {{rank * rows, 0}, {rows, 8}}, rank);
    if (8 % count == 0) {
      const uint64_t columns = 8 / count;
      Box box{{0, rank * columns}, {12, columns}};
      std::vector<std::byte> part;
      const auto all = bytes_of(96, 0);
      for (uint64_t r = 0; r < 12; ++r)
        part.insert(part.end(), all.begin() + (r * 8 + rank * columns),
                    all.begin() + (r * 8 + (rank + 1) * columns));
      add("columns", {12, 8}, box, rank, part);
    }
    add("both", {6, 8}, Box::whole({6, 8}), rank);
    if (rank == 0) state.common = R"({"step": 3})";
  }
  void add(const std::string& name, const Shape& shape, const Box& box,
           uint32_t rank, std::vector<std::byte> part = {}) {
    if (part.empty()) part = bytes_of(volume(box), box.offset[0] * 8);
    bytes.push_back(std::move(part));
    state.tensors.push_back({.name = name,
                             .dtype = DType::u8,
                             .shape = shape,
                             .box = box,
                             .bytes = bytes.back()});
    state.tensors.back().replica = {rank};
  }
};

void check_saved(const std::string& path) {
  for (const auto& saved : load_plain_tensors(path)) {
    CAPTURE(saved.first);
    CHECK(saved.second.bytes == bytes_of(saved.second.bytes.size(), 0));
  }
}

std::vector<std::string> entries(const std::string& directory) {
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(directory))
    if (!entry.path().filename().string().ends_with("ckpt-lock"))
      names.push_back(entry.path().filename());
  return names;
}

}  // namespace

TEST_CASE("parallel: what ranks save is the whole, in any format") {
  for (const uint32_t count : {1U, 2U, 3U, 4U})
    for (const std::string format : {"dcp", "safetensors", "torch"}) {
      CAPTURE(count);
      CAPTURE(format);
      const test::TempDir dir;
      const std::string path = dir.file("step");
      const auto thrown = in_ranks(count, [&](const auto& job) {
        Shards shards(job->rank(), count);
        Layout layout{.format = format};
        if (format == "dcp") layout.topology.dp = count;
        SaveOptions options{.threads = 1, .sync = false};
        if (format != "dcp") options.note = [](auto&&) {};  // of the step
        PendingSave save = begin_save(job, shards.state, layout, path, options);
        // They were copied.
        for (auto& bytes : shards.bytes)
          std::memset(bytes.data(), 0xff, bytes.size());
        CHECK_FALSE(fs::exists(path));
        const Preview done = save.finish();
        CHECK(done.bytes_written > 0);
        CHECK((job->rank() == 0) == !done.target.files.empty());
        CHECK_THROWS_AS(save.finish(), Error);
      });
      for (const std::string& why : thrown) CHECK(why.empty());
      check_saved(path);
      CHECK(entries(dir.path).size() == 1);
    }
}

TEST_CASE(
    "parallel: a value without a place is left out only where it is told") {
  for (const bool listens : {false, true}) {
    CAPTURE(listens);
    const test::TempDir dir;
    std::string told;
    const auto thrown = in_ranks(2, [&](const auto& job) {
      const Shards shards(job->rank(), 2);
      SaveOptions options{.threads = 1, .sync = false};
      if (listens && job->rank() == 0)
        options.note = [&](const std::string& line) { told += line; };
      save(job, shards.state, {.format = "safetensors"}, dir.file("step"),
           options);
    });
    for (const std::string& why : thrown)
      CHECK(why.starts_with(listens ? "" : "step: would be left out of safe"));
    CHECK(thrown[0].empty() == listens);
    CHECK(entries(dir.path).size() == (listens ? 1 : 0));
    CHECK((told.find("step: ") == 0) == listens);
  }
}

TEST_CASE("parallel: a save that is given up leaves nothing") {
  const test::TempDir dir;
  const std::string path = dir.file("step");
  in_ranks(3, [&](const auto& job) {
    Shards shards(job->rank(), 3);
    const PendingSave save =
        begin_save(job, shards.state, {.format = "dcp"}, path);
    while (!save.written()) std::this_thread::yield();
  });
  CHECK(entries(dir.path).empty());
}

TEST_CASE("parallel: no job is an error") {
  const test::TempDir dir;
  CHECK_THROWS_WITH_AS(
      begin_save(nullptr, {}, {.format = "dcp"}, dir.file("a")),
      doctest::Contains("without a job"), Error);
}

// A program's communicator that does not do what it promises.
class Faulty final : public Communicator {
 public:
  enum Fault { kFew, kForeign, kCut, kAdded, kNoRanks, kRank };
  explicit Faulty(Fault fault) : fault_(fault) {}
  uint32_t rank() const override { return fault_ == kRank ? 5 : 0; }
  uint32_t size() const override { return fault_ == kNoRanks ? 0 : 1; }
  std::vector<std::string> exchange(std::vector<std::string> to) override {
    std::string& message = to.at(0);
    if (fault_ == kFew) to.clear();
    if (fault_ == kForeign) message = std::string(message.size(), '\xff');
    if (fault_ == kCut) message.resize(message.size() / 2);
    if (fault_ == kAdded) message += '\n';
    return to;
  }

 private:
  const Fault fault_;
};

TEST_CASE("parallel: a communicator that breaks its promise is told") {
  const test::TempDir dir;
  using enum Faulty::Fault;
  for (const auto fault : {kFew, kForeign, kCut, kAdded, kNoRanks, kRank}) {
    CAPTURE(static_cast<int>(fault));
    const auto job = std::make_shared<Faulty>(fault);
    const LoadRequest request{.name = "w"};
    const std::function<void()> calls[] = {
        [&] {
          Shards shards(0, 1);
          save(job, shards.state, {.format = "dcp"}, dir.file("a"));
        },
        [&] { load_shards(*job, dir.file("a"), std::span(&request, 1)); }};
    for (const auto& call : calls) {
      try {
        call();
        FAIL("it was taken");
      } catch (const Error& error) {
        CHECK(error.code() == ExitCode::kUsage);
        CHECK(std::string(error.what()).find("communicator") !=
              std::string::npos);
      }
    }
  }
  CHECK(entries(dir.path).empty());
}

TEST_CASE("parallel: an error of one rank is every rank's") {
  const test::TempDir dir;
  const std::string path = dir.file("step");
  const auto save_with = [&](const std::function<void(uint32_t, Shards&)>& harm,
                             SaveOptions options = {}) {
    return in_ranks(3, [&](const auto& job) {
      Shards shards(job->rank(), 3);
      harm(job->rank(), shards);
      save(job, shards.state, {.format = "dcp"}, path, options);
    });
  };
  const auto all_say = [](const std::vector<std::string>& thrown,
                          const std::string& what) {
    for (const std::string& why : thrown) {
      CAPTURE(why);
      CHECK(why.find(what) != std::string::npos);
    }
  };
  all_say(save_with([](uint32_t rank, Shards& shards) {
            if (rank == 2)
              shards.state.tensors[0].bytes =
                  shards.state.tensors[0].bytes.first(3);
          }),
          "rank 2 of 3");
  all_say(save_with([](uint32_t rank, Shards& shards) {
            if (rank == 1)
              shards.state.tensors.erase(shards.state.tensors.begin());
          }),
          "no piece of the source holds");
  // Replicas are compared by the ranks that hold them.
  const auto differ = [](uint32_t rank, Shards& shards) {
    if (rank == 1) shards.bytes.back()[5] ^= std::byte{1};
  };
  all_say(save_with(differ), "both");
  CHECK(entries(dir.path).empty());
  for (const std::string& why :
       save_with(differ, {.allow_replica_mismatch = true}))
    CHECK(why.empty());
  all_say(save_with([](uint32_t, Shards&) {}), "exists");
}

TEST_CASE("parallel: of equal boxes each rank writes some") {
  const test::TempDir dir;
  const std::string path = dir.file("step");
  in_ranks(4, [&](const auto& job) {
    std::vector<std::vector<std::byte>> bytes;
    RankState state;
    for (uint64_t i = 0; i < 8; ++i) {
      bytes.push_back(bytes_of(64, i));
      state.tensors.push_back({.name = "t" + std::to_string(i),
                               .dtype = DType::u8,
                               .shape = {64},
                               .box = Box::whole({64}),
                               .bytes = bytes.back(),
                               .replica = {job->rank()}});
    }
    // With no comparison, only what a rank writes is copied.
    PendingSave save =
        begin_save(job, state, {.format = "dcp", .topology = {.dp = 4}}, path,
                   {.allow_replica_mismatch = true});
    CHECK(save.bytes() == 2 * 64);
    const Preview done = save.finish();
    CHECK(done.bytes_read == 8 * 64);
  });
  CHECK(load_plain_tensors(path).size() == 8);
}

TEST_CASE("parallel: loads get what each rank asked for") {
  const test::TempDir dir;
  const std::string path = dir.file("step");
  const auto whole = bytes_of(96, 0);
  in_ranks(2, [&](const auto& job) {
    Shards shards(job->rank(), 2);
    save(job, shards.state, {.format = "dcp"}, path);
  });
  for (const uint32_t count : {1U, 2U, 4U}) {
    const auto thrown = in_ranks(count, [&](const auto& job) {
      const uint64_t rows = 12 / count, first = job->rank() * rows;
      const LoadRequest requests[] = {
          {.name = "rows"},
          {.name = "columns", .box = Box{{first, 0}, {rows, 8}}},
          {.name = "absent"},
          {.name = "rows"}};
      LoadOptions options{.strict = StrictHandling::kReturnAll};
      const LoadResult got = load_shards(*job, path, requests, options);
      REQUIRE(got.tensors.size() == 4);
      CHECK(got.tensors[0]->bytes == whole);
      CHECK(got.tensors[3]->bytes == whole);
      CHECK(got.tensors[1]->bytes == bytes_of(rows * 8, first * 8));
      CHECK_FALSE(got.tensors[2].has_value());
      CHECK(got.unexpected == std::vector<std::string>{"absent"});
      CHECK(got.missing == std::vector<std::string>{"both"});
    });
    for (const std::string& why : thrown) CHECK(why.empty());
  }
  // No rank waits for one that failed.
  for (const std::string& why : in_ranks(3, [&](const auto& job) {
         const LoadRequest request{
             .name = "rows",
             .box = Box{{job->rank() == 1 ? 90U : 0U, 0}, {1, 8}}};
         load_shards(*job, path, {&request, 1});
       }))
    CHECK(why.find("rank 1 of 3") != std::string::npos);
}

TEST_CASE("parallel: megatron-core's state dicts") {
  using namespace mcore;
  const test::TempDir dir;
  const std::string path = dir.file("iter_0000007");
  const auto state_of = [](uint64_t rank) {
    auto data = std::make_shared<TensorData>();
    data->dtype = DType::u8;
    data->shape = {4, 8};
    data->bytes = bytes_of(32, rank * 32);
    Dict dict;
    dict["w"] = from_rank_offsets("decoder.w", data, {{0, rank, 3}});
    dict["rng"] =
        ckpt::ShardedObject{"rng_state", std::to_string(rank), {rank}, {3}, {}};
    dict["iteration"] = Json{"7"};
    return State(dict);
  };
  const auto thrown = in_ranks(3, [&](const auto& job) {
    const State state = state_of(job->rank());
    save(job, rank_state(state), {.format = "megatron_torch_dist"}, path);
    const Loaded back = load(*job, state, path);
    CHECK((*back.state.at("w").as<TensorPtr>())->bytes ==
          bytes_of(32, job->rank() * 32));
    CHECK(back.state.at("rng").as<Json>()->text == std::to_string(job->rank()));
    CHECK(back.state.at("iteration").as<Json>()->text == "7");
  });
  for (const std::string& why : thrown) CHECK(why.empty());
}

}  // namespace ckpt
