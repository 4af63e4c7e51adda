// SPDX-License-Identifier: Apache-2.0
#include "app/print/progress.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "app/options/rate.h"
#include "app/print/console.h"
#include "app/print/json_writer.h"
#include "app/print/table.h"
#include "lib/io/remote.h"
#include "lib/text/format.h"

namespace ckpt::app {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kRedraw = std::chrono::milliseconds(100);

std::string clock_text(double seconds) {
  const auto s = static_cast<uint64_t>(std::min(seconds, 359'999.0));
  if (s >= 3600)
    return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
  return fmt::format("{}:{:02}", s / 60, s % 60);
}

enum class Look : uint8_t { kBar, kTenths, kMinutes, kJson };

class Bar {
 public:
  explicit Bar(Look look) : look_(look) {}
  // An exception ends the work without end(); its message gets its own line.
  ~Bar() { hide(); }
  Bar(const Bar&) = delete;
  Bar& operator=(const Bar&) = delete;
  void begin(std::string_view stage, uint64_t total);
  void advance(uint64_t bytes);
  void tensor(std::string_view name);
  void end();
  void hide();

 private:
  std::string line() const;
  static std::string wire();
  void draw();
  std::string cells(size_t count) const;
  void draw_bar();
  void say_json(bool done) const;
  Clock::duration period() const;

  const Look look_;
  std::atomic<uint64_t> done_{0};
  std::atomic<Clock::rep> next_{0};  // when to draw again
  std::mutex mutex_;                 // guards what follows
  std::string stage_;
  std::string tensor_;  // being moved now
  uint64_t total_ = 0;
  Clock::time_point start_;
  uint64_t tenths_ = 0;  // shown by plain lines so far
  bool running_ = false;
  bool shown_ = false;  // a bar is on the line
  bool told_ = false;   // a line was written
};

// The bar that say() hides. Set before any thread of the engine runs.
std::weak_ptr<Bar> active;

void hide_active() {
  if (const std::shared_ptr<Bar> bar = active.lock()) bar->hide();
}

void write_stderr(std::string_view text) {
  // A progress bar that can't be written does not stop the run.
  [[maybe_unused]] const auto ignored =
      ::write(STDERR_FILENO, text.data(), text.size());
}

void Bar::begin(std::string_view stage, uint64_t total) {
  const std::lock_guard lock(mutex_);
  stage_ = stage;
  total_ = total;
  tensor_.clear();
  tenths_ = 0;
  done_ = 0;
  told_ = false;
  start_ = Clock::now();
  // Nothing is shown for work that takes less than a moment.
  const auto first =
      look_ == Look::kMinutes ? period() : Clock::duration(3 * kRedraw);
  next_ = (start_ + first).time_since_epoch().count();
  running_ = true;
  if (look_ == Look::kJson) say_json(false);
}

Clock::duration Bar::period() const {
  if (look_ == Look::kMinutes) return std::chrono::minutes(1);
  return look_ == Look::kJson ? Clock::duration(std::chrono::seconds(1))
                              : Clock::duration(kRedraw);
}

void Bar::advance(uint64_t bytes) {
  done_.fetch_add(bytes, std::memory_order_relaxed);
  const Clock::time_point now = Clock::now();
  Clock::rep due = next_.load(std::memory_order_relaxed);
  const Clock::rep later = (now + period()).time_since_epoch().count();
  if (now.time_since_epoch().count() < due) return;
  if (!next_.compare_exchange_strong(due, later)) return;
  const std::lock_guard lock(mutex_);
  if (running_) draw();
}

void Bar::tensor(std::string_view name) {
  const std::lock_guard lock(mutex_);
  tensor_ = name;
}

std::string Bar::line() const {
  const uint64_t done = std::min(done_.load(), total_);
  const double seconds =
      std::chrono::duration<double>(Clock::now() - start_).count();
  const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
  const double share =
      total_ != 0 ? static_cast<double>(done) / static_cast<double>(total_) : 1;
  std::string text = fmt::format("{:3.0f}%  {} / {}  {}/s", share * 100,
                                 text::iec_size(done), text::iec_size(total_),
                                 text::iec_size(static_cast<uint64_t>(rate)));
  if (rate > 0 && done < total_)
    text += "  ETA " + clock_text(static_cast<double>(total_ - done) / rate);
  return text;
}

// Includes headers, what arrived in vain and what was sent again.
std::string Bar::wire() {
  const io::RemoteTraffic traffic = io::remote_traffic();
  if (traffic.requests == 0) return {};
  return "  wire " + text::iec_size(traffic.bytes + traffic.sent);
}

void Bar::say_json(bool done) const {
  const uint64_t bytes = std::min(done_.load(), total_);
  const double seconds =
      std::chrono::duration<double>(Clock::now() - start_).count();
  const double rate = seconds > 0 ? static_cast<double>(bytes) / seconds : 0;
  JsonWriter json;
  json.begin_document("progress").member("phase", stage_);
  json.member("bytes_done", bytes).member("bytes_total", total_);
  json.member("seconds", seconds);
  json.member("rate", static_cast<uint64_t>(rate)).key("eta");
  rate > 0 ? json.value(static_cast<double>(total_ - bytes) / rate)
           : json.null();
  json.member("peak_memory", peak_memory());
  const io::RemoteTraffic traffic = io::remote_traffic();
  json.member("bytes_received", traffic.bytes);
  json.member("bytes_sent", traffic.sent);
  json.key("file").null();  // of ckpt/progress/1, before there was a tensor
  json.text_or_null("tensor", done ? "" : tensor_);
  json.member("done", done).end_object();
  write_stderr(std::move(json).text());
}

void Bar::draw() {
  if (look_ == Look::kBar) return draw_bar();
  if (look_ == Look::kJson) return say_json(false);
  const uint64_t tenths =
      total_ != 0 ? std::min(done_.load(), total_) / (total_ / 10 + 1) : 10;
  if (look_ == Look::kTenths && tenths <= tenths_) return;
  tenths_ = tenths;
  told_ = true;
  write_stderr(
      fmt::format("{} {}{}  peak memory {}{}\n", stage_, line(), wire(),
                  text::iec_size(peak_memory()),
                  tensor_.empty() ? "" : "  " + text::printable(tensor_)));
}

// "█████░░░░░" with so many cells.
std::string Bar::cells(size_t count) const {
  const uint64_t done = std::min(done_.load(), total_);
  const size_t full = total_ != 0
                          ? static_cast<size_t>(static_cast<double>(done) *
                                                static_cast<double>(count) /
                                                static_cast<double>(total_))
                          : count;
  std::string text;
  for (size_t i = 0; i < count; ++i) text += i < full ? "█" : "░";
  return text;
}

// What does not fit is dropped from the end: the tensor, memory, then cells of
// the bar. The share, bytes and rate are cut last.
void Bar::draw_bar() {
  constexpr size_t kWide = 100, kMostCells = 20, kCells = 6, kLeastCells = 4;
  const size_t width = std::max<size_t>(stderr_width(), 40) - 1;
  const std::string numbers = line();
  const size_t used = display_width(stage_) + display_width(numbers) + 2;
  size_t count = width >= kWide ? kMostCells : kCells;
  count = std::min(count, width - std::min(width, used));
  if (count < kLeastCells) count = 0;
  std::string text = stage_ + " " + cells(count) + " " + numbers;
  for (const std::string& more :
       {wire(), "  mem " + text::iec_size(peak_memory())})
    if (display_width(text) + display_width(more) <= width) text += more;
  const size_t room = width - std::min(width, display_width(text) + 2);
  constexpr size_t kLeastName = 16;
  if (!tensor_.empty() && room >= kLeastName)
    text += "  " + cut_middle(text::printable(tensor_), room);
  write_stderr("\r\x1b[K" + cut_end(text, width));
  shown_ = true;
}

void Bar::end() {
  hide();
  const std::lock_guard lock(mutex_);
  running_ = false;
  if (look_ == Look::kJson) return say_json(true);
  if (look_ == Look::kBar || (look_ == Look::kMinutes && !told_)) return;
  const double seconds =
      std::chrono::duration<double>(Clock::now() - start_).count();
  write_stderr(fmt::format("{} done: {} in {:.1f} s\n", stage_,
                           text::iec_size(done_.load()), seconds));
}

void Bar::hide() {
  const std::lock_guard lock(mutex_);
  if (shown_) write_stderr("\r\x1b[K");
  shown_ = false;
}

}  // namespace

// Linux keeps ru_maxrss across exec: it would be the shell's, or Python's, that
// started this process. Where /proc is not mounted, that is all there is.
uint64_t peak_memory() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    constexpr std::string_view kPeak = "VmHWM:";
    if (!line.starts_with(kPeak)) continue;
    return std::strtoull(line.c_str() + kPeak.size(), nullptr, 10) << 10;  // kB
  }
  rusage usage = {};
  ::getrusage(RUSAGE_SELF, &usage);
  return static_cast<uint64_t>(usage.ru_maxrss) << 10;  // KiB
}

namespace {

// What was requested, or suits what stderr is; nothing means silence.
std::optional<Look> look_of(const OutputOptions& options) {
  const bool terminal = isatty(STDERR_FILENO) != 0;
  if (options.progress_json) return Look::kJson;
  if (options.progress == When::kNever) return std::nullopt;
  if (options.progress == When::kAlways)
    return terminal ? Look::kBar : Look::kTenths;
  if (options.verbosity < 0) return std::nullopt;
  if (terminal) return Look::kBar;
  // A program then reads stderr: it gets an error as JSON, or nothing.
  if (options.json) return std::nullopt;
  return Look::kMinutes;
}

}  // namespace

Progress make_progress(const OutputOptions& options) {
  const std::optional<Look> look = look_of(options);
  if (!look) {
    if (max_rate() == 0) return {};
    return {.on_advance = [](uint64_t bytes) { pace(bytes); }};
  }
  auto bar = std::make_shared<Bar>(*look);
  active = bar;
  clear_before_lines(hide_active);
  return {
      .on_begin = [bar](std::string_view stage,
                        uint64_t total) { bar->begin(stage, total); },
      .on_advance =
          [bar](uint64_t bytes) {
            bar->advance(bytes);
            pace(bytes);
          },
      .on_file = [bar](std::string_view name) { bar->tensor(name); },
      .on_end = [bar] { bar->end(); },
  };
}

}  // namespace ckpt::app
