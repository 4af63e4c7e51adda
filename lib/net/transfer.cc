// SPDX-License-Identifier: Apache-2.0
#include "lib/net/transfer.h"

#include <algorithm>
#include <cstring>
#include <random>

#include "lib/failures.h"
#include "lib/net/settings.h"
#include "lib/net/url.h"
#include "lib/text/format.h"
#include "lib/text/number.h"

namespace ckpt::net {
namespace {

constexpr uint64_t kLargeRange = 1 << 20;
// A failure after this much progress doesn't add to the earlier ones.
constexpr uint64_t kProgress = 64 << 10;

// Half of the doubled wait is random, so that clients that failed together
// don't come back together.
std::chrono::milliseconds backoff(uint64_t failures) {
  constexpr uint64_t kMost = 20'000;
  thread_local std::minstd_rand random{std::random_device{}()};
  const uint64_t full = std::min<uint64_t>(
      kMost, settings().backoff_ms << std::min<uint64_t>(failures - 1, 16));
  return std::chrono::milliseconds(full / 2 + random() % (full / 2 + 1));
}

bool is_passing(long status) {
  return status == 408 || status == 429 || status == 500 || status == 502 ||
         status == 503 || status == 504;
}

// The proxy's own answer to CONNECT.
bool refused_by_proxy(CURL* handle) {
  long status = 0;
  curl().easy_getinfo(handle, CURLINFO_HTTP_CONNECTCODE, &status);
  return status == 407;
}

}  // namespace

std::string Response::header(const std::string& name) const {
  const auto found = headers.find(name);
  return found == headers.end() ? "" : found->second;
}

Transfer::Transfer(Request asked)
    : request(std::move(asked)), target_(request.url) {}

Transfer::~Transfer() {
  if (list_) curl().slist_free_all(list_);
}

std::string Transfer::range() const {
  return fmt::format("{}-{}", request.begin + response.got,
                     request.begin + request.wanted() - 1);
}

bool Transfer::names_version() const {
  const std::string& origin = request.version.origin;
  return origin.empty() ? own_host_ : parse_url(target_).origin() == origin;
}

void Transfer::set_headers(CURL* handle) {
  const Curl& c = curl();
  if (list_) c.slist_free_all(list_);
  list_ = nullptr;
  const auto add = [&](const std::string& line) {
    list_ = c.slist_append(list_, line.c_str());
  };
  for (const std::string& line : request.headers) add(line);
  if (own_host_)
    for (const std::string& line : request.secret_headers) add(line);
  // A weak ETag promises nothing about bytes, and may not be sent this way.
  const std::string& etag = request.version.etag;
  const bool binds = names_version() && etag.starts_with('"');
  if (binds) add("If-Match: " + etag);
  if (own_host_ && request.sign)
    for (const std::string& line :
         request.sign({request.head ? "HEAD" : "GET",
                       request.wanted() == 0 ? "" : "bytes=" + range(),
                       binds ? etag : ""}))
      add(line);
  c.easy_setopt(handle, CURLOPT_HTTPHEADER, list_);
}

void Transfer::prepare(CURL* handle) {
  const Curl& c = curl();
  easy = handle;
  c.easy_reset(handle);
  error_text_[0] = 0;
  response.headers.clear();
  response.status = 0;
  ++response.attempts;
  if (request.wanted() == 0) response.body.clear();
  head_checked_ = into_range_ = false;
  verdict_ = Verdict::kNone;
  before_ = response.got;
  sent_ = 0;
  const auto set = [&](CURLoption option, auto value) {
    c.easy_setopt(handle, option, value);
  };
  set(CURLOPT_URL, target_.c_str());
  set(CURLOPT_PRIVATE, this);
  set(CURLOPT_ERRORBUFFER, error_text_);
  set(CURLOPT_NOSIGNAL, 1L);
  set(CURLOPT_USERAGENT, "ckpt");
#if LIBCURL_VERSION_NUM >= 0x075500
  set(CURLOPT_PROTOCOLS_STR, "http,https");
#endif
  set(CURLOPT_CONNECTTIMEOUT, 20L);
  set(CURLOPT_LOW_SPEED_LIMIT, 1024L);
  set(CURLOPT_LOW_SPEED_TIME,
      static_cast<long>(request.patience ? request.patience
                                         : settings().stall_seconds));
  set(CURLOPT_TCP_KEEPALIVE, 1L);
  // Small requests share a connection where the server speaks HTTP/2. Large
  // ones get their own, since what limits a connection limits all its streams.
  const bool large =
      request.wanted() >= kLargeRange || request.body_bytes >= kLargeRange;
  set(CURLOPT_HTTP_VERSION,
      long{large ? CURL_HTTP_VERSION_1_1 : CURL_HTTP_VERSION_2TLS});
  if (large) set(CURLOPT_BUFFERSIZE, 256L << 10);
  if (!settings().ca_file.empty())
    set(CURLOPT_CAINFO, settings().ca_file.c_str());
  if (request.head) set(CURLOPT_NOBODY, 1L);
  if (!request.method.empty()) prepare_body(handle);
  set_headers(handle);
  if (own_host_ && request.signing) {
    set(CURLOPT_AWS_SIGV4, request.signing->scheme.c_str());
    set(CURLOPT_USERNAME, request.signing->key.c_str());
    set(CURLOPT_PASSWORD, request.signing->secret.c_str());
  } else if (own_host_ && !request.user_password.empty()) {
    set(CURLOPT_USERPWD, request.user_password.c_str());
  }
  if (request.wanted() != 0 && !(own_host_ && request.signs_range))
    set(CURLOPT_RANGE, range().c_str());
  set(CURLOPT_HEADERFUNCTION, &Transfer::on_header);
  set(CURLOPT_HEADERDATA, this);
  set(CURLOPT_WRITEFUNCTION, &Transfer::on_body);
  set(CURLOPT_WRITEDATA, this);
  count_traffic(1, 0);
}

// libcurl signs the method by its name, and takes the body's sum from the
// header x-amz-content-sha256, so each attempt reads the body only once.
void Transfer::prepare_body(CURL* handle) {
  const Curl& c = curl();
  c.easy_setopt(handle, CURLOPT_CUSTOMREQUEST, request.method.c_str());
  if (request.method == "DELETE") return;
  const uint64_t size = request.body ? request.body_bytes : request.text.size();
  c.easy_setopt(handle, CURLOPT_UPLOAD, 1L);
  c.easy_setopt(handle, CURLOPT_INFILESIZE_LARGE,
                static_cast<curl_off_t>(size));
  c.easy_setopt(handle, CURLOPT_READFUNCTION, &Transfer::on_send);
  c.easy_setopt(handle, CURLOPT_READDATA, this);
  c.easy_setopt(handle, CURLOPT_SEEKFUNCTION, &Transfer::on_seek);
  c.easy_setopt(handle, CURLOPT_SEEKDATA, this);
  if (size < kLargeRange) return;
  c.easy_setopt(handle, CURLOPT_UPLOAD_BUFFERSIZE, 256L << 10);
  // libcurl asks first whether a large body is welcome. Waiting for the answer
  // would be a round trip for each part, and the signature has that header.
  c.easy_setopt(handle, CURLOPT_EXPECT_100_TIMEOUT_MS, 1L);
}

size_t Transfer::on_send(char* data, size_t size, size_t count, void* self) {
  auto& transfer = *static_cast<Transfer*>(self);
  const Request& asked = transfer.request;
  const uint64_t all = asked.body ? asked.body_bytes : asked.text.size();
  const size_t now =
      std::min<uint64_t>(size * count, all - std::min(all, transfer.sent_));
  if (now == 0) return 0;
  if (!asked.body) {
    std::memcpy(data, asked.text.data() + transfer.sent_, now);
  } else {
    try {
      asked.body->read(asked.body_begin + transfer.sent_,
                       std::as_writable_bytes(std::span(data, now)));
    } catch (const std::exception&) {
      return CURL_READFUNC_ABORT;
    }
  }
  transfer.sent_ += now;
  transfer.window->moved(now);
  count_sent(now);
  return now;
}

int Transfer::on_seek(void* self, curl_off_t offset, int origin) {
  if (origin != SEEK_SET) return CURL_SEEKFUNC_CANTSEEK;
  static_cast<Transfer*>(self)->sent_ = static_cast<uint64_t>(offset);
  return CURL_SEEKFUNC_OK;
}

bool Transfer::fail(Error failure) {
  error.emplace(std::move(failure));
  return false;
}

bool Transfer::again(std::string what, bool always) {
  return again(Error(ExitCode::kIo, {request.path, {}}, std::move(what)),
               always);
}

// What came of the file is of no use to the rest that will come.
void Transfer::restart() { written = response.got = before_ = held_ = 0; }

bool Transfer::again(const Error& what, bool always) {
  // The rest may be of another version, and nothing would tell.
  if (request.unversioned) restart();
  if (response.got >= before_ + kProgress) failures_ = 0;
  ++failures_;
  if (always || (failures_ <= settings().retries && take_retry())) {
    pause_ = backoff(failures_);
    const auto told = text::number(response.header("retry-after"));
    if (told && *told <= 120)
      pause_ = std::max(pause_, std::chrono::milliseconds(*told * 1000));
    if (request.wanted() == 0 || response.got == 0) response.body.clear();
    return true;
  }
  Error failure(
      ExitCode::kIo, {request.path, {}},
      fmt::format("{}{}, after {} tries",
                  request.method.empty() ? "" : "cannot be written: ",
                  what.problem(), failures_),
      !what.hint().empty() ? what.hint()
      : response.status == 429
          ? "the server allows fewer requests: run it again later, or with "
            "CKPT_NET_CONNECTIONS=2"
          : "run it again once the server is reachable; "
            "CKPT_NET_RETRIES=N tries more often");
  return fail(std::move(failure));
}

bool Transfer::redirect() {
  constexpr int kMost = 8;
  if (++redirects_ > kMost)
    return fail(Error(ExitCode::kIo, {request.path, {}},
                      "is redirected more than 8 times"));
  const Url from = parse_url(target_);
  target_ =
      encode_reference(resolve_reference(target_, response.header("location")));
  const Url to = parse_url(target_);
  // What was asked for by https comes by https, from this machine, too: any of
  // its users may listen on a port.
  if (to.scheme != "https" && !(to.scheme == "http" && from.scheme == "http"))
    return fail(unsafe_error({request.path, {}}, "is redirected from {} to {}",
                             from.scheme,
                             to.scheme.empty() ? "something that is no URL"
                                               : text::printable(to.origin()))
                    .with_hint("if you trust that place, name it instead"));
  const bool leaves = to.origin() != from.origin();
  if (leaves) own_host_ = false;
  for (const auto& [name, value] : response.headers)
    response.earlier.emplace(name, value);
  response.body.clear();
  pause_ = std::chrono::milliseconds(0);
  if (!leaves || !request.stop_at_other_host) return true;
  response.url = target_;
  give_retry();
  return false;
}

Error Transfer::curl_failure(CURLcode code) const {
  const std::string text =
      error_text_[0] ? std::string(error_text_) : curl().easy_strerror(code);
  const std::string host = parse_url(target_).authority;
  switch (code) {
    case CURLE_PEER_FAILED_VERIFICATION:
    case CURLE_SSL_CACERT_BADFILE:
      return Error(ExitCode::kIo, {request.path, {}},
                   fmt::format("{} can't be trusted: {}", host, text),
                   "if its certificate is signed by an authority of your own, "
                   "name that in SSL_CERT_FILE");
    case CURLE_SSL_CONNECT_ERROR:
    case CURLE_SSL_CIPHER:
    case CURLE_SSL_CERTPROBLEM:
      return Error(ExitCode::kIo, {request.path, {}},
                   fmt::format("no TLS connection to {}: {}", host, text));
    case CURLE_COULDNT_RESOLVE_PROXY:
      return Error(ExitCode::kIo, {request.path, {}}, text,
                   "look at https_proxy, http_proxy and no_proxy");
    case CURLE_UNSUPPORTED_PROTOCOL:
      return Error(ExitCode::kIo, {request.path, {}},
                   fmt::format("{} does not answer in HTTP: {}", host, text),
                   "look at the host, its port, and the proxies in between");
    default:
      return Error(ExitCode::kIo, {request.path, {}},
                   fmt::format("{}: {}", host, text));
  }
}

bool Transfer::finish(CURL* handle, CURLcode code) {
  // The request may be repeated, so wait() decides whether this is a failure.
  const failures::Unimportant not_yet;
  easy = nullptr;
  long status = 0;
  curl().easy_getinfo(handle, CURLINFO_RESPONSE_CODE, &status);
  response.status = status;
  response.url = target_;
  flush();
  gathered_.reset();
  if (write_failure_) return fail(*write_failure_);
  // An empty body was never checked.
  if (code == CURLE_OK && !request.head && !check_head())
    code = CURLE_WRITE_ERROR;
  // All bytes have arrived, however the connection ended.
  if (into_range_ && verdict_ == Verdict::kNone &&
      response.got == request.wanted()) {
    give_retry();
    return false;
  }
  switch (verdict_) {
    case Verdict::kChanged:
      return fail(changed_error(request.path, verdict_text_));
    case Verdict::kNoRanges:
      return fail(
          Error(ExitCode::kIo, {request.path, {}},
                "the server sends whole files only: it ignores ranges",
                "download the file first (ckpt fetch), then open the copy"));
    case Verdict::kLeft:
      response.left = true;
      give_retry();
      return false;
    case Verdict::kPacked:
      return fail(Error(ExitCode::kIo, {request.path, {}},
                        fmt::format("the server sends it packed "
                                    "(Content-Encoding: {}), though nobody "
                                    "asked for that: its bytes are others",
                                    verdict_text_),
                        "turn that off for these files there, or download "
                        "them by a program that unpacks them (curl "
                        "--compressed)"));
    case Verdict::kWrongRange:
      return again("the server sent " + verdict_text_);
    case Verdict::kTooLong:
      if (request.wanted() == 0)
        return fail(input_error({request.path, {}},
                                "the server's answer has more than the {} that "
                                "a listing may have",
                                text::iec_size(request.most_body)));
      written = response.got = before_;
      return again("the server sent more bytes than were asked for");
    case Verdict::kFull:
      full = true;
      return false;
    case Verdict::kNone:
      break;
  }
  if (code == CURLE_OPERATION_TIMEDOUT)
    return again(
        fmt::format("{} sent less than 1 KiB/s for {} s, or did not "
                    "answer",
                    parse_url(target_).authority, settings().stall_seconds));
  if (code == CURLE_PEER_FAILED_VERIFICATION ||
      code == CURLE_SSL_CACERT_BADFILE || code == CURLE_SSL_CERTPROBLEM ||
      code == CURLE_URL_MALFORMAT || code == CURLE_UNSUPPORTED_PROTOCOL)
    return fail(curl_failure(code));
  if (code == CURLE_PARTIAL_FILE)
    return again(fmt::format("the reply was cut after {} of {} bytes",
                             response.got, request.wanted()));
  if (code != CURLE_OK && refused_by_proxy(handle))
    return fail(proxy_error(request.path));
  if (code != CURLE_OK) return again(curl_failure(code));
  if (status >= 300 && status < 400 && request.method.empty() &&
      !response.header("location").empty())
    return redirect();
  if (is_passing(status)) return again(describe(response));
  if (status == 412 && request.method.empty())
    return fail(changed_error(request.path, "the server has another version"));
  if (into_range_ && response.got < request.wanted() &&
      !(response.total && request.begin + response.got == *response.total)) {
    // Less than was asked for is allowed, but a little each time would never
    // end.
    if (response.got >= before_ + kProgress) {
      pause_ = std::chrono::milliseconds(0);
      return true;
    }
    return again(fmt::format("the server sent {} bytes of {}",
                             response.got - before_,
                             request.wanted() - before_));
  }
  give_retry();
  return false;
}

}  // namespace ckpt::net
