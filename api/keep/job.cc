// SPDX-License-Identifier: Apache-2.0
#include "api/keep/job.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "ckpt/error.h"
#include "lib/interrupt.h"
#include "lib/io/file.h"
#include "lib/io/lock.h"
#include "lib/io/retry.h"
#include "lib/text/format.h"
#include "lib/text/number.h"

namespace ckpt::library {
namespace {

constexpr uint64_t kMostRun = 1 << 16;
constexpr auto kPause = std::chrono::milliseconds(50);
constexpr auto kSignals = std::to_array<int>({SIGINT, SIGTERM, SIGHUP});

// An open file, closed at the end.
class RunFile {
 public:
  RunFile(const std::string& path, int flags)
      : fd_(io::retry([&] {
          return ::open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW, 0600);
        })) {}
  ~RunFile() {
    if (fd_ >= 0) ::close(fd_);
  }
  RunFile(const RunFile&) = delete;
  RunFile& operator=(const RunFile&) = delete;
  int fd() const { return fd_; }

 private:
  int fd_;
};

// "2 checkpoint-30\n0\n"; a line without an end was not fully written.
JobEnd end_of(std::string_view text) {
  JobEnd end;
  const size_t line = text.find('\n');
  const size_t space = text.find(' ');
  if (line == text.npos || space >= line) return end;
  end.tries = text::number<uint32_t>(text.substr(0, space)).value_or(0);
  end.step = text.substr(space + 1, line - space - 1);
  text.remove_prefix(line + 1);
  if (const size_t last = text.find('\n'); last != text.npos)
    if (const auto status = text::number(text.substr(0, last), 255))
      end.status = static_cast<int>(*status);
  return end;
}

// What the command gets: as this process has it, but for its own handlers.
struct Before {
  std::array<struct sigaction, kSignals.size()> actions;
  Before() {
    for (size_t i = 0; i < kSignals.size(); ++i)
      ::sigaction(kSignals[i], nullptr, &actions[i]);
  }
};

// From here to the end of keep_command() a thread of the parent may hold any
// lock: only calls that are safe in a signal handler.

[[noreturn]] void become(char* const* words, const Before& before,
                         bool to_stderr) {
  for (size_t i = 0; i < kSignals.size(); ++i)
    if (before.actions[i].sa_handler != SIG_IGN) ::signal(kSignals[i], SIG_DFL);
  ::signal(SIGPIPE, SIG_DFL);
  ::signal(SIGXFSZ, SIG_DFL);
  const int none = ::open("/dev/null", O_RDONLY);
  if (none >= 0) ::dup2(none, STDIN_FILENO);
  if (to_stderr) ::dup2(STDERR_FILENO, STDOUT_FILENO);
  ::execvp(words[0], words);
  ::_exit(errno == ENOENT ? 127 : 126);
}

[[noreturn]] void keep_command(int run, char* const* words,
                               const Before& before, bool to_stderr) {
  ::setpgid(0, 0);
  for (const int number : kSignals) ::signal(number, SIG_IGN);
  ::signal(SIGCHLD, SIG_DFL);
  for (int fd = 3; fd < 1024; ++fd)  // the parent's locks among them
    if (fd != run) ::close(fd);
  const pid_t command = ::fork();
  if (command < 0) ::_exit(1);
  if (command == 0) become(words, before, to_stderr);
  int ended = 0;
  while (::waitpid(command, &ended, 0) < 0)
    if (errno != EINTR) ::_exit(1);
  const int status =
      WIFEXITED(ended) ? WEXITSTATUS(ended) : 128 + WTERMSIG(ended);
  char line[5];
  size_t size = 0;
  if (status >= 100) line[size++] = static_cast<char>('0' + status / 100);
  if (status >= 10) line[size++] = static_cast<char>('0' + status / 10 % 10);
  line[size++] = static_cast<char>('0' + status % 10);
  line[size++] = '\n';
  if (::write(run, line, size) != static_cast<ssize_t>(size)) ::_exit(1);
  ::fsync(run);
  ::_exit(0);
}

// Waits for the keeper, and passes a signal on once.
void wait_for(pid_t keeper) {
  bool passed = false;
  for (;;) {
    const pid_t ended = ::waitpid(keeper, nullptr, WNOHANG);
    if (ended == keeper || (ended < 0 && errno != EINTR)) return;
    if (interrupted() && !passed) {
      passed = true;
      ::kill(-keeper, Interrupted("").signal());
    }
    std::this_thread::sleep_for(kPause / 10);
  }
}

std::string read_all(int fd, const std::string& path) {
  std::string text(kMostRun, '\0');
  const ssize_t count =
      io::retry([&] { return ::pread(fd, text.data(), text.size(), 0); });
  if (count < 0) throw io_error(path, "cannot read", errno);
  text.resize(static_cast<size_t>(count));
  return text;
}

}  // namespace

std::optional<JobEnd> earlier_job(const std::string& place,
                                  const std::function<void()>& waits) {
  const RunFile file(place, O_RDWR);
  if (file.fd() < 0) {
    if (errno == ENOENT) return std::nullopt;
    throw io_error(place, "cannot open", errno);
  }
  if (!io::try_lock(file.fd(), LOCK_EX, place)) {
    waits();
    while (!io::try_lock(file.fd(), LOCK_EX, place)) {
      if (interrupted()) throw Interrupted("stopped; the command goes on");
      std::this_thread::sleep_for(kPause);
    }
  }
  return end_of(read_all(file.fd(), place));
}

JobEnd run_job(const std::string& place, const std::string& step,
               uint32_t tries, const std::vector<std::string>& command,
               bool to_stderr) {
  forget_job(place);
  const RunFile file(place, O_RDWR | O_CREAT | O_EXCL | O_APPEND);
  if (file.fd() < 0) throw io_error(place, "cannot create", errno);
  if (!io::try_lock(file.fd(), LOCK_EX, place))
    throw Error(ExitCode::kIo, {place, {}}, "another process holds it");
  const std::string line = fmt::format("{} {}\n", tries, step);
  if (io::retry([&] { return ::write(file.fd(), line.data(), line.size()); }) !=
      static_cast<ssize_t>(line.size()))
    throw io_error(place, "cannot write", errno);
  if (::fsync(file.fd()) != 0) throw io_error(place, "cannot flush", errno);

  std::vector<char*> words;
  for (const std::string& word : command)
    words.push_back(const_cast<char*>(word.c_str()));
  words.push_back(nullptr);
  const Before before;
  const pid_t keeper = ::fork();
  if (keeper < 0)
    throw io_error(command[0], "cannot start a process for it", errno);
  if (keeper == 0) keep_command(file.fd(), words.data(), before, to_stderr);
  ::setpgid(keeper,
            keeper);  // before a signal is passed on; either may be first
  wait_for(keeper);
  JobEnd end = end_of(read_all(file.fd(), place));
  end.step = step;
  end.tries = tries;
  return end;
}

void forget_job(const std::string& place) {
  if (::unlink(place.c_str()) != 0 && errno != ENOENT)
    throw io_error(place, "cannot remove", errno);
}

void check_program(const std::string& name) {
  const auto runs = [](const std::string& path) {
    struct stat facts;
    return ::stat(path.c_str(), &facts) == 0 && S_ISREG(facts.st_mode) &&
           ::access(path.c_str(), X_OK) == 0;
  };
  if (name.find('/') != name.npos) {
    if (runs(name)) return;
  } else {
    const char* const set = std::getenv("PATH");
    std::string_view rest = set ? set : "/usr/bin:/bin";
    while (!rest.empty()) {
      const size_t end = std::min(rest.find(':'), rest.size());
      const std::string folder(rest.substr(0, end));
      if (runs(io::join(folder.empty() ? "." : folder, name))) return;
      rest.remove_prefix(std::min(end + 1, rest.size()));
    }
  }
  throw usage_error({}, "no program '{}' can be run", text::printable(name))
      .with_hint("no shell reads the words: sh -c '…' runs one");
}

}  // namespace ckpt::library
