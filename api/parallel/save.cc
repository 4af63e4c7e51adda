// SPDX-License-Identifier: Apache-2.0
// A save by all processes, in two phases.
//
//   all      shapes, boxes, sizes ──► rank 0: who writes what, layout, plan
//   rank 0   shares ────────────────► all: copy, begin to write
//   …
//   all      reports ───────────────► rank 0: checks, checksums, publishes
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <map>
#include <thread>

#include "api/memory.h"
#include "api/parallel/messages.h"
#include "api/saver.h"
#include "api/write/open_write.h"
#include "ckpt/parallel.h"
#include "lib/session.h"
#include "reshard/ranks/control.h"
#include "reshard/ranks/pack.h"
#include "reshard/ranks/task.h"

namespace ckpt {
namespace {

std::string host_name() {
  std::array<char, 256> name{};
  ::gethostname(name.data(), name.size() - 1);
  return name.data();
}

void check_sizes(const RankState& state) {
  for (const ShardedTensor& shard : state.tensors) library::check_shard(shard);
}

// A shard and its owner.
struct Held {
  uint32_t rank = 0;
  uint64_t index = 0;  // index in the rank's state
  ShardedTensor shard;
};

// Of the processes that hold a box, the one with the least to do writes it;
// largest boxes first. Its shard becomes the first of the box's.
std::vector<Held> assign(std::vector<Held> all, uint32_t ranks,
                         bool keep_replicas) {
  std::map<std::string, std::map<std::pair<Dims, Dims>, std::vector<size_t>>>
      boxes;
  for (size_t i = 0; i < all.size(); ++i)
    boxes[all[i].shard.name][{all[i].shard.box.offset, all[i].shard.box.shape}]
        .push_back(i);
  std::vector<const std::vector<size_t>*> order;
  for (const auto& [name, of_tensor] : boxes)
    for (const auto& [box, holders] : of_tensor) order.push_back(&holders);
  std::ranges::stable_sort(order, std::greater<>(), [&](const auto* holders) {
    return all[holders->front()].shard.bytes.size();
  });
  std::vector<uint64_t> load(ranks);
  std::vector<bool> writes(all.size());
  for (const std::vector<size_t>* holders : order) {
    const size_t chosen = *std::ranges::min_element(
        *holders, {}, [&](size_t i) { return load[all[i].rank]; });
    load[all[chosen].rank] += all[chosen].shard.bytes.size();
    writes[chosen] = true;
  }
  std::vector<Held> first, rest;
  for (size_t i = 0; i < all.size(); ++i) {
    if (writes[i])
      first.push_back(std::move(all[i]));
    else if (keep_replicas)
      rest.push_back(std::move(all[i]));
  }
  std::ranges::move(rest, std::back_inserter(first));
  return first;
}

uint32_t count_neighbours(const std::vector<library::Packed>& all,
                          uint32_t rank) {
  return static_cast<uint32_t>(
      std::ranges::count(all, all[rank].host, &library::Packed::host));
}

}  // namespace

struct PendingSave::State {
  std::shared_ptr<Communicator> job;
  RankState own;  // owns the share's bytes, unless they were copied
  std::vector<std::vector<std::byte>> copies;
  std::unique_ptr<library::OpenWrite> write;  // rank 0
  ranks::Share share;
  ranks::Control control;
  std::atomic<bool> written = false;
  std::string outcome;
  // Of this process: what its worker loses, finish() must know.
  std::shared_ptr<Session> session = std::make_shared<Session>();
  std::jthread worker;

  // Rank 0: makes a plan from what all contribute, and each rank's share of it.
  std::vector<std::string> plan(const std::vector<std::string>& given,
                                Layout layout, const std::string& path,
                                const SaveOptions& options);
  // Sets the bytes of the share: the caller's, or copies.
  void place(bool copy);
  void start();
};

std::vector<std::string> PendingSave::State::plan(
    const std::vector<std::string>& given, Layout layout,
    const std::string& path, const SaveOptions& options) {
  const Session::Within within(session);
  std::vector<library::Packed> all;
  for (uint32_t rank = 0; rank < job->size(); ++rank)
    all.push_back(library::unpack_state(
        library::returned(given[rank], rank, job->size())));
  std::vector<Held> held;
  for (uint32_t rank = 0; rank < all.size(); ++rank)
    for (uint64_t i = 0; i < all[rank].state.tensors.size(); ++i)
      held.push_back({rank, i, std::move(all[rank].state.tensors[i])});
  held = assign(std::move(held), job->size(), !options.allow_replica_mismatch);
  std::vector<ShardedTensor> shards;
  shards.reserve(held.size());
  for (const Held& one : held) shards.push_back(one.shard);
  std::vector<RankState> states;
  states.reserve(all.size());
  for (library::Packed& one : all) states.push_back(std::move(one.state));
  Catalog catalog =
      library::catalog_of(std::move(shards), std::move(states), layout);
  ranks::Owners owners;
  for (size_t i = 0; i < held.size(); ++i) {
    File& file = catalog.files.at(i);
    file.path = fmt::format("(memory of rank {})", held[i].rank);
    file.packed_offset = held[i].index;
    owners.push_back(held[i].rank);
  }
  library::Prepared prepared =
      library::prepare(std::move(catalog), std::move(layout), path, options);
  library::tell_left_out(prepared.target, options);
  write = std::make_unique<library::OpenWrite>(
      std::move(prepared), options, owners, job->size(),
      count_neighbours(all, 0) == job->size());
  std::vector<std::string> shares;
  for (uint32_t rank = 0; rank < job->size(); ++rank)
    shares.push_back(
        ranks::pack(write->share_of(rank, count_neighbours(all, rank))));
  return shares;
}

void PendingSave::State::place(bool copy) {
  for (File& file : share.source.files) {
    if (file.codec != Codec::kMemory) continue;
    const std::span<const std::byte> bytes =
        own.tensors.at(file.packed_offset).bytes;
    if (bytes.size() != file.size)
      throw bug_error({file.path, {}}, "{} bytes, expected {}", bytes.size(),
                      file.size);
    file.memory = bytes.data();
    if (!copy) continue;
    copies.emplace_back(bytes.begin(), bytes.end());
    file.memory = copies.back().data();
  }
  if (copy) own = {};
}

void PendingSave::State::start() {
  const auto work = [this] {
    outcome = library::attempt(
        [this] { return ranks::perform_share(share, control); });
    written = true;
  };
  worker = std::jthread(in_session(work, session));
}

PendingSave::PendingSave(std::unique_ptr<State> state)
    : state_(std::move(state)) {}
PendingSave::PendingSave(PendingSave&&) noexcept = default;
PendingSave& PendingSave::operator=(PendingSave&&) noexcept = default;

PendingSave::~PendingSave() {
  if (!state_) return;
  state_->control.stopped = true;
  if (state_->worker.joinable()) state_->worker.join();
}

uint64_t PendingSave::bytes() const {
  return state_ ? state_->share.plan.bytes_read : 0;
}

bool PendingSave::written() const { return !state_ || state_->written; }

Preview PendingSave::finish() {
  if (!state_) throw usage_error({}, "the save is finished already");
  const std::unique_ptr<State> state = std::move(state_);
  Communicator& job = *state->job;
  state->worker.join();
  const std::vector<std::string> outcomes =
      library::gather(job, std::move(state->outcome));
  Preview preview;
  const std::string sums = library::lead(job, [&] {
    const Session::Within session(state->session);
    std::vector<std::string> reports;
    for (uint32_t rank = 0; rank < job.size(); ++rank)
      reports.emplace_back(library::returned(outcomes[rank], rank, job.size()));
    preview = state->write->finish(reports);
    ranks::Packer out;
    out.put(preview.bytes_read);
    out.put(preview.bytes_written);
    out.put(preview.peak_memory);
    return std::vector<std::string>(job.size(), out.take());
  });
  if (job.rank() == 0) return preview;
  ranks::Unpacker in(sums);
  preview.bytes_read = in.take<uint64_t>();
  preview.bytes_written = in.take<uint64_t>();
  preview.peak_memory = in.take<uint64_t>();
  return preview;
}

namespace {

// The part common to save() and begin_save(): makes a State.
template <class State>
std::unique_ptr<State> begin(std::shared_ptr<Communicator>&& job,
                             RankState&& given, Layout layout,
                             const std::string& path, SaveOptions options,
                             bool copy) {
  if (!job)
    throw usage_error({path, {}}, "a save without a job: join_job() has one");
  auto state = std::make_unique<State>();
  state->job = std::move(job);
  state->own = std::move(given);
  options.naming = {.dialect = "keep"};
  options = library::told_outside(std::move(options));
  if (options.resume)
    throw usage_error({path, {}}, "a save by many processes is not resumed");
  const std::vector<std::string> all =
      library::gather(*state->job, library::attempt([&] {
        check_sizes(state->own);
        return library::pack_state(state->own, host_name());
      }));
  const std::string share = library::lead(*state->job, [&] {
    return state->plan(all, std::move(layout), path, options);
  });
  library::agree(*state->job, [&] {
    state->share = ranks::unpack_share(share);
    state->place(copy);
  });
  state->start();
  return state;
}

}  // namespace

PendingSave begin_save(std::shared_ptr<Communicator> job, RankState state,
                       Layout layout, std::string path,  // NOLINT: ckpt.h
                       SaveOptions options) {
  return PendingSave(begin<PendingSave::State>(std::move(job), std::move(state),
                                               std::move(layout), path,
                                               std::move(options), true));
}

Preview save(std::shared_ptr<Communicator> job, RankState state, Layout layout,
             std::string path, SaveOptions options) {  // NOLINT: ckpt.h
  return PendingSave(begin<PendingSave::State>(std::move(job), std::move(state),
                                               std::move(layout), path,
                                               std::move(options), false))
      .finish();
}

}  // namespace ckpt
