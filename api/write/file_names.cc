// SPDX-License-Identifier: Apache-2.0
#include "api/write/file_names.h"

#include <string_view>
#include <unordered_set>

#include "ckpt/error.h"
#include "lib/manifest.h"
#include "lib/text/format.h"

namespace ckpt::library {
namespace {

constexpr size_t kLongestName = 255;  // on Linux's file systems

// The tensor that a file is named after: the longest name in the path; "" if
// there is none.
std::string tensor_of(const Target& target, std::string_view path) {
  std::string_view found;
  for (const Tensor& tensor : target.catalog.tensors)
    if (tensor.name.size() > found.size() &&
        path.find(tensor.name) != path.npos)
      found = tensor.name;
  return text::printable(found);
}

[[noreturn]] void refuse(const Target& target, std::string_view path,
                         std::string_view problem) {
  std::string shown = text::printable(path);
  if (shown.size() > kLongestName) shown = shown.substr(0, 60) + "...";
  throw unfaithful_error({{}, tensor_of(target, path)},
                         "the target's file {} {}", shown, problem)
      .with_hint(
          "give the tensor another name with --rename, or leave it out "
          "with --exclude");
}

void check_name(const Target& target, std::string_view path) {
  if (path.find('\0') != path.npos)
    refuse(target, path, "has a NUL in its name");
  for (size_t begin = 0; begin <= path.size();) {
    const size_t end = std::min(path.find('/', begin), path.size());
    const std::string_view part = path.substr(begin, end - begin);
    if (begin == 0 && part == kManifestName)
      refuse(target, path, "is where ckpt's manifest goes");
    if (part.empty() || part == "." || part == "..")
      refuse(target, path, "would lead elsewhere");
    if (part.size() > kLongestName)
      refuse(target, path,
             fmt::format("has a name of {} bytes, file systems hold {}",
                         part.size(), kLongestName));
    begin = end + 1;
  }
}

}  // namespace

void check_file_names(const Target& target) {
  std::unordered_set<std::string_view> files;
  for (const TargetFile& file : target.files) {
    if (file.path.empty()) continue;  // a single file: DST itself
    check_name(target, file.path);
    if (!files.insert(file.path).second)
      refuse(target, file.path, "is there twice");
  }
  for (const std::string_view path : files) {
    for (size_t at = path.rfind('/'); at != path.npos && at > 0;
         at = path.rfind('/', at - 1)) {
      const std::string_view folder = path.substr(0, at);
      if (files.contains(folder))
        refuse(target, path,
               fmt::format("would be below {}, a file of the format's own",
                           text::printable(folder)));
    }
  }
}

}  // namespace ckpt::library
