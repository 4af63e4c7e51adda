// SPDX-License-Identifier: Apache-2.0
#include "reshard/run/journal.h"

#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <charconv>
#include <unordered_set>

#include "ckpt/error.h"
#include "lib/hash/crc32.h"
#include "lib/io/remote.h"

namespace ckpt::reshard {
namespace {

constexpr uint64_t kMaxJournal = uint64_t{4} << 30;
constexpr std::string_view kBegin = "ckpt-journal 2 ";

std::string boot_id() {
  try {
    // procfs reports size 0: read a fixed number of bytes.
    const io::Handle file =
        io::Handle::open_read("/proc/sys/kernel/random/boot_id");
    std::string id(36, '\0');
    file.read(0, std::as_writable_bytes(std::span(id)));
    return id;
  } catch (const Error&) {
    return "unknown";
  }
}

std::string with_check(std::string line) {
  line += " =";
  const uint32_t check = crc32(0, std::as_bytes(std::span(line)));
  return line + fmt::format(" {:08x}\n", check);
}

std::string header_line(uint64_t fingerprint) {
  return with_check(
      fmt::format("{}{:016x} {}", kBegin, fingerprint, boot_id()));
}

// The line without its check; nothing if it is not what was written.
std::optional<std::string_view> checked(std::string_view line) {
  constexpr size_t kCheck = 9;  // " 01234567"
  if (line.size() < kCheck) return std::nullopt;
  const std::string_view body = line.substr(0, line.size() - kCheck);
  const uint32_t check = crc32(0, std::as_bytes(std::span(body)));
  if (line.substr(body.size()) != fmt::format(" {:08x}", check))
    return std::nullopt;
  return body;
}

std::string line_of(const Outcome& outcome) {
  std::string line = std::to_string(outcome.item);
  for (const auto& [slot, digest] : outcome.source)
    line += fmt::format(" s {} {}", slot, digest.hex());
  for (const auto& [tensor, digest] : outcome.target)
    line += fmt::format(" t {} {}", tensor, digest.hex());
  for (const CrcPart& crc : outcome.crcs)
    line += fmt::format(" c {} {} {}", crc.file, crc.index, crc.value);
  for (const auto& [tensor, loss] : outcome.losses)
    line += fmt::format(" l {} {} {} {}", tensor, loss.overflowed, loss.zeroed,
                        std::bit_cast<uint64_t>(loss.largest));
  return with_check(std::move(line));
}

// Takes the words of a line from the front.
class Words {
 public:
  explicit Words(std::string_view line) : rest_(line) {}
  std::string_view next() {
    const size_t space = rest_.find(' ');
    const std::string_view word = rest_.substr(0, space);
    rest_ = space == rest_.npos ? "" : rest_.substr(space + 1);
    return word;
  }
  template <class T = uint32_t>
  std::optional<T> number() {
    const std::string_view word = next();
    T value = 0;
    const auto [end, failure] =
        std::from_chars(word.data(), word.data() + word.size(), value);
    if (failure != std::errc{} || end != word.data() + word.size())
      return std::nullopt;
    return value;
  }

 private:
  std::string_view rest_;
};

// Nothing for a line that is not ours.
std::optional<Outcome> parse(std::string_view line) {
  Words words(line);
  Outcome outcome;
  const auto item = words.number();
  if (!item) return std::nullopt;
  outcome.item = *item;
  for (std::string_view word = words.next(); word != "="; word = words.next()) {
    const auto first = words.number();
    if (!first) return std::nullopt;
    if (word == "c") {
      const auto index = words.number(), value = words.number();
      if (!index || !value) return std::nullopt;
      outcome.crcs.push_back({*first, *index, *value});
      continue;
    }
    if (word == "l") {
      const auto overflowed = words.number<uint64_t>();
      const auto zeroed = words.number<uint64_t>();
      const auto largest = words.number<uint64_t>();
      if (!overflowed || !zeroed || !largest) return std::nullopt;
      outcome.losses.push_back(
          {*first, {*overflowed, *zeroed, std::bit_cast<double>(*largest)}});
      continue;
    }
    const auto digest = Digest::parse(words.next());
    if (!digest || (word != "s" && word != "t")) return std::nullopt;
    (word == "s" ? outcome.source : outcome.target)
        .emplace_back(*first, *digest);
  }
  return outcome;
}

// FNV-1a over words: it only has to distinguish two plans.
class Hash {
 public:
  void add(uint64_t value) { state_ = (state_ ^ value) * 0x100000001B3; }
  void add(std::string_view text) {
    add(text.size());
    for (const char c : text) add(static_cast<unsigned char>(c));
  }
  template <class... Values>
  void all(const Values&... values) {
    (add(uint64_t{values}), ...);
  }
  uint64_t value() const { return state_; }

 private:
  uint64_t state_ = 0xCBF29CE484222325;
};

void add_plan(const Plan& plan, Hash& hash) {
  for (const Job& job : plan.jobs)
    hash.all(job.rows, job.tensor, job.first_source, job.sources,
             job.first_target, job.targets, job.first_move, job.moves);
  for (const Lane& lane : plan.lanes)
    hash.all(lane.offset, lane.row_stride, lane.width, lane.file,
             lane.transform);
  for (const Move& move : plan.moves)
    hash.all(move.content, move.content_stride, move.bytes, move.source_column,
             move.target_column, move.source, move.target, move.digest,
             move.check);
  for (const Gather& gather : plan.gathers) {
    hash.all(gather.tensor, gather.source_file, gather.target_file,
             gather.transform, gather.source_offset, gather.target_offset,
             gather.content);
    for (const Dims* dims : {&gather.shape, &gather.source_strides,
                             &gather.target_strides, &gather.content_strides})
      for (const uint64_t n : *dims) hash.add(n);
  }
  for (const PlannedTensor& tensor : plan.tensors) {
    hash.add(tensor.name);
    hash.all(static_cast<uint64_t>(tensor.source_dtype),
             static_cast<uint64_t>(tensor.target_dtype));
  }
}

// Adds which file it is, and what shows whether it was written to since.
void add_file(const std::string& path, Hash& hash) {
  struct stat facts = {};
  io::stat_any(path, facts);
  hash.add(path);
  hash.all(static_cast<uint64_t>(facts.st_dev),
           static_cast<uint64_t>(facts.st_ino),
           static_cast<uint64_t>(facts.st_size));
  for (const timespec& when : {facts.st_mtim, facts.st_ctim})
    hash.all(static_cast<uint64_t>(when.tv_sec),
             static_cast<uint64_t>(when.tv_nsec));
}

}  // namespace

uint64_t fingerprint(const Plan& plan, const Catalog& source,
                     const Target& target) {
  Hash hash;
  add_plan(plan, hash);
  for (const File& file : source.files) add_file(file.path, hash);
  for (const TargetFile& file : target.files) {
    hash.add(file.path);
    if (!file.copy_of.empty()) add_file(file.copy_of, hash);
    hash.add(file.size);
    for (const Literal& literal : file.literals) {
      hash.add(literal.offset);
      hash.add(literal.bytes);
    }
    for (const SharedLiteral& literal : file.shared) {
      hash.add(literal.offset);
      hash.add(*literal.bytes);
    }
    for (const CarriedRange& range : file.carried)
      hash.all(range.offset, range.size, range.source_file,
               range.source_offset);
  }
  return hash.value();
}

Journal Journal::create(const std::string& path, uint64_t fingerprint) {
  ::unlink(path.c_str());
  Journal journal(io::Handle::create(path), header_line(fingerprint));
  journal.file_.write(0, std::string_view(journal.header_));
  journal.end_ = journal.header_.size();
  return journal;
}

std::optional<Journal> Journal::open(const std::string& path,
                                     uint64_t fingerprint) {
  if (!io::is_file(path)) return std::nullopt;
  const std::string text = io::read_file(path, kMaxJournal);
  std::string header = header_line(fingerprint);
  const size_t first = text.find('\n');
  if (first == text.npos || !text.starts_with(kBegin)) return std::nullopt;
  const auto line = checked(std::string_view(text).substr(0, first));
  if (!line) return std::nullopt;
  Words have(line->substr(kBegin.size()));
  Words want(std::string_view(header).substr(kBegin.size()));
  if (have.next() != want.next())
    throw unfaithful_error({path, {}},
                           "--resume: the source or the options are not those "
                           "of the run that was stopped")
        .with_hint("run it without --resume to start over");
  Journal journal(io::Handle::open_write(path), std::move(header));
  journal.doubtful_ = have.next() != want.next();
  journal.read_lines(text, first + 1);
  return journal;
}

// Lines are independent: a damaged one loses only its own item.
void Journal::read_lines(std::string_view text, size_t first) {
  std::unordered_set<uint32_t> seen;
  end_ = first;
  for (size_t end; (end = text.find('\n', end_)) != text.npos; end_ = end + 1) {
    const auto line = checked(text.substr(end_, end - end_));
    if (!line) continue;
    if (line->starts_with('!')) doubtful_ = true;
    if (line->starts_with("!!")) lost_ = true;
    auto outcome = parse(*line);
    if (outcome && seen.insert(outcome->item).second)
      done_.push_back(std::move(*outcome));
  }
  items_ = done_.size();
}

void Journal::doubt(Doubt why) {
  const std::lock_guard lock(mutex_);
  doubtful_ = true;
  lost_ |= why == Doubt::kFlush;
  waiting_ += with_check(lost_ ? "!!" : "!");
  try {
    flush();
    // A failure is no reason to give up the work: pages are lost to the next
    // boot, which doubts every journal, and rarely before that.
    if (lost_) ::fdatasync(file_.fd());
  } catch (const Error&) {
    // Then nothing in it can be trusted.
    waiting_.clear();
    ::unlink(file_.path().c_str());
  }
}

void Journal::replace(std::vector<Outcome> done) {
  const std::lock_guard lock(mutex_);
  const std::string path = file_.path();
  ::unlink(path.c_str());
  file_ = io::Handle::create(path);
  waiting_ = header_;
  for (const Outcome& outcome : done) waiting_ += line_of(outcome);
  end_ = 0;
  flush();
  items_ = done.size();
  done_ = std::move(done);
  doubtful_ = lost_ = false;
}

void Journal::append(const Outcome& outcome) {
  constexpr size_t kMostWaiting = 64 << 10;
  constexpr std::chrono::milliseconds kLongestWait(50);
  const std::string line = line_of(outcome);
  const std::lock_guard lock(mutex_);
  waiting_ += line;
  ++items_;
  if (waiting_.size() >= kMostWaiting ||
      std::chrono::steady_clock::now() - flushed_ >= kLongestWait)
    flush();
}

void Journal::flush() {
  file_.write(end_, std::string_view(waiting_));
  end_ += waiting_.size();
  waiting_.clear();
  flushed_ = std::chrono::steady_clock::now();
}

Journal::~Journal() {
  try {
    if (!waiting_.empty()) flush();
  } catch (const Error&) {  // a full disk: those items will be done again
  }
}

}  // namespace ckpt::reshard
