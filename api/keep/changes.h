// SPDX-License-Identifier: Apache-2.0
// Waits until something changes in directories: told by the kernel where it can
// (inotify), else for as long as it may take.
#pragma once

#include <string>
#include <vector>

namespace ckpt::library {

class Changes {
 public:
  Changes();
  ~Changes();
  Changes(const Changes&) = delete;
  Changes& operator=(const Changes&) = delete;

  // Directories to look at; those that can't be are left out. Network file
  // systems tell nothing of what other machines write.
  void look_at(const std::vector<std::string>& directories);
  // Returns after a change, after so many seconds, or after a signal.
  void wait(double seconds);

 private:
  int fd_ = -1;  // below 0: there is no inotify
};

}  // namespace ckpt::library
