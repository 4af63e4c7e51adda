// SPDX-License-Identifier: Apache-2.0
// What a watch has done, in a file that is replaced as a whole:
//
//   {"schema": "ckpt/watch_state/1", "root": "/run",
//    "steps": {"checkpoint-10": {"done": 1, "status": 0, "tries": 1}}}
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>

namespace ckpt::library {

class WatchState {
 public:
  struct Step {
    bool done = false;
    int status = 0;
    uint32_t tries = 0;
  };

  // Reads it, if it is there. Throws kIo if another process has it, usage_error
  // if it is of another root, input_error if it is damaged. `only_read`: no
  // lock, no directory.
  WatchState(std::string path, std::string root, bool only_read);
  ~WatchState();
  WatchState(const WatchState&) = delete;
  WatchState& operator=(const WatchState&) = delete;

  const std::string& path() const { return path_; }
  // Where the command that runs is noted.
  std::string run_path() const { return path_ + ".run"; }
  // Nothing was done with it yet: all zero.
  Step of(const std::string& name) const;
  // On the disk when it returns. Throws kIo.
  void set(const std::string& name, const Step& step);

 private:
  void read();
  void write() const;

  struct Lock;
  std::string path_;
  std::string root_;
  std::map<std::string, Step> steps_;
  std::unique_ptr<Lock> lock_;
};

}  // namespace ckpt::library
