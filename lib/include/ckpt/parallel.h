// SPDX-License-Identifier: Apache-2.0
// Saves and loads of many processes, each of which has its own shards: what
// megatron-core calls fully parallel, and asynchronous with a finalizer.
//
//   auto job = ckpt::join_job();                 // mpirun, srun; or your own
//   ckpt::PendingSave save =
//       ckpt::begin_save(job, state, {.format = "dcp"}, "step_1");
//   …                                            // train on: it was copied
//   save.finish();                               // step_1 is there, whole
//
// Every function that takes a Communicator is collective: each process calls
// it, in the same order, from the thread that joined. An error of one process
// is thrown in all of them, and names its rank. Nothing prints.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "ckpt/sharded.h"

namespace ckpt {

// What carries bytes between the processes of a job.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual uint32_t rank() const = 0;
  virtual uint32_t size() const = 0;
  // Collective, an all-to-all: to[r] goes to rank r; returns what each rank had
  // for this one, in the order of the ranks. Strings may be empty, and of any
  // bytes. `to` has size() members.
  virtual std::vector<std::string> exchange(std::vector<std::string> to) = 0;
};

// The job that a launcher started this process in, over libckpt_mpi.so; one
// process if there is no launcher. MPI is initialised unless it is already, and
// finalized with the last owner if ckpt initialised it; messages go over a
// communicator of ckpt's own. Throws resource_error if a launcher is there and
// the module is not. To be called once.
std::shared_ptr<Communicator> join_job();

// Threads that stand for ranks: each gets one.
std::vector<std::shared_ptr<Communicator>> make_thread_ranks(uint32_t count);

// A save between its two phases. Each process is writing its bytes into a
// directory beside the target; the target is as it was.
class PendingSave {
 public:
  PendingSave(PendingSave&&) noexcept;
  PendingSave& operator=(PendingSave&&) noexcept;
  // Without finish() the save is abandoned, and rank 0 removes what was
  // written. Waits for this process to stop writing. Not collective.
  ~PendingSave();

  // Of tensors, that this process writes or compares.
  uint64_t bytes() const;
  // True when this process has nothing left to write, or has failed. Never
  // waits.
  bool written() const;
  // Phase 2, collective, once: waits for all processes, compares replicas,
  // writes checksums and manifest, and renames the whole into place. The target
  // and its files are in rank 0's result alone, the sums in all.
  Preview finish();

 private:
  friend PendingSave begin_save(std::shared_ptr<Communicator>, RankState,
                                Layout, std::string, SaveOptions);
  friend Preview save(std::shared_ptr<Communicator>, RankState, Layout,
                      std::string, SaveOptions);
  struct State;
  explicit PendingSave(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// Phase 1, collective: agrees on who writes what, lays out and proves, copies
// what this process is to write or to compare, and begins to write. On return
// `state` may change.
//
// Each box is written by one of the processes that hold it (replicas are equal,
// whatever their numbers say), chosen so that all write as many bytes, each
// straight into the files of the target, which all processes see under the same
// path. The other replicas are compared with it by their digests, unless
// options.allow_replica_mismatch; then only what is written is copied.
// layout.topology says how many files there are. options.resume and
// options.progress are ignored: each process advances on its own. Objects
// without a place are refused as by Saver; rank 0's options.note is told.
//
// Throws as run() does, in all processes alike; then nothing was begun.
PendingSave begin_save(std::shared_ptr<Communicator> job, RankState state,
                       Layout layout, std::string path,
                       SaveOptions options = {});

// Both phases, without a copy: the bytes must stay valid until it returns.
Preview save(std::shared_ptr<Communicator> job, RankState state, Layout layout,
             std::string path, SaveOptions options = {});

// load_shards by all processes: a box that several ask for is read by one of
// them, chosen so that all read as many bytes, and sent to the others in
// messages of bounded size. What any process asks for is not missing.
LoadResult load_shards(Communicator& job, const std::string& path,
                       std::span<const LoadRequest> requests,
                       const LoadOptions& options = {});

}  // namespace ckpt
