// SPDX-License-Identifier: Apache-2.0
// Rounds of the CUDA module between ranks.
#include <doctest/doctest.h>

#include <chrono>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "ckpt/error.h"
#include "tests/reshard/cuda_support.h"

namespace ckpt::reshard {
namespace {

constexpr uint64_t kRoom = 256 << 10;  // of a part of memory

// Threads that play ranks can't meet through NCCL, which wants a GPU for each.
bool ranks_are_threads(const CudaModule* module) {
  return module &&
         std::string_view(module->api().version).ends_with("sockets for NCCL");
}

// Bytes that one rank sends another in a round; both know the number.
uint64_t share_of(uint32_t round, uint32_t from, uint32_t to) {
  if (from == to || (from + to + round) % 3 == 0) return 0;
  return (round * 7919 + from * 613 + to * 127) % kRoom;
}

std::byte byte_of(uint32_t round, uint32_t from, uint32_t to, uint64_t i) {
  return static_cast<std::byte>(round + 3 * from + 5 * to + i);
}

bool finish(CudaPeers& peers) {
  for (int looks = 0; looks < 20000; ++looks) {
    if (peers.done()) return true;
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return false;
}

bool meet(CudaPeers& one, CudaPeers& other) {
  for (int looks = 0; looks < 1000; ++looks) {
    const bool there = one.done();
    if (other.done() && there) return true;
  }
  return false;
}

// Returns the number of bytes that arrived wrong and of rounds that did not
// end. Data for rank r is in part r of the memory, data from it in part size +
// r.
uint64_t play_rank(const CudaModule& module, uint32_t rank, uint32_t size,
                   const std::string& id) {
  CudaPeers peers(module, rank, size, id, 2 * size * kRoom);
  if (!finish(peers)) return 1;
  uint64_t wrong = 0;
  for (uint32_t round = 0; round < 8; ++round) {
    std::vector<CkptCudaParcel> sends, receives;
    for (uint32_t r = 0; r < size; ++r) {
      const uint64_t out = share_of(round, rank, r);
      const uint64_t in = share_of(round, r, rank);
      for (uint64_t i = 0; i < out; ++i)
        peers.memory()[r * kRoom + i] = byte_of(round, rank, r, i);
      if (out) sends.push_back({r * kRoom, out, r});
      if (in) receives.push_back({(size + r) * kRoom, in, r});
    }
    if (sends.empty() && receives.empty()) continue;
    peers.begin(sends, receives);
    wrong += !finish(peers);
    for (uint32_t r = 0; r < size; ++r)
      for (uint64_t i = 0; i < share_of(round, r, rank); ++i)
        wrong += peers.memory()[(size + r) * kRoom + i] !=
                 byte_of(round, r, rank, i);
  }
  return wrong;
}

}  // namespace

TEST_CASE("cuda: rounds between ranks bring each what it is sent") {
  const CudaModule* module = test::device();
  if (!ranks_are_threads(module)) return;
  const std::string id = CudaPeers::make_id(*module);
  std::vector<uint64_t> wrong(5, 1);
  std::vector<std::thread> ranks;
  for (uint32_t r = 0; r < 5; ++r)
    ranks.emplace_back([&, r] { wrong[r] = play_rank(*module, r, 5, id); });
  for (std::thread& rank : ranks) rank.join();
  CHECK(wrong == std::vector<uint64_t>(5, 0));
}

TEST_CASE("cuda: a rank that ends, or sends other than it said, is noticed") {
  const CudaModule* module = test::device();
  if (!ranks_are_threads(module)) return;
  const std::string id = CudaPeers::make_id(*module);
  auto one = std::make_unique<CudaPeers>(*module, 0, 2, id, kRoom);
  CHECK_FALSE(one->done());  // alone
  CudaPeers other(*module, 1, 2, id, kRoom);
  REQUIRE(meet(*one, other));
  const CkptCudaParcel there{0, 100, 1}, back{0, 100, 0};
  one->begin({&there, 1}, {});
  CHECK(finish(*one));
  one->begin({}, {&there, 1});
  CHECK_FALSE(one->done());
  SUBCASE("ends") {
    one.reset();
    other.begin({}, {&back, 1});
    CHECK(finish(other));  // that was in flight
    other.begin({}, {&back, 1});
    CHECK_THROWS_WITH_AS(finish(other), doctest::Contains("has ended"), Error);
  }
  SUBCASE("sends less") {
    const CkptCudaParcel less{0, 99, 0};
    other.begin({}, {&less, 1});
    CHECK_THROWS_WITH_AS(finish(other), doctest::Contains("differ"), Error);
  }
  // Torn down: what follows fails at once.
  CHECK_THROWS_WITH_AS(other.begin({&back, 1}, {}),
                       doctest::Contains("failed before"), Error);
}

TEST_CASE("cuda: what is not a round is refused") {
  const CudaModule* module = test::device();
  if (!ranks_are_threads(module)) return;
  for (const CkptCudaParcel& wrong :
       {CkptCudaParcel{1, kRoom, 1}, CkptCudaParcel{kRoom + 1, 0, 1},
        CkptCudaParcel{0, 1, 0}, CkptCudaParcel{0, 1, 2}}) {
    const std::string id = CudaPeers::make_id(*module);
    CudaPeers peers(*module, 0, 2, id, kRoom);
    CudaPeers other(*module, 1, 2, id, kRoom);
    REQUIRE(meet(peers, other));
    CHECK_THROWS_WITH_AS(peers.begin({&wrong, 1}, {}),
                         doctest::Contains("a parcel"), Error);
  }
}

}  // namespace ckpt::reshard
