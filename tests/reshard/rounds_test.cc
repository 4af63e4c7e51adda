// SPDX-License-Identifier: Apache-2.0
// Payload between ranks in rounds, with doubles for GPUs.
#include <doctest/doctest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "ckpt/error.h"
#include "tests/reshard/cuda_support.h"
#include "tests/support/columns.h"
#include "tests/support/thread_link.h"

namespace ckpt::ranks {
namespace {

using test::Columns;
using test::SendMode;

// One GPU for each thread that plays a rank.
const reshard::CudaModule* doubles() {
  const reshard::CudaModule* module = test::device();
  const bool are =
      module &&
      std::string_view(module->api().version).ends_with("sockets for NCCL");
  return are ? module : nullptr;
}

}  // namespace

TEST_CASE("rounds: every rank sends to every other, in small buffers") {
  Columns c(40);
  const std::string alone = c.make_root("alone");
  c.write(alone);
  c.device = doubles();
  if (!c.device) return;
  const SendMode send;
  for (const uint32_t ranks : {2U, 3U, 8U, 20U}) {
    CAPTURE(ranks);
    const std::string root = c.make_root("many" + std::to_string(ranks));
    test::with_ranks(ranks, 0, [&] {
      c.write(root);
      uint64_t sent = 0, received = 0;
      for (const Account& account : current()->accounts()) {
        CHECK(account.rounds > 0);
        sent += account.bytes_sent;
        received += account.bytes_received;
      }
      CHECK(sent == received);
      CHECK(sent > 0);
    });
    CHECK(c.read(root) == c.read(alone));
  }
}

TEST_CASE("rounds: who can't write for others fails the job, which goes on") {
  Columns c(6);
  const std::string alone = c.make_root("alone");
  c.write(alone);
  c.device = doubles();
  if (!c.device) return;
  const SendMode send;
  for (const uint32_t victim : {0U, 5U}) {
    CAPTURE(victim);
    const std::string root = c.make_root("many" + std::to_string(victim));
    const std::string file = io::join(root, c.target.files[victim].path);
    std::filesystem::remove(file);
    const auto statuses = test::with_ranks(6, 3, [&] {
      CHECK_THROWS_AS(c.write(root), Error);
      // The first exchange leaves nothing for the next.
      io::Handle::create(file).allocate(c.target.files[victim].size);
      c.write(root);
    });
    CHECK(statuses == std::vector<int>(5, 3));
    CHECK(c.read(root) == c.read(alone));
  }
}

}  // namespace ckpt::ranks
