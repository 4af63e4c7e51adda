// SPDX-License-Identifier: Apache-2.0
// Serves files by ranges on loopback, with faults on the way.
//
//   GET /SEED/SIZE    a file whose bytes are byte_of(SEED, offset)
//
// The server moves to the next fault at each `every`-th request, so that each
// kind occurs in whatever order threads ask.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <string>
#include <thread>
#include <vector>

namespace ckpt::test {

class FaultServer {
 public:
  explicit FaultServer(uint64_t every = 0);  // 0: all goes well
  ~FaultServer();
  FaultServer(const FaultServer&) = delete;
  FaultServer& operator=(const FaultServer&) = delete;

  std::string url(uint64_t seed, uint64_t size) const;
  static std::byte byte_of(uint64_t seed, uint64_t offset);

 private:
  void accept_all();
  void serve(int socket);
  bool answer(int socket, const std::string& head);

  const uint64_t every_;
  int listener_ = -1;
  int port_ = 0;
  std::atomic<uint64_t> requests_ = 0;
  std::atomic<bool> stop_ = false;
  std::thread accepts_;
};

}  // namespace ckpt::test
