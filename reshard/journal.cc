#include "reshard/journal.h"

#include <sys/stat.h>

#include <charconv>
#include <optional>
#include <string_view>

#include "ckpt/error.h"

namespace ckpt::reshard {
namespace {

constexpr uint64_t kMaxJournal = uint64_t{4} << 30;

std::string boot_id() {
  try {
    // procfs says size 0: read a fixed number of bytes.
    const io::Handle file =
        io::Handle::open_read("/proc/sys/kernel/random/boot_id");
    std::string id(36, '\0');
    file.read(0, std::as_writable_bytes(std::span(id)));
    return id;
  } catch (const Error&) {
    return "unknown";
  }
}

std::string header_line(uint64_t fingerprint) {
  return fmt::format("ckpt-journal 1 {:016x} {}\n", fingerprint, boot_id());
}

std::string line_of(const Outcome& outcome) {
  std::string line = std::to_string(outcome.item);
  for (const auto& [slot, digest] : outcome.source)
    line += fmt::format(" s {} {}", slot, digest.hex());
  for (const auto& [tensor, digest] : outcome.target)
    line += fmt::format(" t {} {}", tensor, digest.hex());
  for (const CrcPart& crc : outcome.crcs)
    line += fmt::format(" c {} {} {}", crc.file, crc.index, crc.value);
  return line + " .\n";
}

// Words of a line, taken from the front.
class Words {
 public:
  explicit Words(std::string_view line) : rest_(line) {}
  std::string_view next() {
    const size_t space = rest_.find(' ');
    const std::string_view word = rest_.substr(0, space);
    rest_ = space == rest_.npos ? "" : rest_.substr(space + 1);
    return word;
  }
  std::optional<uint32_t> number() {
    const std::string_view word = next();
    uint32_t value = 0;
    const auto [end, failure] =
        std::from_chars(word.data(), word.data() + word.size(), value);
    if (failure != std::errc{} || end != word.data() + word.size())
      return std::nullopt;
    return value;
  }

 private:
  std::string_view rest_;
};

// Nothing for a line that is torn or no line of ours.
std::optional<Outcome> parse(std::string_view line) {
  Words words(line);
  Outcome outcome;
  const auto item = words.number();
  if (!item) return std::nullopt;
  outcome.item = *item;
  for (std::string_view word = words.next(); word != "."; word = words.next()) {
    const auto first = words.number();
    if (!first) return std::nullopt;
    if (word == "c") {
      const auto index = words.number(), value = words.number();
      if (!index || !value) return std::nullopt;
      outcome.crcs.push_back({*first, *index, *value});
      continue;
    }
    const auto digest = Digest::parse(words.next());
    if (!digest || (word != "s" && word != "t")) return std::nullopt;
    (word == "s" ? outcome.source : outcome.target)
        .emplace_back(*first, *digest);
  }
  return outcome;
}

// FNV-1a over words: it tells two plans apart, nothing more is asked of it.
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

}  // namespace

uint64_t fingerprint(const Plan& plan, const Catalog& source,
                     const Target& target) {
  Hash hash;
  add_plan(plan, hash);
  for (const File& file : source.files) {
    struct stat facts = {};
    ::stat(file.path.c_str(), &facts);
    hash.add(file.path);
    hash.all(static_cast<uint64_t>(facts.st_size),
             static_cast<uint64_t>(facts.st_mtim.tv_sec),
             static_cast<uint64_t>(facts.st_mtim.tv_nsec));
  }
  for (const TargetFile& file : target.files) {
    hash.add(file.path);
    hash.add(file.copy_of);
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
  Journal journal(io::Handle::create(path));
  const std::string header = header_line(fingerprint);
  journal.file_.write(0, std::string_view(header));
  journal.end_ = header.size();
  return journal;
}

std::optional<Journal> Journal::open(const std::string& path,
                                     uint64_t fingerprint) {
  if (!io::is_file(path)) return std::nullopt;
  const std::string text = io::read_file(path, kMaxJournal);
  const std::string header = header_line(fingerprint);
  const size_t first = text.find('\n');
  if (first == text.npos || !text.starts_with("ckpt-journal 1 "))
    return std::nullopt;
  Words have(std::string_view(text).substr(15, first - 15));
  Words want(std::string_view(header).substr(15, header.size() - 16));
  const bool same_work = have.next() == want.next();
  if (have.next() != want.next()) return std::nullopt;  // another boot
  if (!same_work)
    throw unfaithful_error({path, {}},
                           "--resume: the source or the options are not those "
                           "of the run that was stopped")
        .with_hint("run it without --resume to start over");
  Journal journal(io::Handle::open_write(path));
  journal.end_ = first + 1;
  for (size_t at = first + 1;;) {
    const size_t end = text.find('\n', at);
    if (end == text.npos) break;
    auto outcome = parse(std::string_view(text).substr(at, end - at));
    if (!outcome) break;
    journal.done_.push_back(std::move(*outcome));
    journal.end_ = at = end + 1;
  }
  journal.items_ = journal.done_.size();
  return journal;
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
  } catch (const Error&) {  // a full disk: those items are done again
  }
}

}  // namespace ckpt::reshard
