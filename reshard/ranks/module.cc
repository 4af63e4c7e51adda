// libckpt_mpi.so: ranks/abi.h for whatever MPI it is built with. Point to point
// only: a process that failed can't leave the others in a collective.
#include <dlfcn.h>
#include <mpi.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string>
#include <thread>

#include "reshard/ranks/abi.h"

namespace {

// MPI counts in int. A message of more bytes goes in several parts, after one
// that says how many bytes there are.
constexpr uint64_t kPart = uint64_t{256} << 20;

struct State {
  std::string error;
  char host[MPI_MAX_PROCESSOR_NAME + 1] = {};
  char library[MPI_MAX_LIBRARY_VERSION_STRING + 1] = {};
  int rank = 0;
  int size = 1;
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

// The module is opened for itself (RTLD_LOCAL), but Open MPI opens parts of
// its own later, which look for symbols of the library in the global scope.
void make_global() {
  Dl_info info;
  if (::dladdr(reinterpret_cast<void*>(&MPI_Init_thread), &info) != 0 &&
      info.dli_fname)
    ::dlopen(info.dli_fname, RTLD_NOW | RTLD_GLOBAL | RTLD_NOLOAD);
}

int32_t start() {
  make_global();
  int provided = 0;
  if (check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided),
            "MPI_Init_thread"))
    return 1;
  if (provided < MPI_THREAD_FUNNELED) {
    state.error = "this MPI allows no threads beside it (MPI_THREAD_FUNNELED)";
    return 1;
  }
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  int length = 0;
  MPI_Get_processor_name(state.host, &length);
  MPI_Get_library_version(state.library, &length);
  std::replace(state.library, state.library + sizeof(state.library) - 1, '\n',
               ' ');
  MPI_Comm_rank(MPI_COMM_WORLD, &state.rank);
  return check(MPI_Comm_size(MPI_COMM_WORLD, &state.size), "MPI_Comm_size");
}

// MPI_Wait keeps a processor busy; this gives it to whoever has work.
int32_t wait(MPI_Request& request, const char* what) {
  auto pause = std::chrono::microseconds(20);
  for (;;) {
    int done = 0;
    if (check(MPI_Test(&request, &done, MPI_STATUS_IGNORE), what)) return 1;
    if (done) return 0;
    std::this_thread::sleep_for(pause);
    pause = std::min(pause * 2, std::chrono::microseconds(2000));
  }
}

int32_t send_part(int to, int tag, const void* bytes, uint64_t count) {
  MPI_Request request;
  if (check(MPI_Isend(bytes, static_cast<int>(count), MPI_BYTE, to, tag,
                      MPI_COMM_WORLD, &request),
            "MPI_Isend"))
    return 1;
  return wait(request, "MPI_Isend");
}

int32_t send(int32_t to, int32_t tag, const void* bytes, uint64_t count) {
  if (send_part(to, tag, &count, sizeof(count))) return 1;
  const char* const at = static_cast<const char*>(bytes);
  for (uint64_t done = 0; done < count; done += kPart)
    if (send_part(to, tag, at + done, std::min(kPart, count - done))) return 1;
  return 0;
}

int32_t receive_part(int from, int tag, void* bytes, uint64_t count) {
  MPI_Request request;
  if (check(MPI_Irecv(bytes, static_cast<int>(count), MPI_BYTE, from, tag,
                      MPI_COMM_WORLD, &request),
            "MPI_Irecv"))
    return 1;
  return wait(request, "MPI_Irecv");
}

int32_t probe(CkptMpiMessage* message) {
  *message = {-1, 0, 0};
  int there = 0;
  MPI_Status status;
  if (check(MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, MPI_COMM_WORLD, &there,
                       &status),
            "MPI_Iprobe"))
    return 1;
  if (!there) return 0;
  uint64_t count = 0;
  if (receive_part(status.MPI_SOURCE, status.MPI_TAG, &count, sizeof(count)))
    return 1;
  *message = {status.MPI_SOURCE, status.MPI_TAG, count};
  return 0;
}

int32_t receive(const CkptMpiMessage* message, void* bytes) {
  char* const at = static_cast<char*>(bytes);
  for (uint64_t done = 0; done < message->bytes; done += kPart)
    if (receive_part(message->from, message->tag, at + done,
                     std::min(kPart, message->bytes - done)))
      return 1;
  return 0;
}

void abort_job(int32_t status) {
  MPI_Abort(MPI_COMM_WORLD, status);
  std::_Exit(status);
}

int32_t finish() { return check(MPI_Finalize(), "MPI_Finalize"); }

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
    .abort = abort_job,
    .finish = finish,
    .error = []() -> const char* { return state.error.c_str(); },
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const CkptMpiApi*
ckpt_mpi_api() {
  return &api;
}
