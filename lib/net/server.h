// SPDX-License-Identifier: Apache-2.0
// A web server for this machine's user's browser alone.
//
// It binds 127.0.0.1 only, answers GET and HEAD, one request per connection,
// and refuses a Host that is not itself (a foreign page whose name was made to
// mean 127.0.0.1). Heads, connections and times are bounded: one thread polls
// all connections, another runs the slow answers in order.
//
// Why our own: this file is all we need. Debian's cpp-httplib brings OpenSSL
// and uses a thread per connection; the portable build has neither.
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
  std::shared_ptr<const std::string> body;  // null: the meaning of the status
  std::string policy = "default-src 'none'; frame-ancestors 'none'";
};

// Slow work, run outside the loop. It may throw: that is a 500.
using SlowResponse = std::function<Response()>;
using Answer = std::variant<Response, SlowResponse>;
using Handler = std::function<Answer(const Request&)>;

class Server {
 public:
  // Port 0: a free one. Throws io_error if the port is taken.
  explicit Server(uint16_t port);
  ~Server();
  Server(const Server&) = delete;
  Server& operator=(const Server&) = delete;

  uint16_t port() const { return port_; }
  // Serves until a signal, which ends the process at once (lib/interrupt.h) or,
  // in an InterruptScope, makes this throw Interrupted.
  [[noreturn]] void serve(const Handler& handler);

 private:
  int listener_ = -1;
  uint16_t port_ = 0;
};

// 32 hexadecimal digits that can't be guessed.
std::string random_token();

}  // namespace ckpt::serve
