// SPDX-License-Identifier: Apache-2.0
#include "api/keep/changes.h"

#include <poll.h>
#include <sys/inotify.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>

#include "lib/interrupt.h"
#include "lib/io/remote.h"

namespace ckpt::library {

Changes::Changes() : fd_(::inotify_init1(IN_CLOEXEC | IN_NONBLOCK)) {}

Changes::~Changes() {
  if (fd_ >= 0) ::close(fd_);
}

void Changes::look_at(const std::vector<std::string>& directories) {
  constexpr uint32_t kWanted = IN_CREATE | IN_MOVED_TO | IN_CLOSE_WRITE |
                               IN_DELETE | IN_MOVED_FROM | IN_ONLYDIR;
  if (fd_ < 0) return;
  for (const std::string& directory : directories)
    if (!io::is_url(directory))
      ::inotify_add_watch(fd_, directory.c_str(), kWanted);
}

void Changes::wait(double seconds) {
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                      std::chrono::duration<double>(seconds));
  // A signal may come just before poll() begins, so it never takes long.
  constexpr int kSlice = 200;
  while (!interrupted()) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now())
            .count();
    if (left <= 0) return;
    pollfd asked{.fd = fd_, .events = POLLIN, .revents = 0};
    const int slice = static_cast<int>(std::min<int64_t>(left, kSlice));
    if (::poll(&asked, fd_ >= 0 ? 1 : 0, slice) <= 0) continue;
    std::array<char, 4096> events;
    while (::read(fd_, events.data(), events.size()) > 0) {
    }
    return;
  }
}

}  // namespace ckpt::library
