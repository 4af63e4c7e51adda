// SPDX-License-Identifier: Apache-2.0
#include "formats/unrecognized.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>

#include "ckpt/error.h"
#include "containers/foreign.h"
#include "lib/failures.h"
#include "lib/io/file.h"
#include "lib/io/listing.h"
#include "lib/io/remote.h"
#include "lib/text/format.h"
#include "lib/text/shell.h"
#include "lib/text/suggest.h"

namespace ckpt::formats {
namespace {

using text::printable;

constexpr std::string_view kShowTried = "; -v shows what was tried";

constexpr std::string_view kIsItRight =
    "is it the right path? `ckpt --help` lists the formats that are read";

// "meta-llama/Llama-3-8B", not a local path.
bool is_hub_name(const std::string& path) {
  const size_t slash = path.find('/');
  const auto plain = [](std::string_view part) {
    return !part.empty() && part[0] != '.' && part[0] != '-' &&
           std::ranges::all_of(part, [](unsigned char c) {
             return std::isalnum(c) || c == '.' || c == '-' || c == '_';
           });
  };
  return slash != path.npos && plain(std::string_view(path).substr(0, slash)) &&
         plain(std::string_view(path).substr(slash + 1));
}

// What the shell left unexpanded in a path.
std::string unexpanded(const std::string& path) {
  if (path.starts_with("~/"))
    return "the shell expands ~ only where it is not quoted: \"$HOME\"" +
           printable(path.substr(1));
  if (path.find_first_of("*?[") != path.npos)
    return "patterns are for the shell, without quotes; ckpt takes one path";
  return {};
}

constexpr std::string_view kHere = "ls shows what is here";

// What is beside a URL that isn't there, if that can be listed. A bucket, or a
// host, may have millions of names.
std::string missing_url_hint(const std::string& path) {
  const std::string_view spelling =
      path.starts_with("http")
          ? "look at its spelling; of a server that lists no directories, name "
            "a file, such as model.safetensors.index.json"
          : "look at its spelling; upper and lower case differ";
  const failures::Unimportant suggestions;
  const std::string url = path.substr(0, path.find_last_not_of('/') + 1);
  const std::string folder = io::parent(url);
  if (folder.find('/', folder.find("://") + 3) == folder.npos)
    return std::string(spelling);
  try {
    const std::vector<std::string> names = io::list_directory(folder);
    const std::string near = text::nearest(io::base_name(url), names);
    if (!near.empty())
      return fmt::format("did you mean {}?", printable(folder + "/" + near));
    constexpr size_t kShown = 6;
    std::vector<std::string> some;
    for (size_t i = 0; i < std::min(names.size(), kShown); ++i)
      some.push_back(printable(names[i]));
    if (!some.empty())
      return fmt::format("below {} are: {}{}", printable(folder),
                         fmt::join(some, ", "),
                         names.size() > kShown ? " and more" : "");
  } catch (const Error&) {
    // It can't be listed.
  }
  return std::string(spelling);
}

// Suggests what could have been meant by a path that does not exist.
std::string missing_hint(const std::string& path) {
  const std::string directory = io::parent(path);
  try {
    if (io::is_url(path)) return missing_url_hint(path);
    if (const std::string url = meant_url(path); !url.empty())
      return fmt::format("did you mean {}?", printable(url));
    if (std::string hint = unexpanded(path); !hint.empty()) return hint;
    if (is_elsewhere(path))
      return "a path on another machine? ckpt reads http(s)://, hf://, s3://, "
             "gs:// and az://; over ssh, copy it here first: rsync -a";
    if (!io::is_directory(directory)) {
      if (is_hub_name(path))
        return fmt::format("a model of the Hugging Face hub is hf://{}",
                           printable(path));
      std::string above = directory;
      while (!io::is_directory(above) && above != io::parent(above))
        above = io::parent(above);
      if (above == ".") return std::string(kHere);
      return fmt::format("of that path only {} exists", printable(above));
    }
    const std::string near =
        text::nearest(io::base_name(path), io::list_directory(directory));
    if (!near.empty())
      return fmt::format("did you mean {}?",
                         printable(io::join(directory, near)));
    return directory == "." ? std::string(kHere)
                            : fmt::format("ls {} shows what is there",
                                          text::shell_path(directory));
  } catch (const Error&) {
    // It can't be read or listed: no suggestion then.
  }
  return {};
}

// Checkpoints a few levels below a directory that is not a checkpoint: "step_10
// (fairseq2)". `left` bounds how many directories are searched. The one that
// holds `failed` is already known.
void checkpoints_below(const std::string& path, const std::string& failed,
                       const std::string& shown, int depth, size_t& left,
                       std::vector<std::string>& found) {
  std::vector<std::string> names;
  try {
    names = io::list_directory(path);
  } catch (const Error&) {
    return;  // it can't be listed, so it is not a suggestion
  }
  for (const std::string& name : names) {
    const std::string below = io::join(path, name);
    const std::string title = shown.empty() ? name : io::join(shown, name);
    if (!io::is_directory(below) && depth > 0) continue;
    if (left == 0) return;
    --left;
    bool known = false;
    for (const Format& format : all_formats()) {
      try {
        if (!format.reader || !format.reader->supports(below).yes) continue;
      } catch (const Error&) {
        continue;
      }
      known = true;
      if (failed != below && !failed.starts_with(below + "/"))
        found.push_back(fmt::format("{} ({})", printable(title), format.name));
      break;
    }
    if (!known && depth < 3 && io::is_directory(below))
      checkpoints_below(below, failed, title, depth + 1, left, found);
  }
}

// "below it are: a (dcp), b (dcp) and 7 more"; "" if there are none.
std::string below_text(const std::string& path, const std::string& failed,
                       bool files) {
  const failures::Unimportant suggestions;
  constexpr size_t kShown = 6, kMostTried = 200;
  size_t left = kMostTried;
  std::vector<std::string> found;
  checkpoints_below(path, failed, "", files ? 0 : 1, left, found);
  if (found.empty()) return {};
  const size_t more = found.size() - std::min(found.size(), kShown);
  found.resize(found.size() - more);
  return fmt::format("below it {}: {}{}", found.size() == 1 ? "is" : "are",
                     fmt::join(found, ", "),
                     more ? fmt::format(" and {} more", more) : "");
}

// What a directory is, judging by the names in it.
std::string foreign_directory(const std::string& path,
                              const std::vector<std::string>& names) {
  for (const ForeignDirectory& row : foreign_directories())
    for (const std::string& name : names)
      if (row.exact ? name == row.name : name.ends_with(row.name))
        return fmt::format("{}: {}", row.foreign.what, row.foreign.hint);
  constexpr size_t kMostTried = 64;
  for (size_t i = 0; i < std::min(names.size(), kMostTried); ++i) {
    const auto foreign = recognise_file(io::join(path, names[i]));
    if (foreign)
      return fmt::format("{} is {}{}{}", printable(names[i]), foreign->what,
                         foreign->hint.empty() ? "" : ": ", foreign->hint);
  }
  return {};
}

// The checkpoint that a file without tensors belongs to: config.json's model.
std::string above_text(const std::string& path) {
  constexpr std::string_view kEndings[] = {".json", ".yaml", ".yml", ".txt",
                                           "latest"};
  if (std::ranges::none_of(kEndings, [&](std::string_view ending) {
        return path.ends_with(ending);
      }))
    return {};
  const failures::Unimportant suggestions;
  std::string above = io::parent(path);
  for (int level = 0; level < 2 && above != "." && above != "/"; ++level) {
    for (const Format& format : all_formats()) {
      try {
        if (format.reader && format.reader->supports(above).yes)
          return fmt::format("a checkpoint is its directory: {} ({})",
                             printable(above), format.name);
      } catch (const Error&) {
        continue;  // opening it reports the error
      }
    }
    above = io::parent(above);
  }
  return {};
}

// Inside Hugging Face's cache: "models--org--name/blobs".
std::string cache_text(const std::string& path) {
  const std::string above = io::parent(path);
  if (!io::base_name(above).starts_with("models--")) return {};
  return fmt::format("a part of Hugging Face's cache: open {}",
                     printable(above));
}

bool is_pipe(const std::string& path) {
  return path == "/dev/stdin" || path.starts_with("/dev/fd/") ||
         path.starts_with("/proc/self/fd/");
}

}  // namespace

std::string meant_url(const std::string& path) {
  constexpr std::string_view kSchemes[] = {"hf", "s3",    "gs",
                                           "az", "https", "http"};
  if (path.find("://") != path.npos) return {};
  if (path.starts_with("file:/")) return "file://" + path.substr(5);
  for (const std::string_view scheme : kSchemes) {
    const std::string head = std::string(scheme) + ":";
    if (!path.starts_with(head)) continue;
    const size_t rest = path.find_first_not_of('/', head.size());
    if (rest != path.npos) return head + "//" + path.substr(rest);
  }
  return {};
}

std::string checkpoints_below(const std::string& path,
                              const std::string& failed, bool files) {
  return below_text(path, failed, files);
}

bool is_elsewhere(const std::string& path) {
  const std::string head = path.substr(0, path.find('/'));
  const size_t colon = head.find(':');
  if (colon == head.npos || colon == 0 || io::is_url(path)) return false;
  const failures::Unimportant not_here;
  return !io::is_file(head) && !io::is_directory(head);
}

void check_named(const std::string& path) {
  if (path.empty() || path == "-" || is_pipe(path)) return;
  const uint64_t before = failures::mark();
  try {
    if (io::is_file(path) || io::is_directory(path)) return;
  } catch (const Error& error) {
    if (error.code() != ExitCode::kDamaged) throw;
    throw usage_error(error.where(), "{}", error.problem());  // a FIFO
  }
  if (const auto failure = failures::since(before, path)) throw *failure;
  check_path(path);
}

void check_path(const std::string& path) {
  if (path.empty())
    throw usage_error({}, "the path of the checkpoint is empty")
        .with_hint("is a variable of the script not set?");
  const bool pipe = is_pipe(path);
  if (!pipe && (io::is_file(path) || io::is_directory(path))) return;
  if (pipe || path == "-")
    throw missing_error({path, {}}, "a checkpoint can't be read from a pipe")
        .with_hint("save it to a file first; a file named -: ./-");
  throw missing_error({path, {}}, "no such file or directory")
      .with_hint(missing_hint(path));
}

void empty_file(const std::string& path) {
  throw missing_error({path, {}}, "an empty file (0 bytes)")
      .with_hint("fetch or copy the file again");
}

void unknown_file(const Detection& detection) {
  const std::string& path = detection.path;
  if (const auto foreign = recognise_file(path))
    throw missing_error({path, {}}, "not a checkpoint: this is {}",
                        foreign->what)
        .with_hint(foreign->hint.empty() ? std::string(kIsItRight)
                                         : std::string(foreign->hint));
  if (io::file_size(path) == 0) empty_file(path);
  std::string hint = above_text(path);
  if (hint.empty()) hint = foreign_directory(path, {io::base_name(path)});
  if (hint.empty()) hint = kIsItRight;
  throw missing_error({path, {}}, "not a recognized checkpoint")
      .with_hint(hint + std::string(kShowTried));
}

void unknown_directory(const Detection& detection) {
  const std::string& path = detection.path;
  const std::vector<std::string> names = io::list_directory(path);
  if (names.empty())
    throw missing_error({path, {}}, "an empty directory")
        .with_hint(
            "is it the right path? Was the download or the copy "
            "finished?");
  std::string hint = below_text(path, {}, true);
  if (hint.empty()) hint = cache_text(path);
  if (hint.empty()) hint = foreign_directory(path, names);
  // A format that nearly took it says why it did not.
  std::string near;
  for (const auto& [name, why] : detection.tried)
    if (near.empty() && (why.find("incomplete save") != why.npos ||
                         why.find("name the one") != why.npos ||
                         why.find("not a torch.save file") != why.npos ||
                         why.find("nor 'release'") != why.npos))
      near = fmt::format(" ({}: {})", name, why);
  if (hint.empty()) hint = kIsItRight;
  throw missing_error({path, {}}, "not a recognized checkpoint{}", near)
      .with_hint(hint + std::string(kShowTried));
}

}  // namespace ckpt::formats
