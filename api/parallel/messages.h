// SPDX-License-Identifier: Apache-2.0
// What the processes of a save or load tell each other.
#pragma once

#include <exception>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/parallel.h"

namespace ckpt::library {

// job.exchange(), and what it returned is what was sent: a program's own
// communicator may lose, add or cut something. Throws usage_error naming the
// rank that it came from.
std::vector<std::string> exchange(Communicator& job,
                                  std::vector<std::string> to);

// Rank 0 gets what each rank gave, by rank; the others nothing.
std::vector<std::string> gather(Communicator& job, std::string bytes);
// Every rank gets what each gave.
std::vector<std::string> share_all(Communicator& job, const std::string& bytes);
// Each rank gets its part of what rank 0 gave.
std::string scatter(Communicator& job, std::vector<std::string> parts);

// A step that may fail on one rank: what it returned, or its failure.
std::string attempt(const std::function<std::string()>& step);
std::string failed(std::exception_ptr failure);
// What it returned; throws the failure, as rank `from` of `size`.
std::string_view returned(const std::string& outcome, uint32_t from,
                          uint32_t size);

// Collective: `step` on all ranks, and the first failure thrown on all.
void agree(Communicator& job, const std::function<void()>& step);
// Collective: `step` on rank 0 alone gives each rank its part; a failure is
// thrown on all.
std::string lead(Communicator& job,
                 const std::function<std::vector<std::string>()>& step);

// A state without the bytes of its tensors, which have their sizes.
std::string pack_state(const RankState& state, const std::string& host);
struct Packed {
  RankState state;
  std::string host;
};
Packed unpack_state(std::string_view bytes);

std::string pack_requests(std::span<const LoadRequest> requests);
std::vector<LoadRequest> unpack_requests(std::string_view bytes);

}  // namespace ckpt::library
