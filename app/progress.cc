#include "app/progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
#include <string>

#include "app/console.h"
#include "app/table.h"
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

class Bar {
 public:
  explicit Bar(bool terminal) : terminal_(terminal) {}
  void begin(std::string_view stage, uint64_t total);
  void advance(uint64_t bytes);
  void file(std::string_view path);
  void end();
  void hide();

 private:
  std::string line() const;
  void draw();

  const bool terminal_;
  std::atomic<uint64_t> done_{0};
  std::atomic<Clock::rep> next_{0};  // when to draw again
  std::mutex mutex_;                 // guards what follows
  std::string stage_, file_;
  uint64_t total_ = 0;
  Clock::time_point start_;
  uint64_t tenths_ = 0;  // that plain lines have shown
  bool running_ = false;
  bool shown_ = false;
};

// The one that say() hides. Set before any thread of the engine runs.
std::weak_ptr<Bar> active;

void write_stderr(std::string_view text) {
  // A progress bar that can't be written is no reason to stop.
  [[maybe_unused]] const auto ignored =
      ::write(STDERR_FILENO, text.data(), text.size());
}

void Bar::begin(std::string_view stage, uint64_t total) {
  const std::lock_guard lock(mutex_);
  stage_ = stage;
  total_ = total;
  file_.clear();
  tenths_ = 0;
  done_ = 0;
  start_ = Clock::now();
  // Nothing is shown for work that takes less than a moment.
  next_ = (start_ + 3 * kRedraw).time_since_epoch().count();
  running_ = true;
}

void Bar::advance(uint64_t bytes) {
  done_.fetch_add(bytes, std::memory_order_relaxed);
  const Clock::time_point now = Clock::now();
  Clock::rep due = next_.load(std::memory_order_relaxed);
  const Clock::rep later = (now + kRedraw).time_since_epoch().count();
  if (now.time_since_epoch().count() < due) return;
  if (!next_.compare_exchange_strong(due, later)) return;
  const std::lock_guard lock(mutex_);
  if (running_) draw();
}

void Bar::file(std::string_view path) {
  const std::lock_guard lock(mutex_);
  file_ = text::printable(path);
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

void Bar::draw() {
  if (!terminal_) {
    const uint64_t tenths =
        total_ != 0 ? std::min(done_.load(), total_) / (total_ / 10 + 1) : 10;
    if (tenths <= tenths_) return;
    tenths_ = tenths;
    write_stderr(stage_ + " " + line() + "\n");
    return;
  }
  constexpr size_t kCells = 20;
  const size_t width = std::max<size_t>(stderr_width(), 40);
  const uint64_t done = std::min(done_.load(), total_);
  const size_t full =
      total_ != 0 ? static_cast<size_t>(static_cast<double>(done) * kCells /
                                        static_cast<double>(total_))
                  : kCells;
  std::string text = stage_ + " ";
  for (size_t i = 0; i < kCells; ++i) text += i < full ? "█" : "░";
  text += line();
  const size_t used = display_width(text) + 2;
  if (!file_.empty() && used + 8 < width)
    text += "  " + cut_middle(file_, width - used - 1);
  write_stderr("\r\x1b[K" + cut_middle(text, width - 1));
  shown_ = true;
}

void Bar::end() {
  hide();
  const std::lock_guard lock(mutex_);
  running_ = false;
  if (terminal_) return;
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

Progress make_progress(const OutputOptions& options) {
  const bool terminal = isatty(STDERR_FILENO) != 0;
  const bool wanted =
      options.progress == When::kAlways ||
      (options.progress == When::kAuto && terminal && options.verbosity >= 0);
  if (!wanted) return {};
  auto bar = std::make_shared<Bar>(terminal);
  active = bar;
  return {
      .on_begin = [bar](std::string_view stage,
                        uint64_t total) { bar->begin(stage, total); },
      .on_advance = [bar](uint64_t bytes) { bar->advance(bytes); },
      .on_file = [bar](std::string_view path) { bar->file(path); },
      .on_end = [bar] { bar->end(); },
  };
}

void hide_progress() {
  if (const std::shared_ptr<Bar> bar = active.lock()) bar->hide();
}

}  // namespace ckpt::app
