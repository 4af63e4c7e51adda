// SPDX-License-Identifier: Apache-2.0
#include "api/keep/watch_state.h"

#include <fmt/format.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>
#include <vector>

#include "ckpt/error.h"
#include "ckpt/keep.h"
#include "lib/hash/sha256.h"
#include "lib/io/file.h"
#include "lib/io/lock.h"
#include "lib/io/remote.h"
#include "lib/io/rename.h"
#include "lib/text/json.h"
#include "lib/text/shell.h"

namespace ckpt {
namespace library {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMostState = uint64_t{256} << 20;
constexpr std::string_view kStateSchema = "ckpt/watch_state/1";

void make_directory(const std::string& path) {
  std::error_code failed;
  fs::create_directories(path, failed);
  if (failed) throw io_error(path, "cannot make it", failed.value());
}

}  // namespace

struct WatchState::Lock {
  explicit Lock(const std::string& path) : held(path) {}
  io::TargetLock held;
};

WatchState::WatchState(std::string path, std::string root, bool only_read)
    : path_(std::move(path)), root_(std::move(root)) {
  if (!only_read) {
    make_directory(io::parent(path_));
    lock_ = std::make_unique<Lock>(path_);
  }
  if (io::is_file(path_)) read();
}

WatchState::~WatchState() = default;

void WatchState::read() {
  const nlohmann::json state =
      text::parse_json(io::read_file(path_, kMostState), path_);
  if (text::string_member(state, "schema", path_) != kStateSchema)
    throw input_error({path_, {}}, "is not the state of a watch")
        .with_hint("name another file with --state");
  if (const std::string root = text::string_member(state, "root", path_);
      root != root_)
    throw usage_error({path_, {}}, "is the state of a watch of {}", root)
        .with_hint("name another file with --state");
  for (const auto& [name, one] : text::member(state, "steps", path_).items()) {
    Step& step = steps_[name];
    step.tries = static_cast<uint32_t>(text::uint_member(one, "tries", path_));
    step.status = static_cast<int>(text::uint_member(one, "status", path_));
    step.done = text::uint_member(one, "done", path_) != 0;
  }
}

WatchState::Step WatchState::of(const std::string& name) const {
  const auto found = steps_.find(name);
  return found == steps_.end() ? Step{} : found->second;
}

void WatchState::set(const std::string& name, const Step& step) {
  steps_[name] = step;
  write();
}

void WatchState::write() const {
  nlohmann::json steps = nlohmann::json::object();
  for (const auto& [name, step] : steps_)
    steps[name] = {{"done", step.done ? 1 : 0},
                   {"status", step.status},
                   {"tries", step.tries}};
  const nlohmann::json state{
      {"schema", kStateSchema}, {"root", root_}, {"steps", std::move(steps)}};
  const std::string draft = path_ + ".new";
  std::error_code ignored;
  fs::remove(draft, ignored);
  const io::Handle file = io::Handle::create(draft);
  file.write(
      0, state.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) +
             "\n");
  file.sync();
  io::replace_by_rename(draft, path_);
  io::sync_directory(io::parent(path_));
}

}  // namespace library

std::string default_watch_state(const std::string& root,
                                const std::vector<std::string>& command) {
  const char* const set = std::getenv("XDG_STATE_HOME");
  const char* const home = std::getenv("HOME");
  std::string folder;
  if (set && *set == '/')
    folder = set;
  else if (home && *home == '/')
    folder = io::join(home, ".local/state");
  else
    throw usage_error({}, "no directory for the state of a watch is known")
        .with_hint("--state FILE names a file; HOME is not set");
  Sha256 sum;
  const auto add = [&](const std::string& text) {
    sum.update(std::as_bytes(std::span(text.c_str(), text.size() + 1)));
  };
  add(root);
  for (const std::string& word : command) add(word);
  return io::join(folder,
                  fmt::format("ckpt/watch/{}-{}.json", io::base_name(root),
                              sum.hex().substr(0, 16)));
}

}  // namespace ckpt
