// SPDX-License-Identifier: Apache-2.0
#include "lib/net/server.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <exception>
#include <list>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

#include "ckpt/error.h"
#include "lib/interrupt.h"

namespace ckpt::serve {
namespace {

using ServeClock = std::chrono::steady_clock;
using std::chrono::seconds;

// The thread that runs a server's slow answers, in order.

class ServeQueue {
 public:
  ServeQueue();
  ~ServeQueue();  // waits for the running one
  ServeQueue(const ServeQueue&) = delete;
  ServeQueue& operator=(const ServeQueue&) = delete;

  void add(uint64_t connection, SlowResponse job);
  // Its client has gone: if it is still waiting, it is not started.
  void forget(uint64_t connection);
  std::vector<std::pair<uint64_t, Response>> take_done();
  // Readable when there is something to take.
  int wakeup() const { return event_; }

 private:
  void work();

  int event_;
  std::mutex mutex_;
  std::condition_variable more_;
  std::deque<std::pair<uint64_t, SlowResponse>> jobs_;
  std::vector<std::pair<uint64_t, Response>> done_;
  bool stop_ = false;
  std::thread thread_;  // last: it uses the others
};

int new_event() {
  const int event = ::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (event < 0) throw io_error("", "eventfd", errno);
  return event;
}

Response run_slow(const SlowResponse& job) {
  try {
    return job();
  } catch (const std::exception&) {
    // The job itself reports what its user can fix. This is a lack of memory,
    // or a signal, which the loop sees by itself.
    return {.status = 500, .body = nullptr};
  }
}

ServeQueue::ServeQueue() : event_(new_event()), thread_([this] { work(); }) {}

ServeQueue::~ServeQueue() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  more_.notify_one();
  thread_.join();
  ::close(event_);
}

void ServeQueue::add(uint64_t connection, SlowResponse job) {
  {
    const std::lock_guard lock(mutex_);
    jobs_.emplace_back(connection, std::move(job));
  }
  more_.notify_one();
}

void ServeQueue::forget(uint64_t connection) {
  const std::lock_guard lock(mutex_);
  std::erase_if(jobs_,
                [&](const auto& job) { return job.first == connection; });
}

std::vector<std::pair<uint64_t, Response>> ServeQueue::take_done() {
  uint64_t count = 0;
  // Empty or not, finished work is in the list.
  [[maybe_unused]] const ssize_t n = ::read(event_, &count, sizeof count);
  const std::lock_guard lock(mutex_);
  return std::exchange(done_, {});
}

void ServeQueue::work() {
  std::unique_lock lock(mutex_);
  for (;;) {
    more_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
    if (stop_) return;
    const auto [connection, job] = std::move(jobs_.front());
    jobs_.pop_front();
    lock.unlock();
    Response response = run_slow(job);
    lock.lock();
    done_.emplace_back(connection, std::move(response));
    const uint64_t one = 1;
    [[maybe_unused]] const ssize_t n = ::write(event_, &one, sizeof one);
  }
}

// A browser opens at most six connections to one host.
constexpr size_t kMostClients = 32;
constexpr seconds kHeadTime{5}, kSendTime{60}, kDrainTime{1};

std::string_view reason(int status) {
  switch (status) {
    case 200:
      return "OK";
    case 400:
      return "Bad Request";
    case 403:
      return "Forbidden";
    case 404:
      return "Not Found";
    case 405:
      return "Method Not Allowed";
    case 408:
      return "Request Timeout";
    case 421:
      return "Misdirected Request";
    case 422:
      return "Unprocessable Content";
    case 431:
      return "Request Header Fields Too Large";
    case 505:
      return "HTTP Version Not Supported";
    default:
      return "Internal Server Error";
  }
}

std::string response_head(const Response& response, size_t length) {
  return fmt::format(
      "HTTP/1.1 {} {}\r\n"
      "Content-Type: {}; charset=utf-8\r\n"
      "Content-Length: {}\r\n"
      "{}"
      "Connection: close\r\n"
      "Cache-Control: no-store\r\n"
      "Content-Security-Policy: {}\r\n"
      "X-Content-Type-Options: nosniff\r\n"
      "X-Frame-Options: DENY\r\n"
      "Referrer-Policy: no-referrer\r\n"
      "Cross-Origin-Resource-Policy: same-origin\r\n"
      "\r\n",
      response.status, reason(response.status), response.type, length,
      response.status == 405 ? "Allow: GET, HEAD\r\n" : "", response.policy);
}

// A client, from its first byte to its last. After a reply, keep reading what
// the client still sends: closing earlier would discard the reply.
struct Client {
  enum class Step : uint8_t { kHead, kAnswer, kSend, kDrain, kDone };
  int socket;
  uint64_t id;
  ServeClock::time_point deadline;
  Step step = Step::kHead;
  bool bodyless = false;  // HEAD
  std::string in, head;
  std::shared_ptr<const std::string> body;
  size_t sent = 0;  // of head and body
};

class Loop {
 public:
  Loop(int listener, uint16_t port, const Handler& handler)
      : listener_(listener),
        hosts_{fmt::format("127.0.0.1:{}", port),
               fmt::format("localhost:{}", port)},
        handler_(handler) {}
  ~Loop() {
    for (const Client& client : clients_) ::close(client.socket);
  }
  Loop(const Loop&) = delete;
  Loop& operator=(const Loop&) = delete;

  void turn();

 private:
  void wait();
  void accept_clients();
  void go_on(Client& client);
  void read_head(Client& client);
  void answer(Client& client);
  void reply(Client& client, const Response& response);
  void refuse(Client& client, int status);
  void send_reply(Client& client);
  void drain(Client& client);
  void late(Client& client);

  int listener_;
  std::string hosts_[2];
  const Handler& handler_;
  std::list<Client> clients_;
  std::vector<pollfd> polled_;  // the queue, the clients, the listener
  uint64_t next_id_ = 0;
  ServeQueue queue_;
};

void Loop::wait() {
  polled_.assign(1, {queue_.wakeup(), POLLIN, 0});
  for (const Client& client : clients_) {
    const bool sends = client.step == Client::Step::kSend;
    // A client that waits for an answer sends nothing; watch only for its
    // leaving.
    const bool waits = client.step == Client::Step::kAnswer;
    const int events = sends ? POLLOUT : waits ? POLLRDHUP : POLLIN;
    polled_.push_back({client.socket, static_cast<short>(events), 0});
  }
  if (clients_.size() < kMostClients) polled_.push_back({listener_, POLLIN, 0});
  // How long deadlines, and a signal delivered to another thread, may wait.
  constexpr int kTick = 200;
  if (::poll(polled_.data(), polled_.size(), kTick) < 0) {
    if (errno != EINTR) throw io_error("127.0.0.1", "poll", errno);
    for (pollfd& each : polled_) each.revents = 0;
  }
}

void Loop::turn() {
  wait();
  const bool more =
      polled_.size() > 1 + clients_.size() && polled_.back().revents != 0;
  size_t at = 0;
  const ServeClock::time_point now = ServeClock::now();
  for (Client& client : clients_) {
    const short events = polled_[++at].revents;
    if (client.step == Client::Step::kAnswer) {
      if (events != 0) client.step = Client::Step::kDone;
    } else if (events != 0) {
      go_on(client);
    }
    if (client.step != Client::Step::kAnswer && now >= client.deadline)
      late(client);
  }
  for (auto& [id, response] : queue_.take_done())
    for (Client& client : clients_)
      if (client.id == id && client.step == Client::Step::kAnswer)
        reply(client, response);
  if (more) accept_clients();
  std::erase_if(clients_, [this](const Client& client) {
    if (client.step != Client::Step::kDone) return false;
    queue_.forget(client.id);
    ::close(client.socket);
    return true;
  });
}

void Loop::accept_clients() {
  while (clients_.size() < kMostClients) {
    const int socket =
        ::accept4(listener_, nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC);
    if (socket < 0) return;  // none is waiting, or it has gone
    clients_.push_back({.socket = socket,
                        .id = next_id_++,
                        .deadline = ServeClock::now() + kHeadTime,
                        .in = {},
                        .head = {},
                        .body = {}});
  }
}

void Loop::go_on(Client& client) {
  switch (client.step) {
    case Client::Step::kHead:
      return read_head(client);
    case Client::Step::kSend:
      return send_reply(client);
    case Client::Step::kDrain:
      return drain(client);
    case Client::Step::kAnswer:
    case Client::Step::kDone:
      return;
  }
}

void Loop::read_head(Client& client) {
  char bytes[kMostHead];
  const ssize_t n = ::recv(client.socket, bytes, sizeof bytes, 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) {
    client.step = Client::Step::kDone;
    return;
  }
  client.in.append(bytes, static_cast<size_t>(n));
  const size_t end = client.in.find("\r\n\r\n");
  if (std::min(end, client.in.size()) > kMostHead - 4)
    return refuse(client, 431);
  if (end == client.in.npos) return;
  client.in.resize(end + 4);
  answer(client);
}

void Loop::answer(Client& client) {
  Request request;
  const int status = parse_request(client.in, request);
  client.in = {};
  client.bodyless = request.method == "HEAD";
  if (status != 0) return refuse(client, status);
  if (std::ranges::find(hosts_, request.host) == std::end(hosts_))
    return refuse(client, 421);
  Answer answer = handler_(request);
  if (const auto* const response = std::get_if<Response>(&answer))
    return reply(client, *response);
  client.step = Client::Step::kAnswer;
  queue_.add(client.id, std::get<SlowResponse>(std::move(answer)));
}

void Loop::refuse(Client& client, int status) {
  reply(client, {.status = status, .body = nullptr});
}

void Loop::reply(Client& client, const Response& response) {
  client.body = response.body;
  if (client.body == nullptr)
    client.body = std::make_shared<const std::string>(
        fmt::format("{{\"message\":\"{}\"}}\n", reason(response.status)));
  client.head = response_head(response, client.body->size());
  if (client.bodyless) client.body = std::make_shared<const std::string>();
  client.step = Client::Step::kSend;
  client.deadline = ServeClock::now() + kSendTime;
  send_reply(client);
}

void Loop::send_reply(Client& client) {
  for (;;) {
    const bool in_head = client.sent < client.head.size();
    const std::string& text = in_head ? client.head : *client.body;
    const size_t at = client.sent - (in_head ? 0 : client.head.size());
    if (at == text.size()) break;
    const ssize_t n =
        ::send(client.socket, text.data() + at, text.size() - at, MSG_NOSIGNAL);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) {
      client.step = Client::Step::kDone;
      return;
    }
    client.sent += static_cast<size_t>(n);
  }
  ::shutdown(client.socket, SHUT_WR);
  client.step = Client::Step::kDrain;
  client.deadline = ServeClock::now() + kDrainTime;
}

void Loop::drain(Client& client) {
  char bytes[4096];
  const ssize_t n = ::recv(client.socket, bytes, sizeof bytes, 0);
  if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
  if (n <= 0) client.step = Client::Step::kDone;
}

void Loop::late(Client& client) {
  if (client.step == Client::Step::kHead)
    refuse(client, 408);
  else
    client.step = Client::Step::kDone;
}

}  // namespace

Server::Server(uint16_t port) {
  const std::string name = fmt::format("127.0.0.1:{}", port);
  listener_ = ::socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
  if (listener_ < 0) throw io_error(name, "socket", errno);
  const int yes = 1;  // a port that was served a moment ago is free
  ::setsockopt(listener_, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
  sockaddr_in address = {};
  address.sin_family = AF_INET;
  address.sin_port = htons(port);
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  auto* const plain = reinterpret_cast<sockaddr*>(&address);
  const bool listens = ::bind(listener_, plain, length) == 0 &&
                       ::listen(listener_, SOMAXCONN) == 0 &&
                       ::getsockname(listener_, plain, &length) == 0;
  if (!listens) {
    const int why = errno;
    ::close(listener_);
    throw io_error(name, "listen", why)
        .with_hint("without --port a free one is taken");
  }
  port_ = ntohs(address.sin_port);
}

Server::~Server() { ::close(listener_); }

void Server::serve(const Handler& handler) {
  Loop loop(listener_, port_, handler);
  while (!interrupted()) loop.turn();
  throw Interrupted("stopped");
}

std::string random_token() {
  unsigned char bytes[16];
  if (::getrandom(bytes, sizeof bytes, 0) != sizeof bytes)
    throw io_error("", "getrandom", errno);
  std::string token;
  for (const unsigned char byte : bytes) token += fmt::format("{:02x}", byte);
  return token;
}

}  // namespace ckpt::serve
