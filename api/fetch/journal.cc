// SPDX-License-Identifier: Apache-2.0
#include "api/fetch/journal.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string_view>

#include "ckpt/error.h"
#include "lib/hash/sha256.h"
#include "lib/interrupt.h"
#include "lib/text/number.h"

namespace ckpt::library {
namespace {

constexpr uint64_t kMostJournal = uint64_t{1} << 30;

io::Handle open_journal(const std::string& path) {
  return io::is_file(path) ? io::Handle::open_write(path)
                           : io::Handle::create(path);
}

// Removes a word from the front and returns it.
std::string_view take_word(std::string_view& line) {
  const size_t end = std::min(line.find(' '), line.size());
  const std::string_view word = line.substr(0, end);
  line.remove_prefix(std::min(end + 1, line.size()));
  return word;
}

uint64_t number_of(std::string_view word) {
  return text::number(word).value_or(0);
}

}  // namespace

std::string flat_name(const std::string& path) {
  std::string flat;
  for (const char c : path) {
    const bool plain =
        c != '/' && c != '%' && static_cast<unsigned char>(c) >= ' ';
    flat += plain ? std::string(1, c)
                  : fmt::format("%{:02X}", static_cast<unsigned char>(c));
  }
  // File systems take 255 bytes, ".part" among them.
  constexpr size_t kMost = 240, kKeptOfIt = 160;
  if (flat.size() <= kMost) return flat;
  Sha256 sum;
  sum.update(std::as_bytes(std::span(flat)));
  return flat.substr(0, kKeptOfIt) + "%" + sum.hex();
}

void Ranges::add(uint64_t begin, uint64_t end) {
  if (begin >= end) return;
  auto next = by_begin_.upper_bound(begin);
  if (next != by_begin_.begin() && std::prev(next)->second >= begin) --next;
  while (next != by_begin_.end() && next->first <= end) {
    begin = std::min(begin, next->first);
    end = std::max(end, next->second);
    next = by_begin_.erase(next);
  }
  by_begin_[begin] = end;
}

uint64_t Ranges::prefix() const {
  return empty() || by_begin_.begin()->first != 0 ? 0
                                                  : by_begin_.begin()->second;
}

uint64_t Ranges::bytes() const {
  uint64_t sum = 0;
  for (const auto& [begin, end] : by_begin_) sum += end - begin;
  return sum;
}

Ranges Ranges::missing(uint64_t size) const {
  Ranges gaps;
  uint64_t at = 0;
  for (const auto& [begin, end] : by_begin_) {
    gaps.add(at, std::min(begin, size));
    at = end;
  }
  gaps.add(at, size);
  return gaps;
}

FetchJournal::FetchJournal(const std::string& path)
    : file_(open_journal(path)) {
  if (file_.size() > kMostJournal)
    throw input_error({path, {}}, "is longer than any journal");
  read(file_.read_string(0, file_.size()));
  begins_ = end_;
}

// A last line without an end was not fully written: the next one overwrites it.
void FetchJournal::read(const std::string& text) {
  for (size_t end = 0; (end = text.find('\n', end_)) != text.npos;
       end_ = end + 1) {
    std::string_view line = std::string_view(text).substr(end_, end - end_);
    if (take_word(line) != "came") continue;
    Part part;
    part.begin = number_of(take_word(line));
    part.end = number_of(take_word(line));
    const auto sum = Digest::parse(take_word(line));
    std::string tag(take_word(line));
    tag += " " + std::string(take_word(line));
    const std::string name(line);
    if (!sum) continue;
    part.sum = *sum;
    Known& one = known_[name];
    if (one.tag != tag) one = {.tag = tag, .parts = {}};
    one.parts.push_back(part);
  }
}

std::vector<FetchJournal::Part> FetchJournal::known(
    const std::string& name, const std::string& tag) const {
  const auto found = known_.find(name);
  if (found == known_.end() || found->second.tag != tag) return {};
  return found->second.parts;
}

void FetchJournal::came(const std::string& name, const std::string& tag,
                        const Part& part) {
  const std::string line = fmt::format("came {} {} {} {} {}\n", part.begin,
                                       part.end, part.sum.hex(), tag, name);
  const std::lock_guard lock(mutex_);
  file_.write(end_, std::string_view(line));
  end_ += line.size();
}

Digest digest_of(const io::Handle& file, uint64_t begin, uint64_t end) {
  constexpr uint64_t kCached = 256 << 10;  // stays in cache
  Digest sum;
  std::vector<std::byte> buffer;
  for (uint64_t at = begin; at < end; at += buffer.size()) {
    buffer.resize(std::min(kCached, end - at));
    file.read(at, buffer);
    sum += digest(at, buffer);
  }
  return sum;
}

Ranges proven(const io::Handle& file,
              const std::vector<FetchJournal::Part>& parts) {
  Ranges right;
  for (const FetchJournal::Part& part : parts) {
    if (interrupted()) throw Interrupted("");
    if (part.begin < part.end && part.end <= file.size() &&
        digest_of(file, part.begin, part.end) == part.sum)
      right.add(part.begin, part.end);
  }
  return right;
}

}  // namespace ckpt::library
