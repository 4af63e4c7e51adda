// SPDX-License-Identifier: Apache-2.0
// convert/tokenizer/tokenizer.h for Python tests: jobs come as lines of JSON,
// and each is answered with a line.
//
//   {"op": "out", "folder": …, "rows": …, "architecture": …}
//       {"keys": [[key, type, value], …], "notes": […]}
//   {"op": "in", "metadata": {key: value}}
//       {"files": {name: text}}
//
// An error is {"error": …, "code": …, "hint": …}.
#include <filesystem>
#include <fstream>
#include <iostream>
#include <iterator>

#include "ckpt/error.h"
#include "convert/tokenizer/tokenizer.h"

namespace {

using namespace ckpt::families;
namespace fs = std::filesystem;

TokenizerFiles files_in(const std::string& folder) {
  TokenizerFiles files;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file()) continue;
    std::ifstream file(entry.path(), std::ios::binary);
    files[fs::relative(entry.path(), folder).string()] =
        std::string((std::istreambuf_iterator<char>(file)), {});
  }
  return files;
}

Json answer(const Json& job) {
  std::vector<std::string> notes;
  if (job.at("op") == "in") {
    return {{"files", tokenizer_of_gguf(job.at("metadata"), "test.gguf")}};
  }
  Json keys = Json::array();
  const std::string folder = job.at("folder");
  const std::string architecture = job.at("architecture");
  for (const GgufKey& key :
       gguf_of_tokenizer(files_in(folder), job.at("rows"), architecture, notes))
    keys.push_back({key.key, key.type, key.value});
  return {{"keys", keys}, {"notes", notes}};
}

}  // namespace

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    Json said;
    try {
      said = answer(Json::parse(line));
    } catch (const ckpt::Error& error) {
      said = {{"error", error.what()},
              {"code", static_cast<int>(error.code())},
              {"hint", error.hint()}};
    }
    std::cout << said << std::endl;
  }
}
