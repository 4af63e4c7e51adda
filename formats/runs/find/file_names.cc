// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/find/file_names.h"

#include <algorithm>

#include "formats/runs/find/pattern.h"
#include "lib/io/file.h"
#include "lib/io/listed.h"
#include "lib/io/names.h"

namespace ckpt::runs {

std::vector<Name> names_like(const std::string& folder,
                             const std::string& pattern) {
  std::string above, last = pattern;
  const bool directory = last.ends_with('/');
  if (directory) last.pop_back();
  if (const size_t slash = last.rfind('/'); slash != last.npos) {
    above = last.substr(0, slash);
    last.erase(0, slash + 1);
  }
  std::vector<Name> found;
  // Few patterns have numbers in folders before the last component.
  std::vector<Name> folders;
  if (above.empty())
    folders.push_back({"", {}});
  else if (above.find('{') == above.npos)
    folders.push_back({above, {}});
  else
    folders = names_like(folder, above + "/");
  for (const Name& in : folders) {
    const std::string where =
        in.path.empty() ? folder : io::join(folder, in.path);
    if (last.find('{') == last.npos) {
      const std::string path = io::join(where, last);
      if (directory ? io::is_directory(path) : io::is_file(path))
        found.push_back(
            {in.path.empty() ? last : io::join(in.path, last), in.numbers});
      continue;
    }
    if (!io::is_directory(where)) continue;
    for (const std::string& name : io::names_in(where)) {
      auto numbers = match(last, name);
      if (!numbers) continue;
      if (directory && !io::is_listed_directory(io::join(where, name)))
        continue;
      bool agrees = true;
      for (const auto& [key, value] : in.numbers)
        agrees = numbers->emplace(key, value).first->second == value && agrees;
      if (agrees)
        found.push_back({in.path.empty() ? name : io::join(in.path, name),
                         *std::move(numbers)});
    }
  }
  std::ranges::stable_sort(found, {}, &Name::numbers);
  return found;
}

std::string stem_of(const std::string& path) {
  const std::string name = io::base_name(path);
  return name.substr(0, name.rfind('.'));
}

}  // namespace ckpt::runs
