// SPDX-License-Identifier: Apache-2.0
// A load by all processes: equal boxes are read once and sent.
//
// All know all requests and so deal them out alike: they only need to agree
// that every step went well. Messages go in rounds, and a process reads at most
// kRound for each.
#include <algorithm>
#include <functional>
#include <map>
#include <set>
#include <tuple>

#include "api/parallel/messages.h"
#include "api/requests.h"
#include "ckpt/parallel.h"
#include "reshard/ranks/pack.h"

namespace ckpt {
namespace {

constexpr uint64_t kRound = uint64_t{64} << 20;

// What some processes ask for.
struct Wanted {
  LoadRequest request;
  std::vector<uint32_t> ranks;  // each once, in order
  uint64_t bytes = 0;
  uint32_t reader = 0;
  uint64_t round = 0;
};

using Key = std::tuple<std::string, bool, Dims, Dims, bool, Dims, bool>;

Key key_of(const LoadRequest& request) {
  return {request.name,
          request.box.has_value(),
          request.box ? request.box->offset : Dims(),
          request.box ? request.box->shape : Dims(),
          request.shape.has_value(),
          request.shape.value_or(Dims()),
          request.allow_shape_mismatch};
}

std::map<Key, Wanted> unite(
    const std::vector<std::vector<LoadRequest>>& by_rank) {
  std::map<Key, Wanted> all;
  for (uint32_t rank = 0; rank < by_rank.size(); ++rank)
    for (const LoadRequest& request : by_rank[rank]) {
      Wanted& wanted = all[key_of(request)];
      wanted.request = request;
      if (wanted.ranks.empty() || wanted.ranks.back() != rank)
        wanted.ranks.push_back(rank);
    }
  return all;
}

// Deals out the largest first, each to the rank that reads the least of those
// that want it. Returns the number of rounds.
uint64_t deal_out(std::map<Key, Wanted>& all, uint32_t ranks) {
  std::vector<Wanted*> order;
  for (auto& [key, wanted] : all) order.push_back(&wanted);
  std::ranges::stable_sort(order, std::greater<>(),
                           [](const Wanted* wanted) { return wanted->bytes; });
  std::vector<uint64_t> load(ranks), sent(ranks);
  uint64_t rounds = 0;
  for (Wanted* wanted : order) {
    wanted->reader = *std::ranges::min_element(
        wanted->ranks, {}, [&](uint32_t rank) { return load[rank]; });
    load[wanted->reader] += wanted->bytes;
    if (wanted->ranks.size() == 1) continue;
    wanted->round = sent[wanted->reader] / kRound;
    sent[wanted->reader] += wanted->bytes;
    rounds = std::max(rounds, wanted->round + 1);
  }
  return rounds;
}

class Load {
 public:
  Load(Communicator& job, const LoadOptions& options)
      : job_(job), options_(options) {}

  LoadResult run(const std::string& path,
                 std::span<const LoadRequest> requests) {
    const std::vector<std::string> given =
        library::share_all(job_, library::pack_requests(requests));
    std::vector<std::vector<LoadRequest>> by_rank;
    std::set<std::string> asked;
    for (const std::string& one : given) {
      by_rank.push_back(library::unpack_requests(one));
      for (const LoadRequest& request : by_rank.back())
        asked.insert(request.name);
    }
    LoadResult result;
    library::agree(job_, [&] {
      catalog_ = library::open_for(path, requests, asked, options_, result);
      for (const Tensor& tensor : catalog_.tensors)
        by_name_[tensor.name] = &tensor;
    });
    wanted_ = unite(by_rank);
    std::erase_if(wanted_, [&](const auto& entry) {
      return !by_name_.contains(entry.second.request.name);
    });
    for (auto& [key, wanted] : wanted_) wanted.bytes = bytes_of(wanted.request);
    const uint64_t rounds = deal_out(wanted_, job_.size());
    for (uint64_t round = 0; round < rounds; ++round) exchange(round);
    library::agree(job_, [&] { fill(requests, result); });
    return result;
  }

 private:
  // A box with an impossible size is refused by its reader.
  uint64_t bytes_of(const LoadRequest& request) const {
    const Tensor& tensor = *by_name_.at(request.name);
    const Shape& shape = request.shape ? *request.shape : tensor.shape;
    return byte_size(tensor.dtype, request.box ? request.box->shape : shape)
        .value_or(0);
  }

  TensorData read(const Wanted& wanted) const {
    return library::read_request(catalog_, *by_name_.at(wanted.request.name),
                                 wanted.request);
  }

  // Reads this rank's share of a round, for itself and for others. A failure is
  // sent to all in place of the bytes.
  void exchange(uint64_t round) {
    std::vector<ranks::Packer> out(job_.size());
    std::vector<std::string> to;
    const std::string outcome = library::attempt([&] {
      for (auto& [key, wanted] : wanted_) {
        if (!is_mine(wanted, round)) continue;
        TensorData data = read(wanted);
        const std::string_view bytes(
            reinterpret_cast<const char*>(data.bytes.data()),
            data.bytes.size());
        for (const uint32_t rank : wanted.ranks)
          if (rank != job_.rank()) out[rank].text(bytes);
        got_[key] = std::move(data);
      }
      return std::string();
    });
    const bool well = outcome.starts_with('r');
    for (ranks::Packer& packer : out)
      to.push_back(well ? outcome + packer.take() : outcome);
    const std::vector<std::string> from =
        library::exchange(job_, std::move(to));
    for (uint32_t rank = 0; rank < job_.size(); ++rank)
      library::returned(from[rank], rank, job_.size());
    for (uint32_t rank = 0; rank < job_.size(); ++rank)
      if (rank != job_.rank()) take(rank, round, from[rank]);
  }

  bool is_mine(const Wanted& wanted, uint64_t round) const {
    return wanted.reader == job_.rank() && wanted.round == round &&
           wanted.ranks.size() > 1;
  }

  // In the order in which the sender went through the same list.
  void take(uint32_t sender, uint64_t round, const std::string& message) {
    ranks::Unpacker in(library::returned(message, sender, job_.size()));
    for (const auto& [key, wanted] : wanted_) {
      if (wanted.reader != sender || wanted.round != round ||
          wanted.ranks.size() == 1 ||
          !std::ranges::count(wanted.ranks, job_.rank()))
        continue;
      const std::string bytes = in.text();
      const Tensor& tensor = *by_name_.at(wanted.request.name);
      TensorData& data = got_[key];
      data.dtype = tensor.dtype;
      data.shape = wanted.request.box     ? wanted.request.box->shape
                   : wanted.request.shape ? *wanted.request.shape
                                          : tensor.shape;
      const auto* begin = reinterpret_cast<const std::byte*>(bytes.data());
      data.bytes.assign(begin, begin + bytes.size());
    }
  }

  void fill(std::span<const LoadRequest> requests, LoadResult& result) {
    std::map<Key, uint64_t> uses;
    for (const LoadRequest& request : requests) ++uses[key_of(request)];
    for (const LoadRequest& request : requests) {
      const Key key = key_of(request);
      const auto wanted = wanted_.find(key);
      if (wanted == wanted_.end()) {
        result.tensors.emplace_back();
        continue;
      }
      if (!got_.contains(key)) got_[key] = read(wanted->second);
      result.tensors.push_back(--uses[key] == 0 ? std::move(got_[key])
                                                : got_[key]);
    }
  }

  Communicator& job_;
  const LoadOptions& options_;
  Catalog catalog_;
  std::map<std::string, const Tensor*> by_name_;
  std::map<Key, Wanted> wanted_;
  std::map<Key, TensorData> got_;
};

}  // namespace

LoadResult load_shards(Communicator& job, const std::string& path,
                       std::span<const LoadRequest> requests,
                       const LoadOptions& options) {
  return Load(job, options).run(path, requests);
}

}  // namespace ckpt
