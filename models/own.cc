// SPDX-License-Identifier: Apache-2.0
#include "models/own.h"

#include <algorithm>
#include <cstdlib>
#include <list>
#include <mutex>
#include <string>
#include <vector>

#include "ckpt/error.h"
#include "ckpt/format.h"
#include "lib/io/file.h"
#include "lib/text/format.h"
#include "models/family.h"

namespace ckpt::families {
namespace {

constexpr uint64_t kMostBytes = uint64_t{1} << 20;

struct Own {
  std::mutex mutex;
  bool closed = false;
  void (*load)() = nullptr;
  std::list<std::pair<std::string, std::string>> files;  // path, text
};

Own& own() {
  static Own all;
  return all;
}

// A file must be named after its family: that is how "extends" and --family
// find it.
void add(const std::string& path, const std::string& text,
         std::vector<Embedded>& all) {
  const std::string_view base = std::string_view(path).substr(
      path.rfind('/') == path.npos ? 0 : path.rfind('/') + 1);
  const std::string_view name = base.substr(0, base.rfind(".json"));
  for (const Embedded& known : all)
    if (known.name == name)
      throw usage_error({path, {}}, "there is a family {} already",
                        text::printable(name))
          .with_hint("give the file, and the family in it, another name");
  all.insert(all.begin(), {name, text});
}

std::vector<Embedded> read_all() {
  if (own().load) own().load();
  const std::lock_guard lock(own().mutex);
  own().closed = true;
  for (const std::string& path : files_on_path("CKPT_FAMILY_PATH"))
    own().files.emplace_back(path, io::read_file(path, kMostBytes));
  const auto known = embedded();
  std::vector<Embedded> all(known.begin(), known.end());
  for (const auto& [path, text] : own().files) add(path, text, all);
  return all;
}

}  // namespace

std::span<const Embedded> files() {
  static const std::vector<Embedded> all = read_all();
  return all;
}

std::vector<std::string> files_on_path(const char* variable) {
  std::vector<std::string> found;
  const char* paths = std::getenv(variable);
  std::string_view rest = paths ? paths : "";
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(':'), rest.size());
    const std::string directory(rest.substr(0, end));
    rest.remove_prefix(std::min(end + 1, rest.size()));
    if (directory.empty()) continue;
    std::vector<std::string> here;
    for (const std::string& name : io::list_directory(directory))
      if (name.ends_with(".json")) here.push_back(io::join(directory, name));
    std::ranges::sort(here);
    found.insert(found.end(), here.begin(), here.end());
  }
  return found;
}

bool before_reading(void (*load)()) {
  own().load = load;
  return true;
}

}  // namespace ckpt::families

namespace ckpt {
namespace {

void add_family(const std::string& path, std::string text) {
  families::Own& own = families::own();
  const std::lock_guard lock(own.mutex);
  if (own.closed)
    throw usage_error({path, {}},
                      "a family is registered after families were used")
        .with_hint("register it before the first checkpoint is opened");
  own.files.emplace_back(path, std::move(text));
}

}  // namespace

void register_family(const std::string& json_file) {
  add_family(json_file, io::read_file(json_file, families::kMostBytes));
}

void register_family(const std::string& name, const std::string& json) {
  if (name.empty() || name.find('/') != name.npos)
    throw usage_error({}, "a family is named \"{}\"", text::printable(name));
  add_family(name + ".json", json);
}

}  // namespace ckpt
