// SPDX-License-Identifier: Apache-2.0
// The interface of libckpt_mpi.so: messages between the processes of a job.
// Plain C, so that the module may be built for another MPI than the program.
//
// Messages between two processes arrive in order. All functions are called from
// one thread, the one that called start(). Those that return int32_t return
// zero; if not, error() says what went wrong.
#pragma once

#include <stdint.h>

// Incremented with every change below.
#define CKPT_MPI_ABI 2u

// Small enough for every MPI to send it without asking the receiver.
#define CKPT_MPI_MOST_POSTED 1024u

extern "C" {

struct CkptMpiMessage {
  int32_t from;
  int32_t tag;
  uint64_t bytes;
  int32_t posted;  // by post()
};

struct CkptMpiApi {
  uint32_t abi;  // CKPT_MPI_ABI

  // Joins the job. After that, rank(), size(), host() and library() ("Open MPI
  // v4.1.4 …") may be called.
  int32_t (*start)();
  int32_t (*rank)();
  int32_t (*size)();
  const char* (*host)();
  const char* (*library)();

  // Returns when the bytes are on their way. Sleeps while it waits: there may
  // be more ranks than processors.
  int32_t (*send)(int32_t to, int32_t tag, const void* bytes, uint64_t count);
  // The next message that has arrived; from = -1 if there is none. Never waits.
  int32_t (*probe)(CkptMpiMessage* message);
  // The message that probe() found.
  int32_t (*receive)(const CkptMpiMessage* message, void* bytes);

  // Copies the bytes, at most CKPT_MPI_MOST_POSTED, and never waits.
  int32_t (*post)(int32_t to, int32_t tag, const void* bytes, uint64_t count);

  // Payload on a channel, 0 to 1023: the receiver calls take() before it lets
  // the sender call give(). Neither waits; the memory must not change until
  // done().
  int32_t (*give)(int32_t to, int32_t channel, const void* bytes,
                  uint64_t count, uint64_t* ticket);
  int32_t (*take)(int32_t from, int32_t channel, void* bytes, uint64_t room,
                  uint64_t* ticket);
  // Sets `bytes` to the number given, or to UINT64_MAX while it is in progress.
  // A ticket is invalid once it is done.
  int32_t (*done)(uint64_t ticket, uint64_t* bytes);

  // Ends all processes of the job with this exit status, wherever they are.
  void (*abort)(int32_t status);
  // Waits until all processes are here, then leaves the job.
  int32_t (*finish)();
  const char* (*error)();
};

// The only exported symbol.
#define CKPT_MPI_ENTRY "ckpt_mpi_api"
typedef const CkptMpiApi* (*CkptMpiEntry)();

}  // extern "C"
