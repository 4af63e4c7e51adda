// SPDX-License-Identifier: Apache-2.0
#include "app/commands/fetch_journal.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <string_view>

#include "ckpt/error.h"
#include "lib/sha256.h"
#include "lib/text/number.h"

namespace ckpt::app {
namespace {

constexpr uint64_t kMostJournal = uint64_t{1} << 30;

// Changes with each boot of the machine.
std::string this_boot() {
  const std::string path = "/proc/sys/kernel/random/boot_id";
  std::string id;
  try {
    id = io::Handle::open_read(path).read_string(0, 36);
  } catch (const Error&) {
    id = "unknown";
  }
  return id;
}

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

FetchJournal::FetchJournal(const std::string& path, bool sync)
    : sync_(sync), file_(open_journal(path)) {
  if (file_.size() > kMostJournal)
    throw input_error({path, {}}, "is longer than any journal");
  read(file_.read_string(0, file_.size()));
  begins_ =
      add(fmt::format("run {} {}", this_boot(), sync ? "synced" : "quick"));
}

// A last line without an end was not fully written: the next one overwrites it.
void FetchJournal::read(const std::string& text) {
  const std::string here = this_boot();
  std::map<std::string, Ranges> kept;
  bool same_boot = false, synced = false;
  const auto end_run = [&] {
    if (!same_boot)
      for (auto& [name, one] : known_) one.came = kept[name];
  };
  for (size_t end = 0; (end = text.find('\n', end_)) != text.npos;
       end_ = end + 1) {
    std::string_view line = std::string_view(text).substr(end_, end - end_);
    const std::string_view what = take_word(line);
    if (what == "run") {
      end_run();
      same_boot = take_word(line) == here;
      synced = line == "synced";
      continue;
    }
    const bool some = what == "came" || what == "kept";
    if (!some && what != "whole") continue;
    const uint64_t first = some ? number_of(take_word(line)) : 0;
    const uint64_t last = some ? number_of(take_word(line)) : 0;
    std::string tag(take_word(line));
    tag += " " + std::string(take_word(line));
    const std::string name(line);
    Known& one = known_[name];
    if (one.tag != tag) {
      one = {.tag = tag};
      kept.erase(name);
    }
    one.came.add(first, last);
    if (what == "kept") kept[name].add(first, last);
    if (what == "whole") one.whole = same_boot || synced;
  }
  end_run();
}

FetchJournal::Known FetchJournal::known(const std::string& name,
                                        const std::string& tag) const {
  const auto found = known_.find(name);
  return found == known_.end() || found->second.tag != tag ? Known{}
                                                           : found->second;
}

uint64_t FetchJournal::add(const std::string& line) {
  const std::lock_guard lock(mutex_);
  file_.write(end_, std::string_view(line + "\n"));
  return end_ += line.size() + 1;
}

void FetchJournal::came(const std::string& name, const std::string& tag,
                        uint64_t begin, uint64_t end) {
  if (begin < end) add(fmt::format("came {} {} {} {}", begin, end, tag, name));
}

void FetchJournal::kept(const std::string& name, const std::string& tag,
                        uint64_t begin, uint64_t end) {
  add(fmt::format("kept {} {} {} {}", begin, end, tag, name));
}

// Many files end together; one of them waits for the disk on behalf of the
// others.
void FetchJournal::whole(const std::string& name, const std::string& tag) {
  const uint64_t end = add(fmt::format("whole {} {}", tag, name));
  if (!sync_) return;
  const std::lock_guard lock(sync_mutex_);
  if (synced_ >= end) return;
  uint64_t now = 0;
  {
    const std::lock_guard writing(mutex_);
    now = end_;
  }
  file_.sync();
  synced_ = now;
}

}  // namespace ckpt::app
