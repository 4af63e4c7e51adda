// Rounds of the CUDA module between ranks.
#include <doctest/doctest.h>

#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "tests/reshard/cuda_support.h"

namespace ckpt::reshard {
namespace {

constexpr uint64_t kRoom = 256 << 10;  // of a box

// Threads that play ranks can't meet by NCCL: it wants a GPU for each.
bool ranks_are_threads(const CudaModule* module) {
  return module &&
         std::string_view(module->api().version).ends_with("threads for ranks");
}

CkptCudaPeers* open_peers(const CudaModule& module, uint32_t rank,
                          uint32_t size, const unsigned char* id,
                          double seconds) {
  CkptCudaPeers* peers = nullptr;
  const int32_t status =
      module.api().peers_open(0, rank, size, id, kRoom, seconds, &peers);
  return status == 0 ? peers : nullptr;
}

// Bytes that one rank sends another in a round; both know it.
uint64_t share_of(uint32_t round, uint32_t from, uint32_t to) {
  return from == to ? 0 : (round * 7919 + from * 613 + to * 127) % 5000;
}

std::byte byte_of(uint32_t round, uint32_t from, uint32_t to, uint64_t i) {
  return static_cast<std::byte>(round + 3 * from + 5 * to + i);
}

uint64_t padded(uint64_t bytes) { return (bytes + 15) / 16 * 16; }

// Returns how many bytes arrived wrong, and rounds that failed. `peers` is to
// be closed when all ranks are done: an end ends the others' waits.
uint64_t play_rank(const CudaModule& module, uint32_t rank, uint32_t size,
                   const unsigned char* id, CkptCudaPeers*& peers) {
  const CkptCudaApi& api = module.api();
  peers = open_peers(module, rank, size, id, 20);
  if (!peers) return 1;
  uint64_t wrong = 0;
  for (uint32_t round = 0; round < 8; ++round) {
    std::vector<uint64_t> send(size), receive(size);
    auto* out = static_cast<std::byte*>(api.peers_outbox(peers));
    for (uint32_t r = 0; r < size; ++r) {
      send[r] = share_of(round, rank, r);
      receive[r] = share_of(round, r, rank);
      for (uint64_t i = 0; i < send[r]; ++i)
        out[i] = byte_of(round, rank, r, i);
      out += padded(send[r]);
    }
    wrong += api.peers_exchange(peers, send.data(), receive.data(), 20) != 0;
    const auto* in = static_cast<const std::byte*>(api.peers_inbox(peers));
    for (uint32_t r = 0; r < size; ++r) {
      for (uint64_t i = 0; i < receive[r]; ++i)
        wrong += in[i] != byte_of(round, r, rank, i);
      in += padded(receive[r]);
    }
  }
  return wrong;
}

}  // namespace

TEST_CASE("cuda: rounds between ranks bring each what it is sent") {
  const CudaModule* module = test::device();
  if (!ranks_are_threads(module)) return;
  unsigned char id[CKPT_CUDA_ID_BYTES];
  module->require(module->api().peers_id(id));
  std::vector<uint64_t> wrong(3, 1);
  std::vector<CkptCudaPeers*> peers(3);
  std::vector<std::thread> ranks;
  for (uint32_t r = 0; r < 3; ++r)
    ranks.emplace_back(
        [&, r] { wrong[r] = play_rank(*module, r, 3, id, peers[r]); });
  for (std::thread& rank : ranks) rank.join();
  for (CkptCudaPeers* one : peers)
    if (one) module->api().peers_close(one);
  CHECK(wrong == std::vector<uint64_t>(3, 0));
}

TEST_CASE("cuda: a rank that does not come ends the others' wait") {
  const CudaModule* module = test::device();
  if (!ranks_are_threads(module)) return;
  const CkptCudaApi& api = module->api();
  unsigned char id[CKPT_CUDA_ID_BYTES];
  module->require(api.peers_id(id));
  CHECK(open_peers(*module, 0, 2, id, 0.05) == nullptr);  // alone
  CHECK(std::string(api.error()).find("may have ended") != std::string::npos);

  module->require(api.peers_id(id));
  CkptCudaPeers* late = nullptr;
  std::thread other([&] { late = open_peers(*module, 1, 2, id, 20); });
  CkptCudaPeers* peers = open_peers(*module, 0, 2, id, 20);
  other.join();
  REQUIRE(peers);
  REQUIRE(late);
  const uint64_t send[] = {0, 100}, receive[] = {0, 100};
  CHECK(api.peers_exchange(peers, send, receive, 0.05) != 0);
  // Torn down: the next call fails at once, and so does the other's round.
  CHECK(api.peers_exchange(peers, send, receive, 20) != 0);
  CHECK(std::string(api.error()).find("failed before") != std::string::npos);
  const uint64_t back[] = {100, 0};
  CHECK(api.peers_exchange(late, back, back, 20) != 0);
  CHECK(std::string(api.error()).find("has ended") != std::string::npos);
  api.peers_close(peers);
  api.peers_close(late);
}

}  // namespace ckpt::reshard
