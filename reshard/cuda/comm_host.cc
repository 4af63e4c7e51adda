// SPDX-License-Identifier: Apache-2.0
// The exchange by sockets of one machine, for tests: between processes, or
// threads that play ranks. As with NCCL, a group is done when all of it is,
// groups follow one another, a send larger than the buffers in between waits
// for its receiver, and a rank that ends also ends the others' waits. It fails
// in the group after CKPT_CUDA_HOST_GROUPS, if that is in the environment.
#include <fcntl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <utility>
#include <vector>

#include "reshard/cuda/comm.h"

namespace ckpt::cuda {
namespace {

[[noreturn]] void fail(const char* what) {
  throw std::runtime_error(std::string(what) + ": " + std::strerror(errno));
}

class Socket {
 public:
  Socket() = default;
  explicit Socket(int fd) : fd_(fd) {}
  ~Socket() {
    if (fd_ >= 0) ::close(fd_);
  }
  Socket(Socket&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Socket& operator=(Socket&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }

 private:
  int fd_ = -1;
};

// Where `from` listens for `to`: a name outside any file system, which
// disappears with the socket.
struct Address {
  Address(const std::string& id, uint32_t from, uint32_t to) {
    const std::string name =
        "ckpt-" + id + "-" + std::to_string(from) + "-" + std::to_string(to);
    at.sun_family = AF_UNIX;
    name.copy(at.sun_path + 1, sizeof at.sun_path - 1);
    size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 +
                                  name.size());
  }
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&at); }
  sockaddr_un at{};
  socklen_t size = 0;
};

Socket make_socket() {
  Socket made(::socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!made) fail("making a socket");
  return made;
}

// One direction of a parcel: its length, then its bytes.
struct Transfer {
  explicit Transfer(const Parcel& given) : parcel(given) {}
  bool done() const { return moved == sizeof(uint64_t) + parcel.bytes; }
  Parcel parcel;
  uint64_t length = 0;  // as the sender states it
  uint64_t moved = 0;   // of length and bytes
};

bool would_wait() {
  return errno == EAGAIN || errno == EWOULDBLOCK || errno == EINTR;
}

// Moves as much as the socket accepts now.
template <class Move>
void go_on(Transfer& transfer, Move move) {
  while (!transfer.done()) {
    auto* at = reinterpret_cast<std::byte*>(&transfer.length) + transfer.moved;
    uint64_t left = sizeof(uint64_t) - transfer.moved;
    if (transfer.moved >= sizeof(uint64_t)) {
      if (transfer.length != transfer.parcel.bytes)
        throw std::runtime_error("exchanging: ranks differ in their counts");
      at = transfer.parcel.at + (transfer.moved - sizeof(uint64_t));
      left = transfer.parcel.bytes - (transfer.moved - sizeof(uint64_t));
    }
    const ssize_t n = move(at, left);
    if (n == 0 || (n < 0 && (errno == EPIPE || errno == ECONNRESET)))
      throw std::runtime_error("exchanging: a rank has ended");
    if (n < 0 && would_wait()) return;
    if (n < 0) fail("exchanging");
    transfer.moved += static_cast<uint64_t>(n);
  }
}

}  // namespace

struct Comm {
  std::string id;
  uint32_t rank = 0;
  // By rank; of two ranks, the lower one listens.
  std::vector<Socket> listening, peers;
  std::vector<Transfer> sends, receives;
  uint64_t groups_left = UINT64_MAX;

  bool meet(uint32_t other);
  template <class Move>
  void move_all(std::vector<Transfer>& transfers, Move move);
};

bool Comm::meet(uint32_t other) {
  if (other > rank) {
    peers[other] = Socket(::accept4(listening[other].get(), nullptr, nullptr,
                                    SOCK_NONBLOCK | SOCK_CLOEXEC));
    if (!peers[other] && !would_wait()) fail("meeting another rank");
    return static_cast<bool>(peers[other]);
  }
  const Address address(id, other, rank);
  Socket made = make_socket();
  if (::connect(made.get(), address.get(), address.size) == 0)
    peers[other] = std::move(made);
  else if (errno != ECONNREFUSED && !would_wait())
    fail("meeting another rank");
  return static_cast<bool>(peers[other]);
}

// Moves the transfers with one peer in their order.
template <class Move>
void Comm::move_all(std::vector<Transfer>& transfers, Move move) {
  std::vector<bool> waits(peers.size());
  for (Transfer& transfer : transfers) {
    const uint32_t other = transfer.parcel.rank;
    if (waits[other]) continue;
    go_on(transfer, [&](std::byte* at, uint64_t bytes) {
      return move(peers[other].get(), at, bytes);
    });
    waits[other] = !transfer.done();
  }
  std::erase_if(transfers, [](const Transfer& t) { return t.done(); });
}

std::string comm_version() { return ", and sockets for NCCL"; }
bool comm_exists() { return true; }

void comm_id(unsigned char* id) {
  unsigned char random[16] = {};
  if (::getrandom(random, sizeof random, 0) != sizeof random)
    fail("making an id for the ranks");
  std::memset(id, 0, CKPT_CUDA_ID_BYTES);
  for (size_t i = 0; i < sizeof random; ++i) {
    id[2 * i] = static_cast<unsigned char>("0123456789abcdef"[random[i] >> 4]);
    id[2 * i + 1] =
        static_cast<unsigned char>("0123456789abcdef"[random[i] & 15]);
  }
}

Comm* comm_start(uint32_t rank, uint32_t size, const unsigned char* id) {
  auto comm = std::make_unique<Comm>();
  comm->id.assign(reinterpret_cast<const char*>(id), 32);
  comm->rank = rank;
  if (const char* groups = std::getenv("CKPT_CUDA_HOST_GROUPS"))
    comm->groups_left = std::strtoull(groups, nullptr, 10);
  comm->listening.resize(size);
  comm->peers.resize(size);
  for (uint32_t other = rank + 1; other < size; ++other) {
    const Address address(comm->id, rank, other);
    Socket& made = comm->listening[other] = make_socket();
    if (::bind(made.get(), address.get(), address.size) != 0 ||
        ::listen(made.get(), 1) != 0)
      fail("listening for another rank");
  }
  return comm.release();
}

bool comm_ready(Comm* comm) {
  bool met = true;
  for (uint32_t other = 0; other < comm->peers.size(); ++other)
    if (other != comm->rank && !comm->peers[other])
      met = comm->meet(other) && met;
  if (!met) return false;
  comm->move_all(comm->sends, [](int fd, std::byte* at, uint64_t bytes) {
    return ::send(fd, at, bytes, MSG_NOSIGNAL);
  });
  comm->move_all(comm->receives, [](int fd, std::byte* at, uint64_t bytes) {
    return ::recv(fd, at, bytes, 0);
  });
  return comm->sends.empty() && comm->receives.empty();
}

void comm_exchange(Comm* comm, std::span<const Parcel> sends,
                   std::span<const Parcel> receives, Stream* stream) {
  wait(stream);  // uploads are complete
  if (comm->groups_left-- == 0)
    throw std::runtime_error("exchanging: broken, as a test wants it");
  for (const Parcel& parcel : sends)
    comm->sends.emplace_back(parcel).length = parcel.bytes;
  for (const Parcel& parcel : receives) comm->receives.emplace_back(parcel);
}

void comm_abort(Comm* comm) noexcept { delete comm; }

}  // namespace ckpt::cuda
