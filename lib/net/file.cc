// SPDX-License-Identifier: Apache-2.0
#include "lib/net/file.h"

#include <algorithm>
#include <cstring>

#include "lib/io/ahead.h"
#include "lib/net/blocks.h"
#include "lib/trace.h"

namespace ckpt::net {
namespace {

constexpr uint64_t kBlock = 64 << 10;
constexpr uint64_t kMostAhead = 1 << 20;
constexpr uint64_t kLarge = 128 << 10;  // read without a block
constexpr uint64_t kRange = 4 << 20;    // of one request
// What lies between two ranges and is fetched with them: less than 1 part in 64
// of what is wanted, so that little is fetched in vain.
constexpr uint64_t kGap = 64 << 10;
constexpr uint64_t kGapShare = 64;
// Or no more than a request costs: the frames of the items of a .distcp file.
constexpr uint64_t kLeastGap = 4 << 10;
// The same of headers that are in memory already, and lie in what is wanted.
constexpr uint64_t kMinorShare = 8;
// A range that is worth a request of its own.
constexpr uint64_t kLittle = 256 << 10;

// Requests that fill the caller's memory must not outlive the call.
class Fills {
 public:
  ~Fills() {
    for (const Ticket& one : all_)
      if (one) cancel(one);
  }
  void add(Ticket ticket) { all_.push_back(std::move(ticket)); }
  std::vector<Ticket>& all() { return all_; }

 private:
  std::vector<Ticket> all_;
};

bool is_refusal(const Response& response) {
  return response.status == 401 || response.status == 403 ||
         response.status == 404 || response.status == 410 ||
         response.status == 400;
}

// torch's archives by their usual names. Of others a tail would be read in
// vain.
bool is_read_at_both_ends(const std::string& path) {
  for (const char* end : {".pt", ".pth", ".bin", ".ckpt"})
    if (path.ends_with(end)) return true;
  return false;
}

struct Refused {};  // and the store will ask in another way

}  // namespace

// A piece of a read: from a block, or by a request into the caller's memory.
struct NetFile::Part {
  BlockPtr block;  // null: [begin, end) is requested
  uint64_t begin = 0;
  uint64_t end = 0;
  std::byte* to = nullptr;
};

NetFile::NetFile(Store& store, std::string path, const Facts& facts)
    : store_(store),
      path_(std::move(path)),
      size_(facts.size),
      unversioned_(facts.tag.empty()),
      version_(facts.version) {
  if (facts.head.empty()) return;
  auto block = std::make_shared<Block>(0, facts.head.size());
  std::memcpy(block->memory.get(), facts.head.data(), facts.head.size());
  block->settled = true;
  Blocks& blocks = Blocks::get();
  const std::lock_guard lock(blocks.mutex());
  blocks.add(this, block);
}

NetFile::~NetFile() = default;

Request NetFile::request(uint64_t begin, std::span<std::byte> into) const {
  Request made = store_.request(path_);
  made.begin = begin;
  made.into = into;
  made.version = version_;
  made.version.size = size_;
  made.unversioned = unversioned_;
  return made;
}

void NetFile::check(const Response& response, const Request& asked) const {
  if (is_refusal(response) && store_.refused(path_, asked, response))
    throw Refused{};
  check_status(asked, response);
  if (response.got != asked.wanted())
    throw Error(ExitCode::kIo, {path_, {}},
                fmt::format("the server sent {} bytes of {}", response.got,
                            asked.wanted()));
  store_.arrived(path_, response);
}

// Requests bytes, `wanted` of them to be read; null if there is no room for
// payload. Called with the blocks' mutex held.
BlockPtr NetFile::ask(uint64_t begin, uint64_t end, uint64_t wanted,
                      bool payload) const {
  Blocks& blocks = Blocks::get();
  if (payload && !blocks.has_room(end - begin)) return nullptr;
  auto block = std::make_shared<Block>(begin, end);
  block->payload = payload;
  block->wanted = wanted;
  if (payload) blocks.drop_minor(this, begin, end);
  blocks.add(this, block);
  block->ticket = start(request(begin, block->bytes()));
  return block;
}

// [begin, end) is in no block; `after` is where the next one begins. A short
// piece at the end of a file is fetched with what precedes it: directories of
// zip archives are there, and are read from the end.
void NetFile::add_gap(uint64_t begin, uint64_t end, uint64_t after,
                      std::byte* to, std::vector<Part>& parts) const {
  if (end - begin >= kLarge) {
    for (uint64_t at = begin; at < end; at += kRange) {
      const uint64_t stop = std::min(end, at + kRange);
      parts.push_back({ask(at, stop, stop - at), at, stop, to + (at - begin)});
    }
    return;
  }
  Blocks& blocks = Blocks::get();
  uint64_t from = begin;
  if (size_ - end < kBlock && size_ > kBlock)
    from =
        std::max(std::min(begin, size_ - kBlock), blocks.before(this, begin));
  if (from != run_end_) run_bytes_ = 0;
  const uint64_t ahead = std::clamp(run_bytes_, kBlock, kMostAhead);
  auto block = std::make_shared<Block>(
      from, std::min({std::max(end, from + ahead), after, size_}));
  run_end_ = block->end();
  run_bytes_ += block->size;
  block->ticket = start(request(from, block->bytes()));
  blocks.add(this, block);
  parts.push_back({block, begin, end, to});
  if (from == 0 && is_read_at_both_ends(path_)) ask_for_tail();
}

// What is read next of an archive: its directory, at the end. Called with the
// blocks' mutex held.
void NetFile::ask_for_tail() const {
  // A comment of 64 KiB and what surrounds it, for whoever looks for one.
  constexpr uint64_t kTail = kBlock + 512;
  if (size_ < 4 * kBlock) return;
  Blocks& blocks = Blocks::get();
  const uint64_t begin = size_ - kTail;
  if (blocks.before(this, size_) > begin) return;
  auto block = std::make_shared<Block>(begin, size_);
  block->ticket = start(request(begin, block->bytes()));
  blocks.add(this, block);
}

std::vector<NetFile::Part> NetFile::cut(uint64_t offset,
                                        std::span<std::byte> buffer) const {
  Blocks& blocks = Blocks::get();
  const std::lock_guard lock(blocks.mutex());
  std::vector<Part> parts;
  const uint64_t end = offset + buffer.size();
  for (uint64_t at = offset; at < end;) {
    std::byte* const to = buffer.data() + (at - offset);
    const BlockPtr block = blocks.find(this, at);
    const uint64_t after = block ? block->end() : blocks.next(this, at);
    const uint64_t stop = std::min(end, after);
    if (block)
      parts.push_back({block, at, stop, to});
    else
      add_gap(at, stop, after, to, parts);
    at = stop;
  }
  return parts;
}

void NetFile::read_once(uint64_t offset, std::span<std::byte> buffer) const {
  if (buffer.size() > kRange && !has(offset, buffer.size()))
    store_.locate(path_);
  Fills fills;
  const std::vector<Part> parts = cut(offset, buffer);
  for (const Part& part : parts)
    if (!part.block)
      fills.add(start(request(part.begin, {part.to, part.end - part.begin})));
  Blocks& blocks = Blocks::get();
  for (const Part& part : parts) {
    if (!part.block) continue;
    if (part.block->ticket) try {
        const Response& response = wait(part.block->ticket);
        check(response, request_of(part.block->ticket));
      } catch (...) {
        const std::lock_guard lock(blocks.mutex());
        blocks.remove(this, part.block);
        throw;
      }
    std::memcpy(part.to,
                part.block->memory.get() + (part.begin - part.block->begin),
                part.end - part.begin);
    const std::lock_guard lock(blocks.mutex());
    Blocks::took(part.block, part.end - part.begin);
  }
  for (Ticket& one : fills.all()) {
    const Ticket ended = one;
    const Response& response = wait(ended);
    one = nullptr;
    check(response, request_of(ended));
  }
}

void NetFile::read(uint64_t offset, std::span<std::byte> buffer) const {
  const trace::Span span("remote", buffer.size());
  constexpr int kTries = 4;
  for (int left = kTries;; --left) {
    try {
      return read_once(offset, buffer);
    } catch (const Refused&) {
      if (left == 1) throw refused_error();
    }
  }
}

// Continues where it stopped if the store asks in another way.
void NetFile::copy(uint64_t offset, uint64_t count,
                   const std::shared_ptr<const io::Handle>& to, uint64_t at,
                   const Came& came) const {
  const trace::Span span("remote", count);
  if ((count <= kLarge || count == size_) && has(offset, count)) {
    std::vector<std::byte> bytes(count);
    read(offset, bytes);
    to->write(at, bytes);
    return came(count);
  }
  if (size_ > kRange) store_.locate(path_);
  constexpr int kTries = 4;
  uint64_t stands = 0;
  for (int left = kTries;; --left) {
    try {
      return copy_once(offset, count, to, at, stands, came);
    } catch (const Refused&) {
      if (left == 1) throw refused_error();
    }
  }
}

void NetFile::copy_once(uint64_t offset, uint64_t count,
                        const std::shared_ptr<const io::Handle>& to,
                        uint64_t at, uint64_t& stands, const Came& came) const {
  Request made = request(offset + stands, {});
  made.onto = to;
  made.onto_begin = at + stands;
  made.onto_bytes = count - stands;
  const Ticket ticket = start(std::move(made));
  const uint64_t before = stands;
  const auto look = [&] {
    stands = before + bytes_onto(ticket);
    came(stands);
  };
  try {
    check(wait(ticket, look), request_of(ticket));
  } catch (...) {
    cancel(ticket);
    look();
    throw;
  }
}

Error NetFile::refused_error() const {
  return Error(ExitCode::kIo, {path_, {}},
               "the host that it is redirected to refuses it");
}

bool NetFile::has(uint64_t offset, uint64_t count) const {
  Blocks& blocks = Blocks::get();
  const std::lock_guard lock(blocks.mutex());
  for (uint64_t at = offset; at < offset + count;) {
    const BlockPtr block = blocks.find(this, at);
    if (!block) return false;
    at = block->end();
  }
  return true;
}

bool NetFile::is_there(uint64_t offset, uint64_t count) const {
  Blocks& blocks = Blocks::get();
  const std::lock_guard lock(blocks.mutex());
  for (uint64_t at = offset; at < offset + count;) {
    const BlockPtr block = blocks.find(this, at);
    if (!block || !block->is_there()) return false;
    at = block->end();
  }
  return true;
}

// Cut at multiples of a request's size: memory of one size is used again and
// again, and a store that keeps an object in parts of such sizes opens no part
// twice.
void NetFile::ask_for(std::span<const io::Range> ranges, io::Asking how) const {
  // A caller that asks for headers of many files must not wait for each.
  uint64_t large = 0;
  for (const io::Range& range : ranges)
    if (!has(range.begin, range.end - range.begin))
      large += range.end - range.begin;
  if (large > kRange) store_.locate(path_);
  Blocks& blocks = Blocks::get();
  const std::lock_guard lock(blocks.mutex());
  const uint64_t most = how.looks ? kMostAhead : blocks.request_bytes();
  uint64_t begin = 0, end = 0, wanted = 0;  // of the next request
  const auto flush = [&] {
    const bool fits =
        begin == end || ask(begin, end, wanted, !how.looks) != nullptr;
    begin = end = wanted = 0;
    return fits;
  };
  const auto cut = [&] { return begin / most * most + most; };
  bool over = false;  // headers in a range are fetched again with it
  const auto next = [&](uint64_t at) {
    return over ? blocks.next_major(this, at) : blocks.next(this, at);
  };
  const auto joins = [&](uint64_t at, uint64_t stop) {
    if (begin == end || at >= cut()) return false;
    if (next(end - 1) <= at) return false;
    const uint64_t gap = at - end;
    if (how.looks) return gap <= io::LooksAhead::kGap;
    if (gap > kGap) return false;
    if (gap <= kLeastGap) return true;
    const uint64_t known = blocks.minor_bytes(this, end, at);
    const uint64_t both = wanted + stop - at;
    return gap - known <= both / kGapShare && known <= both / kMinorShare;
  };
  for (const io::Range& range : ranges) {
    const uint64_t last = std::min(range.end, size_);
    over = !how.looks && range.begin < last && last - range.begin < kLittle &&
           blocks.minor_bytes(this, range.begin, last) <=
               (last - range.begin) / kMinorShare;
    for (uint64_t at = range.begin; at < last;) {
      const BlockPtr block = blocks.find(this, at);
      if (block && !(over && Blocks::is_minor(*block))) {
        at = block->end();
        continue;
      }
      if (begin <= at && at < end) {  // in the next request already
        const uint64_t both = std::min(last, end);
        wanted += both - at;
        at = both;
        continue;
      }
      const uint64_t stop = std::min(last, next(at));
      if (!joins(at, stop)) {
        if (!flush()) return;
        begin = at;
      }
      end = std::min(stop, cut());
      wanted += end - at;
      at = end;
      if (end == cut() && !flush()) return;
    }
  }
  if (!how.more) flush();
}

void set_memory(uint64_t bytes) { Blocks::get().set_limit(bytes); }

uint64_t memory() { return Blocks::get().limit(); }

}  // namespace ckpt::net
