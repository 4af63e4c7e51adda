// SPDX-License-Identifier: Apache-2.0
// One request in flight, as seen by the thread that runs it.
#pragma once

#include <atomic>
#include <chrono>
#include <condition_variable>

#include "lib/net/curl.h"
#include "lib/net/http.h"
#include "lib/net/window.h"

namespace ckpt::net {

// What a reply turned out to be while it arrived.
enum class Verdict : uint8_t {
  kNone,
  kChanged,     // another version
  kNoRanges,    // the whole file instead of a part
  kLeft,        // the same, for a first look
  kWrongRange,  // not the bytes that were asked for
  kTooLong,
  kPacked,  // compressed on the way: other bytes than the file's
  kFull,    // memory has no room for the text
};

class Transfer {
 public:
  explicit Transfer(Request request);
  ~Transfer();

  // Configures a handle for the next attempt.
  void prepare(CURL* easy);
  // The attempt ended. Returns true if there will be another, after `pause()`.
  bool finish(CURL* easy, CURLcode code);
  std::chrono::milliseconds pause() const { return pause_; }
  // The host said that it has too many requests.
  bool is_too_much() const {
    return response.status == 429 || response.status == 503;
  }

  Request request;
  Response response;
  std::optional<Error> error;
  bool full = false;  // whoever waits is out of memory
  bool cancelled = false;
  bool done = false;  // these three: under the client's lock
  std::condition_variable ended;
  std::atomic<uint64_t> written = 0;            // of `request.onto`
  CURL* easy = nullptr;                         // while an attempt runs
  Window* window = nullptr;                     // of its host; the same
  std::chrono::steady_clock::time_point began;  // the attempt

 private:
  static size_t on_header(char* data, size_t size, size_t count, void* self);
  static size_t on_body(char* data, size_t size, size_t count, void* self);
  static size_t on_send(char* data, size_t size, size_t count, void* self);
  static int on_seek(void* self, curl_off_t offset, int origin);
  void prepare_body(CURL* handle);
  bool names_version() const;  // the host that is asked now
  void add_header(std::string_view line);
  bool check_head();  // once, before the first byte of the body
  bool judge_whole();
  void restart();
  bool take(std::span<const char> bytes);
  bool gather(std::span<const char> bytes);
  bool flush();
  bool judge_range();
  bool redirect();
  bool again(std::string what, bool always = false);
  bool again(const Error& what, bool always = false);
  bool fail(Error failure);
  Error curl_failure(CURLcode code) const;
  void set_headers(CURL* handle);
  std::string range() const;  // of the bytes still to come

  curl_slist* list_ = nullptr;
  std::string target_;    // the URL of the next attempt
  bool own_host_ = true;  // secrets may be sent to it
  int redirects_ = 0;
  uint64_t failures_ = 0;
  uint64_t sent_ = 0;    // of the body, in this attempt
  uint64_t before_ = 0;  // response.got when the attempt began
  bool head_checked_ = false;
  bool into_range_ = false;
  uint64_t range_end_ = 0;  // promised by the reply, like response.got
  // The latest bytes, on their way into a file: libcurl delivers 16 KiB at a
  // time, and so small a write costs twice as much as the copy.
  std::unique_ptr<std::byte[]> gathered_;
  size_t held_ = 0;
  std::optional<Error> write_failure_;
  Verdict verdict_ = Verdict::kNone;
  std::string verdict_text_;
  std::chrono::milliseconds pause_{0};
  char error_text_[CURL_ERROR_SIZE] = {};
};

// Takes one retry from the budget of the whole process. False if it is used up:
// what always fails is not retried forever.
bool take_retry();
void give_retry();
void count_traffic(uint64_t requests, uint64_t bytes);
void count_sent(uint64_t bytes);

}  // namespace ckpt::net
