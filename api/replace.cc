// SPDX-License-Identifier: Apache-2.0
#include "api/replace.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "ckpt/error.h"
#include "formats/format.h"
#include "lib/io/file.h"
#include "lib/manifest.h"
#include "lib/text/format.h"

namespace ckpt::library {
namespace {

constexpr std::string_view kNotCheckpoints[] = {
    ".git",     ".hg",           ".svn",     ".ssh",
    ".bashrc",  ".bash_history", ".profile", ".zshrc",
    ".gnupg",   ".config",       ".local",   "CMakeLists.txt",
    "Makefile", "pyproject.toml"};

bool is_known(const std::string& path) {
  if (io::is_file(io::join(path, kManifestName))) return true;
  return std::ranges::any_of(
      formats::all_formats(), [&](const formats::Format& format) {
        try {
          return format.reader && format.reader->supports(path).yes;
        } catch (const Error& error) {
          if (error.code() == ExitCode::kIo) throw;
          return false;
        }
      });
}

}  // namespace

void check_replaceable(const std::string& target) {
  constexpr size_t kMostNamed = 5;
  if (!io::is_directory(target)) return;
  const std::vector<std::string> names = io::list_directory(target);
  if (names.empty()) return;
  std::vector<std::string> strange;
  for (const std::string_view name : kNotCheckpoints)
    if (std::ranges::binary_search(names, name)) strange.emplace_back(name);
  if (strange.empty() && is_known(target)) return;
  if (strange.empty()) strange = names;
  const size_t more = strange.size() - std::min(strange.size(), kMostNamed);
  strange.resize(strange.size() - more);
  for (std::string& name : strange) name = text::printable(name);
  throw unfaithful_error({target, {}},
                         "--overwrite would remove what is not a checkpoint: "
                         "{}{} in it",
                         fmt::join(strange, ", "),
                         more ? fmt::format(" and {} others", more) : "")
      .with_hint("choose another target, or remove the directory yourself");
}

}  // namespace ckpt::library
