// SPDX-License-Identifier: Apache-2.0
// A web server for the browser of this machine's user alone.
//
// It binds 127.0.0.1 alone, answers GET and HEAD, one request a connection,
// and refuses a Host that is not itself (a page of elsewhere whose name was
// made to mean 127.0.0.1). Heads, connections and times are bounded: one
// thread polls all connections, another runs the slow answers in their order.
//
// Why our own: the need is this file. Debian's cpp-httplib brings OpenSSL, and
// serves with a thread a connection; the portable build has neither.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <variant>

#include "lib/net/request.h"

namespace ckpt::serve {

struct Response {
  int status = 200;
  std::string type = "application/json";
  std::shared_ptr<const std::string> body;  // null: what the status means
  std::string policy = "default-src 'none'; frame-ancestors 'none'";
};

// What takes long runs beside the loop. It may throw: that is a 500.
using SlowResponse = std::function<Response()>;
using Answer = std::variant<Response, SlowResponse>;
using Handler = std::function<Answer(const Request&)>;

class Server {
 public:
  // Port 0: a free one. Throws an io_error if it is taken.
  explicit Server(uint16_t port);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  uint16_t port() const { return port_; }
  // Until a signal, which ends the process at once (lib/interrupt.h), or in
  // an InterruptScope has Interrupted thrown.
  [[noreturn]] void serve(const Handler& handler);

 private:
  int listener_ = -1;
  uint16_t port_ = 0;
};

// 32 hexadecimal digits that can't be guessed.
std::string random_token();

}  // namespace ckpt::serve
