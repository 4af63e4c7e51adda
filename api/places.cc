// SPDX-License-Identifier: Apache-2.0
#include "api/places.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>
#include <vector>

#include "ckpt/error.h"
#include "containers/foreign.h"
#include "formats/options.h"
#include "formats/unrecognized.h"
#include "lib/io/remote.h"
#include "lib/io/upload.h"
#include "lib/text/format.h"
#include "lib/text/suggest.h"
#include "lib/text/words.h"

namespace ckpt::library {
namespace {

// "https" of "https://…"; "" if the word is not a URL.
std::string_view scheme_of(std::string_view word) {
  const size_t at = word.find("://");
  if (at == word.npos || at == 0) return {};
  const std::string_view scheme = word.substr(0, at);
  const bool name = std::ranges::all_of(scheme, [](unsigned char c) {
    return std::isalnum(c) || c == '+' || c == '-' || c == '.';
  });
  return name && std::isalpha(static_cast<unsigned char>(scheme[0]))
             ? scheme
             : std::string_view{};
}

struct Fetch {
  std::string_view scheme;
  std::string_view hint;
};

constexpr auto kFetches = std::to_array<Fetch>({
    {"abfss", "az://CONTAINER/PATH, with AZURE_STORAGE_ACCOUNT set"},
    {"abfs", "az://CONTAINER/PATH, with AZURE_STORAGE_ACCOUNT set"},
    {"ftp", "download it first: curl -LO URL"},
});

// Decodes "%20" and the like in a file URL; nothing for a malformed one.
std::string unescaped(const std::string& url, std::string_view text) {
  const auto digit = [&](char c) {
    const auto lower = static_cast<char>(std::tolower(c));
    if (lower >= '0' && lower <= '9') return lower - '0';
    if (lower >= 'a' && lower <= 'f') return lower - 'a' + 10;
    throw usage_error({}, "'{}': not a valid file URL", text::printable(url));
  };
  std::string path;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '%') {
      path += text[i];
      continue;
    }
    if (i + 2 >= text.size())
      throw usage_error({}, "'{}': not a valid file URL", text::printable(url));
    path += static_cast<char>(digit(text[i + 1]) * 16 + digit(text[i + 2]));
    i += 2;
  }
  if (path.find('\0') != path.npos)
    throw usage_error({}, "'{}': not a valid file URL", text::printable(url));
  return path;
}

std::string path_of_url(const std::string& url) {
  std::string_view rest = std::string_view(url).substr(7);  // "file://"
  constexpr std::string_view kHere = "localhost";
  if (rest.starts_with(kHere)) rest.remove_prefix(kHere.size());
  if (!rest.starts_with('/'))
    throw usage_error({}, "'{}': a file URL of another host",
                      text::printable(url))
        .with_hint("file:///PATH, or just the path");
  return unescaped(url, rest);
}

// The parts after "scheme://", without a query.
std::vector<std::string> url_parts(const std::string& url) {
  std::vector<std::string> parts;
  std::string rest = url.substr(url.find("://") + 3);
  rest.resize(std::min(rest.find_first_of("?#"), rest.size()));
  for (size_t at = 0; at < rest.size();) {
    const size_t end = std::min(rest.find('/', at), rest.size());
    if (end > at) parts.push_back(rest.substr(at, end - at));
    at = end + 1;
  }
  return parts;
}

// Refuses URLs that nobody could open: half of one, or a web page.
void check_url(const std::string& url) {
  const std::vector<std::string> parts = url_parts(url);
  const std::string shown = text::printable(url);
  if (url.starts_with("hf://") && parts.size() < 2)
    throw missing_error({shown, {}}, "not a whole URL")
        .with_hint("hf://ORG/NAME, hf://ORG/NAME@REVISION");
  // "s3:///runs": a variable with the bucket's name is not set. The first
  // directory would be taken for a bucket, which may be another's.
  const bool nowhere =
      url.substr(url.find("://") + 3).starts_with('/') || parts.empty();
  if (nowhere && !url.starts_with("file://"))
    throw missing_error({shown, {}}, "not a whole URL")
        .with_hint(
            "as in https://HOST/PATH, s3://BUCKET/PATH, gs://BUCKET/PATH");
  const bool hub = parts.size() > 2 && (parts[0] == "huggingface.co" ||
                                        parts[0] == "www.huggingface.co");
  if (!hub || parts[1] == "datasets" || parts[1] == "spaces") return;
  const bool page = parts.size() == 3 || parts[3] == "tree" ||
                    parts[3] == "blob" || parts[3] == "commit";
  if (page && url.starts_with("http"))
    throw missing_error({shown, {}}, "a page to look at, not a checkpoint")
        .with_hint("hf://" + text::printable(parts[1] + "/" + parts[2]));
}

// Endings of files that are not another program's format (other_formats).
struct Ending {
  std::string_view suffix;
  std::string_view what;
  std::string_view hint;
};

constexpr std::string_view kOthers =
    "ckpt writes .safetensors, .pt, .pth, .bin, .gguf, .npz, .npy and "
    "directories; "
    "`ckpt --help` lists the formats";
constexpr std::string_view kPack = "write a directory and pack it afterwards";

constexpr auto kEndings = std::to_array<Ending>({
    {".nemo", "NeMo archives", kPack},
    {".tar", "archives", kPack},
    {".tar.gz", "archives", kPack},
    {".tgz", "archives", kPack},
    {".zip", "archives", kPack},
    {".gz", "compressed files", kPack},
    {".zst", "compressed files", kPack},
    {".pkl", "plain pickles", "a torch file: name it .pt"},
    {".pickle", "plain pickles", "a torch file: name it .pt"},
    {".safetensors.index.json", "an index alone",
     "a directory has its own: --to safetensors"},
    {".json", "JSON", kOthers},
    {".safetensor", "files of this ending", "did you mean .safetensors?"},
    {".distcp", "single .distcp files", "a directory: --to dcp"},
    {".zarr", "single zarr arrays", "a directory: --to megatron_zarr"},
});

[[noreturn]] void refuse_ending(const std::string& target,
                                std::string_view what, std::string_view hint) {
  throw usage_error({target, {}}, "ckpt does not write {}", what)
      .with_hint(std::string(hint) +
                 "; a trailing slash makes any name a directory");
}

void refuse_empty(const std::string& path) {
  if (!path.empty()) return;
  throw usage_error({}, "the path is empty")
      .with_hint("is a variable of the script not set?");
}

}  // namespace

std::string resolve_place(const std::string& word) {
  const std::string_view scheme = scheme_of(word);
  if (scheme.empty()) return word;
  check_url(word);
  if (io::is_url(word)) return word;
  if (scheme == "file") return path_of_url(word);
  const std::string meant =
      text::nearest(scheme, {"https", "http", "hf", "s3", "gs", "az", "file"});
  const auto fetch = std::ranges::find(kFetches, scheme, &Fetch::scheme);
  if (fetch == kFetches.end() && !meant.empty())
    throw usage_error({text::printable(word), {}},
                      "{}:// is not a scheme that ckpt knows", scheme)
        .with_hint("did you mean " + meant + "://" +
                   text::printable(word.substr(scheme.size() + 3)) + "?");
  throw usage_error({text::printable(word), {}},
                    "{}:// URLs are not supported yet", scheme)
      .with_hint(fetch == kFetches.end()
                     ? "copy the files to a file system first"
                     : std::string(fetch->hint));
}

std::string source_place(const std::string& path) {
  refuse_empty(path);
  return resolve_place(io::is_url(path) ? io::take_secrets(path) : path);
}

std::string target_place(const std::string& path) {
  std::string target = source_place(path);
  check_target_name(target);
  return target;
}

void check_target_place(const std::string& target) {
  if (target == "-" || target == "/dev/stdout" || target == "/dev/stderr" ||
      target.starts_with("/dev/fd/") || target.starts_with("/proc/self/fd/"))
    throw usage_error({target, {}}, "a checkpoint can't be written to a pipe")
        .with_hint(
            "its parts are written in any order: give a file or directory" +
            std::string(target == "-" ? " (one named -: ./-)" : ""));
  if (target.starts_with("/dev/") && !target.starts_with("/dev/shm/"))
    throw usage_error({target, {}}, "a device, not a place for a checkpoint")
        .with_hint("-n (--dry-run) writes nothing and checks all the same");
  // "s3:/b/m": the advice to make a directory named "s3:" would be followed.
  const bool elsewhere = formats::is_elsewhere(target);
  const std::string url = elsewhere || target.find(":/") != target.npos
                              ? formats::meant_url(target)
                              : "";
  if (!url.empty())
    throw usage_error({target, {}},
                      "a path of this machine that begins like a URL")
        .with_hint("did you mean " + text::printable(url) +
                   "? A path of that name: ./" + text::printable(target));
  if (elsewhere)
    throw usage_error({target, {}}, "looks like a path on another machine")
        .with_hint(
            "ckpt writes to paths of this machine, s3://BUCKET/PATH and "
            "gs://BUCKET/PATH, not over ssh; a path of that name: ./" +
            text::printable(target));
  if (io::is_url(target) && !io::is_target_url(target))
    throw usage_error({target, {}}, "can be read, not written")
        .with_hint(
            "targets are paths, s3:// and gs://; for others write to a "
            "directory first, then copy that: hf upload, azcopy, rclone copy");
}

void check_target_name(const std::string& target) {
  check_target_place(target);
  if (target.empty() || target.ends_with('/')) return;
  const std::string lower = text::lower(target);
  if (formats::format_of_name(lower) != formats::format_of_name(target))
    throw usage_error({target, {}}, "endings are lower case")
        .with_hint(target.substr(0, target.rfind('.')) +
                   lower.substr(lower.rfind('.')));
  for (const formats::OtherFormat& other : formats::other_formats())
    if (lower.ends_with(other.ending))
      refuse_ending(target, other.title,
                    other.to_make.empty() ? kOthers : other.to_make);
  for (const Ending& ending : kEndings)
    if (lower.ends_with(ending.suffix))
      refuse_ending(target, ending.what, ending.hint);
}

}  // namespace ckpt::library
