// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/integrity.h"

#include <fmt/format.h>

#include <algorithm>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "lib/hash/sha256.h"
#include "lib/interrupt.h"
#include "lib/io/file.h"
#include "lib/parallel.h"
#include "lib/text/format.h"
#include "lib/text/json.h"

namespace ckpt::megatron {
namespace {

constexpr char kManifest[] = "integrity.json";
constexpr uint64_t kMostManifest = uint64_t{256} << 20;
constexpr size_t kStep = size_t{1} << 20;

struct Listed {
  std::string name;
  std::string sha256;
  std::string problem;  // "" if it is as it should be
  uint64_t bytes = 0;
};

// True for a plain name, which can't lead out of the directory.
bool is_plain(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find('/') == name.npos && name.find('\0') == name.npos;
}

std::vector<Listed> read_manifest(const std::string& path) {
  const nlohmann::json root =
      text::parse_python_json(io::read_file(path, kMostManifest), path);
  if (!root.is_object()) throw input_error({path, {}}, "is not an object");
  const std::string algorithm = text::string_member(root, "algorithm", path);
  if (algorithm != "sha256")
    throw input_error({path, {}}, "has checksums of kind '{}', known is sha256",
                      text::printable(algorithm));
  const nlohmann::json& files = text::member(root, "files", path);
  if (!files.is_object())
    throw input_error({path, {}}, "files is not an object");
  std::vector<Listed> listed;
  for (const auto& [name, value] : files.items()) {
    if (!value.is_string())
      throw input_error({path, {}}, "the checksum of {} is not text",
                        text::printable(name));
    if (!is_plain(name))
      throw input_error({path, {}},
                        "lists '{}', which is not a plain file name",
                        text::printable(name));
    listed.push_back({.name = name, .sha256 = value.get<std::string>()});
  }
  return listed;
}

void check(const std::string& directory, const Progress& progress,
           Listed& file) {
  const std::string path = io::join(directory, file.name);
  if (!io::is_file(path)) {
    file.problem = "is listed, but not there";
    return;
  }
  const io::Handle handle = io::Handle::open_read(path);
  Sha256 hash;
  std::string buffer(std::min<uint64_t>(kStep, handle.size()), '\0');
  for (uint64_t at = 0; at < handle.size(); at += buffer.size()) {
    if (interrupted()) throw Interrupted("stopped");
    const auto bytes =
        std::as_writable_bytes(std::span(buffer))
            .first(std::min<uint64_t>(buffer.size(), handle.size() - at));
    handle.read(at, bytes);
    hash.update(bytes);
    progress.advance(bytes.size());
  }
  file.bytes = handle.size();
  const std::string found = hash.hex();
  if (found != file.sha256)
    file.problem = fmt::format("has sha256 {}, it was written with {}", found,
                               text::printable(file.sha256));
}

uint64_t sum_of(const std::string& directory,
                const std::vector<Listed>& listed) {
  uint64_t sum = 0;
  for (const Listed& file : listed) {
    const std::string path = io::join(directory, file.name);
    if (io::is_file(path)) sum += io::Handle::open_read(path).size();
  }
  return sum;
}

}  // namespace

formats::FileCheck check_integrity_file(const std::string& directory,
                                        const Progress& progress) {
  formats::FileCheck result;
  const std::string path = io::join(directory, kManifest);
  if (!io::is_file(path)) return result;
  std::vector<Listed> listed;
  try {
    listed = read_manifest(path);
  } catch (const Error& error) {
    if (error.code() != ExitCode::kDamaged) throw;
    result.problems.push_back(
        damage("integrity_file", {path, {}}, "{}", error.problem()));
    return result;
  }
  progress.begin("hashing", sum_of(directory, listed));
  parallel_for(listed.size(),
               [&](size_t i) { check(directory, progress, listed[i]); });
  progress.end();
  for (const Listed& file : listed) {
    result.bytes += file.bytes;
    if (!file.problem.empty())
      result.problems.push_back(damage("integrity",
                                       {io::join(directory, file.name), {}},
                                       "{}", file.problem));
  }
  return result;
}

}  // namespace ckpt::megatron
