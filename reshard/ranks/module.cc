// SPDX-License-Identifier: Apache-2.0
// libckpt_mpi.so: ranks/abi.h for whatever MPI it is built with. Only point to
// point, so that a failed process can't leave the others in a collective.
#include <dlfcn.h>
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <iterator>
#include <list>
#include <string>
#include <thread>
#include <unordered_map>

#include "reshard/ranks/abi.h"

namespace {

// Tags of MPI:    0 … 1023   payload on channels, always received on request
//              1024 + 2t    a message of tag t: first how many bytes there
//                           are, then those, in parts: MPI counts in int
//              1025 + 2t    a posted message of tag t, whole
constexpr int kChannels = 1024;
constexpr uint64_t kPart = uint64_t{16} << 20;
// If a part takes longer, the process at its other end is stopped: the threads
// that talk do nothing else.
constexpr auto kLongest = std::chrono::seconds(15);
constexpr int tag_of(int32_t tag, bool posted) {
  return kChannels + 2 * tag + (posted ? 1 : 0);
}

// Posted bytes, until MPI has them.
struct Posted {
  MPI_Request request = MPI_REQUEST_NULL;
  std::string bytes;
};

struct State {
  std::string error;
  char host[MPI_MAX_PROCESSOR_NAME + 1] = {};
  char library[MPI_MAX_LIBRARY_VERSION_STRING + 1] = {};
  int rank = 0;
  int size = 1;
  MPI_Comm comm = MPI_COMM_WORLD;
  bool guest = false;  // in a program that initialised MPI itself
  std::list<Posted> posted;
  std::unordered_map<uint64_t, MPI_Request> tickets;
  uint64_t next_ticket = 0;
};
State state;

int32_t check(int code, const char* what) {
  if (code == MPI_SUCCESS) return 0;
  char text[MPI_MAX_ERROR_STRING + 1] = {};
  int length = 0;
  MPI_Error_string(code, text, &length);
  state.error = std::string(what) + ": " + text;
  return 1;
}

// The module is opened with RTLD_LOCAL, but Open MPI later opens parts of its
// own, which look for the library's symbols in the global scope.
void make_global() {
  Dl_info info;
  if (::dladdr(reinterpret_cast<void*>(&MPI_Init_thread), &info) != 0 &&
      info.dli_fname)
    ::dlopen(info.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
}

int32_t start() {
  make_global();
  int provided = 0, running = 0;
  if (check(MPI_Initialized(&running), "MPI_Initialized")) return 1;
  state.guest = running != 0;
  if (state.guest ? check(MPI_Query_thread(&provided), "MPI_Query_thread")
                  : check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED,
                                          &provided),
                          "MPI_Init_thread"))
    return 1;
  if (provided < MPI_THREAD_FUNNELED) {
    state.error = "this MPI allows no threads beside it (MPI_THREAD_FUNNELED)";
    return 1;
  }
  // The program's own messages are not ours.
  if (state.guest &&
      check(MPI_Comm_dup(MPI_COMM_WORLD, &state.comm), "MPI_Comm_dup"))
    return 1;
  MPI_Comm_set_errhandler(state.comm, MPI_ERRORS_RETURN);
  int length = 0;
  MPI_Get_processor_name(state.host, &length);
  MPI_Get_library_version(state.library, &length);
  std::replace(state.library, state.library + sizeof(state.library) - 1, '\n',
               ' ');
  MPI_Comm_rank(state.comm, &state.rank);
  return check(MPI_Comm_size(state.comm, &state.size), "MPI_Comm_size");
}

// MPI_Wait keeps a processor busy; this yields it to whoever has work. Only
// time in which this process ran counts: a job may be suspended and resumed.
int32_t wait(MPI_Request& request, const char* what, int peer) {
  auto pause = std::chrono::microseconds(20);
  for (std::chrono::microseconds waited{0}; waited < kLongest;
       waited += pause) {
    int done = 0;
    if (check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), what)) return 1;
    if (done) return 0;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds(2000));
  }
  state.error = std::string(what) + ": rank " + std::to_string(peer) +
                " has not gone on with a message for " +
                std::to_string(kLongest.count()) +
                " s; its process may be stopped";
  return 1;
}

int32_t send_part(int to, int tag, const void* bytes, uint64_t count) {
  MPI_Request request;
  if (check(MPI_Isend(bytes, static_cast<int>(count), MPI_BYTE, to, tag,
                      state.comm, &request),
            "MPI_Isend"))
    return 1;
  return wait(request, "MPI_Isend", to);
}

int32_t send(int32_t to, int32_t tag, const void* bytes, uint64_t count) {
  tag = tag_of(tag, false);
  if (send_part(to, tag, &count, sizeof(count))) return 1;
  const char* const at = static_cast<const char*>(bytes);
  for (uint64_t done = 0; done < count; done += kPart)
    if (send_part(to, tag, at + done, std::min(kPart, count - done))) return 1;
  return 0;
}

// Forgets what MPI has taken.
int32_t reap() {
  for (auto post = state.posted.begin(); post != state.posted.end();) {
    int done = 0;
    if (check(MPI_Test(&post->request, &done, MPI_STATUS_IGNORE), "MPI_Isend"))
      return 1;
    post = done ? state.posted.erase(post) : std::next(post);
  }
  return 0;
}

int32_t post(int32_t to, int32_t tag, const void* bytes, uint64_t count) {
  if (count > CKPT_MPI_MOST_POSTED) {
    state.error = "more bytes than may be posted: " + std::to_string(count);
    return 1;
  }
  Posted& post = state.posted.emplace_back();
  post.bytes.assign(static_cast<const char*>(bytes), count);
  return check(MPI_Isend(post.bytes.data(), static_cast<int>(count), MPI_BYTE,
                         to, tag_of(tag, true), state.comm, &post.request),
               "MPI_Isend");
}

int32_t keep(MPI_Request request, uint64_t* ticket) {
  *ticket = state.next_ticket++;
  state.tickets.emplace(*ticket, request);
  return 0;
}

int32_t give(int32_t to, int32_t channel, const void* bytes, uint64_t count,
             uint64_t* ticket) {
  MPI_Request request;
  if (check(MPI_Isend(bytes, static_cast<int>(count), MPI_BYTE, to, channel,
                      state.comm, &request),
            "MPI_Isend"))
    return 1;
  return keep(request, ticket);
}

int32_t take(int32_t from, int32_t channel, void* bytes, uint64_t room,
             uint64_t* ticket) {
  MPI_Request request;
  if (check(MPI_Irecv(bytes, static_cast<int>(room), MPI_BYTE, from, channel,
                      state.comm, &request),
            "MPI_Irecv"))
    return 1;
  return keep(request, ticket);
}

int32_t done(uint64_t ticket, uint64_t* bytes) {
  *bytes = UINT64_MAX;
  const auto found = state.tickets.find(ticket);
  if (found == state.tickets.end()) {
    state.error = "a ticket that is over: " + std::to_string(ticket);
    return 1;
  }
  int over = 0, count = 0;
  MPI_Status status;
  if (check(MPI_Test(&found->second, &over, &status), "MPI_Test")) return 1;
  if (!over) return 0;
  state.tickets.erase(found);
  MPI_Get_count(&status, MPI_BYTE, &count);
  *bytes = static_cast<uint64_t>(std::max(count, 0));  // undefined for sends
  return 0;
}

int32_t receive_part(int from, int tag, void* bytes, uint64_t count) {
  MPI_Request request;
  if (check(MPI_Irecv(bytes, static_cast<int>(count), MPI_BYTE, from, tag,
                      state.comm, &request),
            "MPI_Irecv"))
    return 1;
  return wait(request, "MPI_Irecv", from);
}

int32_t probe(CkptMpiMessage* message) {
  *message = {-1, 0, 0, 0};
  if (reap()) return 1;
  int there = 0;
  MPI_Status status;
  if (check(
          MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, state.comm, &there, &status),
          "MPI_Iprobe"))
    return 1;
  // Payload is never found here: its receiver asked for it before it was sent,
  // so it goes to that request.
  if (!there) return 0;
  const int32_t tag = (status.MPI_TAG - kChannels) / 2;
  const int32_t posted = (status.MPI_TAG - kChannels) % 2;
  uint64_t bytes = 0;
  if (posted) {
    int count = 0;
    MPI_Get_count(&status, MPI_BYTE, &count);
    bytes = static_cast<uint64_t>(count);
  } else if (receive_part(status.MPI_SOURCE, status.MPI_TAG, &bytes,
                          sizeof(bytes))) {
    return 1;
  }
  *message = {status.MPI_SOURCE, tag, bytes, posted};
  return 0;
}

int32_t receive(const CkptMpiMessage* message, void* bytes) {
  char* const at = static_cast<char*>(bytes);
  const int tag = tag_of(message->tag, message->posted != 0);
  if (message->posted)
    return receive_part(message->from, tag, at, message->bytes);
  for (uint64_t done = 0; done < message->bytes; done += kPart)
    if (receive_part(message->from, tag, at + done,
                     std::min(kPart, message->bytes - done)))
      return 1;
  return 0;
}

// Launchers may lose what a process printed just before: hydra does, now and
// then.
void abort_job(int32_t status) {
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  MPI_Abort(MPI_COMM_WORLD, status);
  std::_Exit(status);
}

int32_t finish() {
  int over = 0;
  if (check(MPI_Finalized(&over), "MPI_Finalized") || over) return over ? 0 : 1;
  if (state.guest) return check(MPI_Comm_free(&state.comm), "MPI_Comm_free");
  return check(MPI_Finalize(), "MPI_Finalize");
}

const CkptMpiApi api = {
    .abi = CKPT_MPI_ABI,
    .start = start,
    .rank = [] { return static_cast<int32_t>(state.rank); },
    .size = [] { return static_cast<int32_t>(state.size); },
    .host = []() -> const char* { return state.host; },
    .library = []() -> const char* { return state.library; },
    .send = send,
    .probe = probe,
    .receive = receive,
    .post = post,
    .give = give,
    .take = take,
    .done = done,
    .abort = abort_job,
    .finish = finish,
    .error = []() -> const char* { return state.error.c_str(); },
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const CkptMpiApi*
ckpt_mpi_api() {
  return &api;
}
