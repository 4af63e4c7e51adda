// SPDX-License-Identifier: Apache-2.0
#include "tests/support/fault_server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <stdexcept>

namespace ckpt::test {
namespace {

enum Fault : uint8_t {
  kBusy,
  kCut,
  kReset,
  kShifted,
  kLong,
  kFaults,
  kNoFault
};

bool send_all(int socket, const void* data, size_t size) {
  const char* at = static_cast<const char*>(data);
  while (size != 0) {
    const ssize_t n = ::send(socket, at, size, MSG_NOSIGNAL);
    if (n <= 0) return false;
    at += n;
    size -= static_cast<size_t>(n);
  }
  return true;
}

bool send_all(int socket, const std::string& text) {
  return send_all(socket, text.data(), text.size());
}

// What the client sees as "connection reset by peer".
void reset(int socket) {
  const linger at_once = {1, 0};
  ::setsockopt(socket, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
}

struct Asked {
  uint64_t seed = 0, size = 0, first = 0, last = 0;
};

Asked parse(const std::string& head) {
  Asked asked;
  if (std::sscanf(head.c_str(), "GET /%lu/%lu ", &asked.seed, &asked.size) != 2)
    throw std::runtime_error("not a request of the test: " + head);
  const size_t range = head.find("Range: bytes=");
  if (range == head.npos ||
      std::sscanf(head.c_str() + range, "Range: bytes=%lu-%lu", &asked.first,
                  &asked.last) != 2)
    throw std::runtime_error("no range is asked for: " + head);
  asked.last = std::min(asked.last, asked.size - 1);
  return asked;
}

}  // namespace

FaultServer::FaultServer(uint64_t every) : every_(every) {
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const plain = reinterpret_cast<sockaddr*>(&address);
  if (::bind(listener_, plain, length) != 0 ||
      ::listen(listener_, SOMAXCONN) != 0 ||
      ::getsockname(listener_, plain, &length) != 0)
    throw std::runtime_error("no port on loopback");
  port_ = ntohs(address.sin_port);
  accepts_ = std::thread([this] { accept_all(); });
}

FaultServer::~FaultServer() {
  stop_ = true;
  accepts_.join();
  ::close(listener_);
}

std::string FaultServer::url(uint64_t seed, uint64_t size) const {
  return fmt::format("http://127.0.0.1:{}/{}/{}", port_, seed, size);
}

std::byte FaultServer::byte_of(uint64_t seed, uint64_t offset) {
  return static_cast<std::byte>((offset + seed) * 0x9E3779B97F4A7C15U >> 56);
}

void FaultServer::accept_all() {
  std::vector<std::jthread> clients;
  while (!stop_) {
    pollfd waits = {listener_, POLLIN, 0};
    if (::poll(&waits, 1, 20) <= 0) continue;
    const int socket = ::accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
    if (socket >= 0) clients.emplace_back([this, socket] { serve(socket); });
  }
}

void FaultServer::serve(int socket) {
  const int yes = 1;
  ::setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
  std::string in;
  char bytes[4096];
  while (!stop_) {
    const size_t end = in.find("\r\n\r\n");
    if (end != in.npos) {
      const std::string head = in.substr(0, end + 4);
      in.erase(0, end + 4);
      if (!answer(socket, head)) break;
      continue;
    }
    pollfd waits = {socket, POLLIN, 0};
    if (::poll(&waits, 1, 20) == 0) continue;
    const ssize_t n = ::recv(socket, bytes, sizeof bytes, 0);
    if (n <= 0) break;
    in.append(bytes, static_cast<size_t>(n));
  }
  ::close(socket);
}

// Returns false if the connection ends with it.
bool FaultServer::answer(int socket, const std::string& head) {
  const Asked asked = parse(head);
  const uint64_t number = ++requests_;
  const bool bad = every_ != 0 && number % every_ == 0;
  const auto fault =
      bad ? static_cast<Fault>(number / every_ % kFaults) : kNoFault;
  if (fault == kBusy)
    return send_all(socket,
                    "HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\n\r\n");
  const uint64_t shift = fault == kShifted ? 1 : 0;
  std::vector<std::byte> body(asked.last + 1 - asked.first);
  for (size_t i = 0; i < body.size(); ++i)
    body[i] = byte_of(asked.seed, asked.first + shift + i);
  if (fault == kLong) body.resize(body.size() + 5);
  const size_t sent =
      fault == kCut || fault == kReset ? body.size() / 3 : body.size();
  const bool stands =
      send_all(socket,
               fmt::format("HTTP/1.1 206 Partial Content\r\nETag: \"{}\"\r\n"
                           "Content-Range: bytes {}-{}/{}\r\n"
                           "Content-Length: {}\r\n\r\n",
                           asked.seed, asked.first + shift, asked.last + shift,
                           asked.size, body.size())) &&
      send_all(socket, body.data(), sent);
  if (fault == kReset) reset(socket);
  return stands && sent == body.size();
}

}  // namespace ckpt::test
