// SPDX-License-Identifier: Apache-2.0
// Requests for bytes. A few threads run all of them (libcurl's multi
// interface), so that many are in flight at once; callers that want an answer
// wait.
//
// Temporary failures are retried from the byte that was reached, with waits
// that double and vary at random. A reply that is not what was asked for
// (another range, another version, more bytes) is an error, never data.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ckpt/error.h"
#include "lib/io/file.h"

namespace ckpt::net {

// AWS Signature Version 4, as libcurl computes it.
struct Signing {
  std::string scheme;  // "aws:amz:us-east-1:s3"
  std::string key;
  std::string secret;
};

// The parts of an attempt that go into other kinds of signature.
struct Attempt {
  std::string method;  // "GET"
  std::string range;   // "bytes=0-99"; "" for all
  std::string if_match;
};

// The version of a file that is meant: replies that name another are refused.
struct Version {
  std::string etag;           // as in the header; "" if none
  std::string last_modified;  // the same
  std::optional<uint64_t> size;
  // The host that named the version, if the URL was redirected to it; else the
  // URL's.
  std::string origin = {};
};

struct Request {
  std::string path;  // for messages: without secrets
  std::string url;
  bool head = false;
  // For requests that change something: "PUT", "POST", "DELETE"; else "". Sends
  // `text`, or bytes of a file, read as they are sent.
  std::string method = {};
  std::string text = {};
  std::shared_ptr<const io::Handle> body = {};
  uint64_t body_begin = 0;
  uint64_t body_bytes = 0;
  uint64_t patience = 0;  // seconds in which nothing may arrive; 0: as usual
  bool heedless = false;  // continues after a signal: it cleans up
  std::vector<std::string> headers;  // "Name: value"
  // For the URL's own host: dropped on a redirect to another host.
  std::vector<std::string> secret_headers;
  std::string user_password;
  std::optional<Signing> signing;
  // Headers of each attempt, for the URL's own host.
  std::function<std::vector<std::string>(const Attempt&)> sign = {};
  bool signs_range = false;  // one of those headers contains the range
  // Where bytes [begin, begin + wanted()) go: to memory, or to a local file,
  // into which they are written as they arrive. Neither: the whole body is
  // wanted, as text.
  uint64_t begin = 0;
  std::span<std::byte> into;
  std::shared_ptr<const io::Handle> onto = {};
  uint64_t onto_begin = 0;
  uint64_t onto_bytes = 0;
  uint64_t wanted() const { return onto ? onto_bytes : into.size(); }
  // The first look at a file: it may end before that, and a server without
  // ranges may send it whole.
  bool first_look = false;
  // Treat a redirect to another host as the answer (Response::url).
  bool stop_at_other_host = false;
  Version version;  // of what is read
  // Nobody says which version a reply is of: it is used whole.
  bool unversioned = false;
  // A store's object, whose bytes are what they are: Content-Encoding is no
  // more than a label.
  bool as_stored = false;
  uint64_t most_body = uint64_t{64} << 20;
};

struct Response {
  long status = 0;
  std::map<std::string, std::string> headers;  // names in lower case
  std::string body;                            // if no range is wanted
  uint64_t got = 0;                            // of the wanted bytes
  std::optional<uint64_t> total;               // of Content-Range
  std::string url;                             // after redirects
  uint64_t attempts = 0;
  // The whole of a file where a first look asked for a part of it, and too much
  // to hold: not taken.
  bool left = false;
  bool frames = false;  // the protocol says where a body ends: HTTP/2
  // Headers of redirects on the way that the last reply does not have.
  std::map<std::string, std::string> earlier;

  std::string header(const std::string& name) const;
};

class Transfer;
using Ticket = std::shared_ptr<Transfer>;

// Starts a request; `request.into` must live until the ticket is waited for or
// cancelled.
Ticket start(Request request);
// Throws what failed (kIo and others), and Interrupted after a signal. A reply
// with a status other than 2xx is not a failure here, except for temporary
// ones; see check_status().
const Response& wait(const Ticket& ticket);
// The same; calls `look` now and then, and once after the end.
const Response& wait(const Ticket& ticket, const std::function<void()>& look);
// How many of the first bytes are in `request.onto`.
uint64_t bytes_onto(const Ticket& ticket);
bool is_done(const Ticket& ticket);
// After this, nothing is written to `into` or `onto`.
void cancel(const Ticket& ticket);

// start and wait.
Response fetch(Request request);

// Throws what the status means for a file that must exist.
void check_status(const Request& request, const Response& response);
// The same for an answer in XML, which has to be that element, and whole:
// nothing would be read as an empty list.
void check_answer(const Request& request, const Response& response,
                  const std::string& root);
const Request& request_of(const Ticket& ticket);

// The server says that the keys have expired; or it may mean that: a HEAD has
// no words.
bool has_expired(const Response& response);
bool has_expired(const Request& asked, const Response& response);
bool may_have_expired(const Response& response);

// "HTTP 503 SlowDown, request id 4A9F"
std::string describe(const Response& response);
// A proxy wants to know who asks (kIo).
Error proxy_error(const std::string& path);
// The source has been replaced (kIo).
Error changed_error(const std::string& path, const std::string& what);

struct Traffic {
  uint64_t requests = 0;
  uint64_t bytes = 0;  // received
  uint64_t sent = 0;   // of bodies, failed attempts included
};
Traffic traffic();

}  // namespace ckpt::net
