// SPDX-License-Identifier: Apache-2.0
// What a reply brings: its headers, and the body as it arrives.
#include <algorithm>
#include <cstring>

#include "lib/heap.h"
#include "lib/net/transfer.h"
#include "lib/text/format.h"
#include "lib/text/number.h"
#include "lib/text/words.h"

namespace ckpt::net {
namespace {

constexpr size_t kMostErrorBody = 64 << 10;
constexpr size_t kGather = 256 << 10;

std::string_view trim(std::string_view text) {
  return text::trimmed(text, " \t\r\n\v\f");
}

struct ContentRange {
  std::optional<uint64_t> first, last, total;
};

// "bytes 0-99/1234", "bytes */1234"
ContentRange parse_range(std::string_view text) {
  ContentRange range;
  if (!text.starts_with("bytes ")) return range;
  text.remove_prefix(6);
  const size_t slash = text.find('/');
  if (slash == text.npos) return range;
  range.total = text::number(trim(text.substr(slash + 1)));
  const std::string_view both = trim(text.substr(0, slash));
  const size_t dash = both.find('-');
  if (dash == both.npos) return range;
  range.first = text::number(both.substr(0, dash));
  range.last = text::number(both.substr(dash + 1));
  return range;
}

}  // namespace

size_t Transfer::on_header(char* data, size_t size, size_t count, void* self) {
  static_cast<Transfer*>(self)->add_header({data, size * count});
  return size * count;
}

void Transfer::add_header(std::string_view line) {
  if (line.starts_with("HTTP/")) {
    response.headers.clear();
    response.frames = line.starts_with("HTTP/2") || line.starts_with("HTTP/3");
    const size_t space = line.find(' ');
    response.status = 0;
    if (space != line.npos)
      response.status = static_cast<long>(
          text::number(line.substr(space + 1, 3)).value_or(0));
    return;
  }
  const size_t colon = line.find(':');
  if (colon == line.npos) return;
  response.headers[text::lower(trim(line.substr(0, colon)))] =
      std::string(trim(line.substr(colon + 1)));
}

size_t Transfer::on_body(char* data, size_t size, size_t count, void* self) {
  auto& transfer = *static_cast<Transfer*>(self);
  count_traffic(0, size * count);
  transfer.window->moved(size * count);
  return transfer.take({data, size * count}) ? size * count : 0;
}

bool Transfer::judge_range() {
  const auto judge = [&](Verdict verdict, std::string text) {
    verdict_ = verdict;
    verdict_text_ = std::move(text);
    return false;
  };
  const Version& known = request.version;
  const ContentRange range = parse_range(response.header("content-range"));
  const uint64_t begin = request.begin + response.got;
  if (!range.first || !range.last || !range.total)
    return judge(Verdict::kWrongRange,
                 fmt::format("Content-Range \"{}\" for bytes from {} on",
                             response.header("content-range"), begin));
  if (known.size && range.total != known.size)
    return judge(Verdict::kChanged, fmt::format("had {} bytes, now {}",
                                                *known.size, *range.total));
  if (range.first != begin || *range.last >= request.begin + request.wanted() ||
      *range.last < begin || *range.last >= *range.total)
    return judge(
        Verdict::kWrongRange,
        fmt::format("bytes {}-{} where {}-{} were asked for", *range.first,
                    *range.last, begin, request.begin + request.wanted() - 1));
  response.total = range.total;
  range_end_ = *range.last + 1 - request.begin;
  into_range_ = true;
  return true;
}

// Nothing of a reply is used before this.
bool Transfer::check_head() {
  if (std::exchange(head_checked_, true)) return true;
  if (response.status != 200 && response.status != 206) return true;
  const auto differs = [&](const std::string& then, const char* name) {
    const std::string now = response.header(name);
    if (then.empty() || now.empty() || now == then) return false;
    verdict_ = Verdict::kChanged;
    verdict_text_ = "its " + std::string(name) + " changed";
    return true;
  };
  // A host reached by a redirect names versions in its own way.
  if (names_version() &&
      (differs(request.version.etag, "etag") ||
       differs(request.version.last_modified, "last-modified")))
    return false;
  // Nobody asked for this. What a store keeps is what it was given, packed or
  // not.
  if (const std::string packed = response.header("content-encoding");
      !request.as_stored && !packed.empty() &&
      text::lower(packed) != "identity") {
    verdict_ = Verdict::kPacked;
    verdict_text_ = text::printable(packed);
    return false;
  }
  if (request.wanted() == 0) return true;
  // Some servers of S3's protocol (gofakes3, in rclone's) send a range, and say
  // which, under 200.
  const ContentRange told = parse_range(response.header("content-range"));
  if (response.status == 200 && told.first && told.last &&
      *told.first <= *told.last &&
      text::number(response.header("content-length")) ==
          *told.last - *told.first + 1)
    response.status = 206;
  return response.status == 206 ? judge_range() : judge_whole();
}

// A server without ranges sends all of the file, which may be what is wanted.
bool Transfer::judge_whole() {
  const auto length = text::number(response.header("content-length"));
  if (request.begin == 0 && length && request.version.size == length &&
      request.wanted() == *length) {
    restart();
    range_end_ = *length;
    return into_range_ = true;
  }
  if (request.first_look && (!length || *length <= request.most_body))
    return true;
  verdict_ = request.first_look ? Verdict::kLeft : Verdict::kNoRanges;
  return false;
}

bool Transfer::take(std::span<const char> bytes) {
  if (!check_head()) return false;
  if (into_range_) {
    if (bytes.size() > range_end_ - response.got) {
      verdict_ = Verdict::kTooLong;
      return false;
    }
    if (request.onto) return gather(bytes);
    std::memcpy(request.into.data() + response.got, bytes.data(), bytes.size());
    response.got += bytes.size();
    return true;
  }
  const bool good = response.status >= 200 && response.status < 300;
  const uint64_t most = good ? request.most_body : kMostErrorBody;
  if (response.body.size() + bytes.size() > most) {
    if (!good) return true;  // enough to say what it is
    verdict_ = request.wanted() == 0 ? Verdict::kTooLong : Verdict::kNoRanges;
    return false;
  }
  // It doubles as it grows, in a thread that nobody is told of.
  const size_t size = response.body.size() + bytes.size();
  if (size > response.body.capacity() &&
      !heap::fits(std::max(size, 2 * response.body.capacity()))) {
    verdict_ = Verdict::kFull;
    return false;
  }
  response.body.append(bytes.data(), bytes.size());
  return true;
}

// Runs in this thread: another would have to fetch the bytes from this one's
// cache, and there may be no other processor.
bool Transfer::gather(std::span<const char> bytes) {
  if (!gathered_)
    gathered_ = std::make_unique_for_overwrite<std::byte[]>(
        std::min<uint64_t>(kGather, request.wanted()));
  while (!bytes.empty()) {
    const size_t now = std::min(bytes.size(), kGather - held_);
    std::memcpy(gathered_.get() + held_, bytes.data(), now);
    held_ += now;
    response.got += now;
    bytes = bytes.subspan(now);
    if (held_ == kGather && !flush()) return false;
  }
  return true;
}

bool Transfer::flush() {
  if (held_ == 0) return true;
  const uint64_t begin = response.got - held_;
  const std::span<const std::byte> held(gathered_.get(), held_);
  held_ = 0;
  try {
    request.onto->write(request.onto_begin + begin, held);
  } catch (const Error& error) {
    response.got = begin;
    write_failure_ = error;
    return false;
  }
  written = response.got;
  return true;
}

}  // namespace ckpt::net
