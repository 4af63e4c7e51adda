// SPDX-License-Identifier: Apache-2.0
#include "app/commands/plan_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/stat.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <span>

#include "app/commands/commands.h"
#include "app/options/written.h"
#include "app/print/json_writer.h"
#include "ckpt/error.h"
#include "lib/hash/sha256.h"
#include "lib/io/file.h"
#include "lib/io/listing.h"
#include "lib/io/remote.h"
#include "lib/text/format.h"
#include "lib/text/json.h"
#include "lib/text/shell.h"

namespace ckpt::app {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kSchema = "ckpt/plan/1";
constexpr uint64_t kHead = 4096;                    // bytes hashed of each file
constexpr uint64_t kMostSourceFiles = 1 << 20;      // of one source
constexpr uint64_t kMostBytes = uint64_t{1} << 30;  // of a plan

struct Identity {
  uint64_t bytes = 0;
  int64_t mtime_ns = 0;
  int64_t ctime_ns = 0;
  uint64_t inode = 0;
  std::string head;
  friend bool operator==(const Identity&, const Identity&) = default;
};

int64_t nanoseconds(const timespec& time) {
  return int64_t{time.tv_sec} * 1'000'000'000 + time.tv_nsec;
}

std::string head_of(const io::Handle& file) {
  const std::string head =
      file.read_string(0, std::min<uint64_t>(kHead, file.size()));
  Sha256 sum;
  sum.update(std::as_bytes(std::span(head)));
  return sum.hex();
}

Identity identity_of(const std::string& path) {
  struct stat facts;
  if (::stat(path.c_str(), &facts) != 0) throw io_error(path, "stat", errno);
  const io::Handle file = io::Handle::open_read(path);
  return {.bytes = static_cast<uint64_t>(facts.st_size),
          .mtime_ns = nanoseconds(facts.st_mtim),
          .ctime_ns = nanoseconds(facts.st_ctim),
          .inode = facts.st_ino,
          .head = head_of(file)};
}

using Files = std::map<std::string, Identity>;  // by path below the source

// By the version that the server names (lib/io/remote.h).
Identity identity_of_url(const std::string& url) {
  struct stat facts;
  if (!io::stat_any(url, facts))
    throw missing_error({url, {}}, "does not exist");
  return {.bytes = static_cast<uint64_t>(facts.st_size),
          .mtime_ns = 0,
          .ctime_ns = 0,
          .inode = facts.st_ino,
          .head = {}};
}

Files files_of_url(const std::string& source) {
  Files files;
  if (io::is_file(source)) {
    files.emplace("", identity_of_url(source));
    return files;
  }
  for (const io::RemoteEntry& one : io::files_below(source))
    files.emplace(one.path, identity_of_url(io::join(source, one.path)));
  return files;
}

// All regular files of a source; a single file is listed under the name "".
Files files_of(const std::string& source) {
  if (io::is_url(source)) return files_of_url(source);
  Files files;
  if (io::is_file(source)) {
    files.emplace("", identity_of(source));
    return files;
  }
  std::error_code failed;
  for (fs::recursive_directory_iterator
           at(source, fs::directory_options::follow_directory_symlink, failed),
       end;
       !failed && at != end; at.increment(failed)) {
    if (io::is_lost_and_found(at->path().string()))
      at.disable_recursion_pending();
    if (!at->is_regular_file()) continue;
    if (files.size() == kMostSourceFiles || at.depth() > 64)
      throw resource_error({source, {}}, "too many files for a plan");
    files.emplace(at->path().lexically_relative(source).string(),
                  identity_of(at->path().string()));
  }
  if (failed) throw io_error(source, "list", failed.value());
  return files;
}

// What the words name and exists: the source, and files given to options. The
// target does not exist or is replaced.
std::vector<std::string> sources_of(const std::vector<std::string>& words,
                                    const std::string& source,
                                    const std::string& target) {
  std::vector<std::string> found{source};
  for (const std::string& word : words) {
    const size_t equals = word.starts_with("--") ? word.find('=') : word.npos;
    const std::string path =
        equals == word.npos ? word : word.substr(equals + 1);
    if (path == target || (!io::is_file(path) && !io::is_directory(path)))
      continue;
    if (std::ranges::find(found, path) == found.end()) found.push_back(path);
  }
  return found;
}

// The words without those that made it a plan.
std::vector<std::string> real_words(const std::vector<std::string>& words) {
  std::vector<std::string> kept;
  for (size_t i = 0; i < words.size(); ++i) {
    const std::string& word = words[i];
    if (word == "-n" || word == "--dry-run" || word == "--json" ||
        word.starts_with("--plan-file=") || word.starts_with("--html="))
      continue;
    if (word == "-o" || word == "--plan-file" || word == "--html") {
      ++i;
      continue;
    }
    kept.push_back(word);
  }
  return kept;
}

bool is_plan(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string head(64, '\0');
  file.read(head.data(), static_cast<std::streamsize>(head.size()));
  return head.find(kSchema) != head.npos;
}

std::string changes_text(const std::string& source, const Files& then,
                         const Files& now, size_t& count) {
  std::vector<std::string> lines;
  const auto add = [&](const std::string& name, std::string_view what) {
    ++count;
    if (lines.size() < 4)
      lines.push_back(fmt::format(
          "{} {}", name.empty() ? source : io::join(source, name), what));
  };
  for (const auto& [name, before] : then) {
    const auto after = now.find(name);
    if (after == now.end())
      add(name, "is gone");
    else if (before.bytes != after->second.bytes)
      add(name, fmt::format("has {} bytes, had {}", after->second.bytes,
                            before.bytes));
    else if (before.head != after->second.head)
      add(name, "begins with other bytes");
    else if (!(before == after->second))
      add(name, "was written to or replaced");
  }
  for (const auto& [name, after] : now)
    if (!then.contains(name)) add(name, "is new");
  return fmt::format("{}", fmt::join(lines, "; "));
}

Files files_from(const nlohmann::json& source, const std::string& path) {
  Files files;
  for (const nlohmann::json& file : text::member(source, "files", path)) {
    Identity identity;
    identity.bytes = text::uint_member(file, "bytes", path);
    identity.mtime_ns = text::member(file, "mtime_ns", path).get<int64_t>();
    identity.ctime_ns = text::member(file, "ctime_ns", path).get<int64_t>();
    identity.inode = text::uint_member(file, "inode", path);
    identity.head = text::string_member(file, "head", path);
    files.emplace(text::string_member(file, "path", path), identity);
  }
  return files;
}

// Where a relative name in the plan is.
std::string placed(const std::string& directory, const std::string& path) {
  return path.starts_with('/') || io::is_url(path) ? path
                                                   : io::join(directory, path);
}

void check_sources(const nlohmann::json& plan, const std::string& directory,
                   const std::string& path) {
  size_t count = 0;
  std::string text;
  for (const nlohmann::json& source : text::member(plan, "sources", path)) {
    const std::string name = text::string_member(source, "path", path);
    const std::string place = placed(directory, name);
    if (!io::is_file(place) && !io::is_directory(place))
      throw unfaithful_error({path, {}}, "{} is gone since the plan was made",
                             name)
          .with_hint("make the plan again: --dry-run -o " +
                     text::shell_path(path));
    const std::string changed =
        changes_text(name, files_from(source, path), files_of(place), count);
    if (!changed.empty()) text += (text.empty() ? "" : "; ") + changed;
  }
  if (count == 0) return;
  throw unfaithful_error({path, {}}, "{} changed since the plan was made: {}",
                         text::counted(count, "file"), text)
      .with_hint("look at it again: --dry-run -o " + text::shell_path(path));
}

void check_command(const std::vector<std::string>& words,
                   const std::string& path) {
  constexpr std::string_view kWriting[] = {"convert", "merge", "reshard",
                                           "unshard"};
  if (words.empty() ||
      std::ranges::find(kWriting, words[0]) == std::end(kWriting))
    throw input_error({path, {}}, "the plan is of no command that writes");
}

}  // namespace

void write_plan(const std::string& path, const std::string& source,
                const WriteReport& report, const OutputOptions& output) {
  const std::vector<std::string> words = real_words(command_words());
  JsonWriter json;
  json.begin_document("plan", true).member("version", CKPT_VERSION);
  json.member("command", words[0]).key("words").begin_array();
  for (const std::string& word : words) json.value(word);
  json.end_array().member("directory", fs::current_path().string());
  json.key("sources").begin_array();
  for (const std::string& one : sources_of(words, source, report.target_path)) {
    json.begin_object().member("path", one).key("files").begin_array();
    for (const auto& [name, identity] : files_of(one)) {
      json.begin_object().member("path", name);
      json.member("bytes", identity.bytes);
      json.member("mtime_ns", identity.mtime_ns);
      json.member("ctime_ns", identity.ctime_ns);
      json.member("inode", identity.inode);
      json.member("head", identity.head).end_object();
    }
    json.end_array().end_object();
  }
  json.end_array().key("result").begin_object();
  write_members(json, report);
  json.end_object().end_object();
  write_output(path, "--plan-file", output, std::move(json).text());
}

PlannedCommand read_plan(const std::string& path) {
  if (!is_plan(path))
    throw input_error({path, {}}, "not a plan of ckpt")
        .with_hint(
            "a dry run makes one: ckpt reshard SRC DST --tp 8 -n -o plan.json");
  const nlohmann::json plan =
      text::parse_json(io::read_file(path, kMostBytes), path);
  if (!plan.is_object() || !plan.contains("schema") ||
      plan["schema"] != kSchema)
    throw input_error({path, {}}, "not a plan of ckpt");
  if (text::string_member(plan, "version", path) != CKPT_VERSION)
    throw unfaithful_error(
        {path, {}}, "the plan was made by ckpt {}, this is {}",
        text::string_member(plan, "version", path), CKPT_VERSION)
        .with_hint("make the plan again: --dry-run -o " +
                   text::shell_path(path));
  PlannedCommand planned;
  planned.directory = text::string_member(plan, "directory", path);
  for (const nlohmann::json& word : text::member(plan, "words", path)) {
    if (!word.is_string())
      throw input_error({path, {}}, "words: expected strings");
    planned.words.push_back(word.get<std::string>());
  }
  check_command(planned.words, path);
  check_sources(plan, planned.directory, path);
  return planned;
}

}  // namespace ckpt::app
