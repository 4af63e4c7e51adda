// SPDX-License-Identifier: Apache-2.0
#include "convert/config/gguf_tokenizer.h"

#include <algorithm>
#include <array>
#include <map>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/gguf/header.h"
#include "containers/hf/hf.h"
#include "convert/config/gguf.h"
#include "convert/config/parts.h"
#include "convert/tokenizer/tokenizer.h"
#include "formats/gguf/gguf.h"
#include "lib/io/file.h"
#include "lib/pickle/config.h"
#include "lib/text/format.h"

namespace ckpt::families {
namespace {

constexpr uint64_t kMostText = uint64_t{1} << 28;
constexpr uint64_t kMostTokens = 1 << 24;
constexpr std::string_view kTokenizerPrefix = "tokenizer.";

// What transformers and SentencePiece keep a tokenizer in, and what says the
// ids of its tokens.
constexpr auto kTokenizerFiles = std::to_array<std::string_view>(
    {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json",
     "added_tokens.json", "generation_config.json", "chat_template.jinja",
     "chat_template.json", "tokenizer.model", "spiece.model", "vocab.json",
     "merges.txt", "vocab.txt"});

bool is_tokenizer_file(std::string_view name) {
  return std::ranges::find(kTokenizerFiles, name) != kTokenizerFiles.end() ||
         name.starts_with("additional_chat_templates/");
}

TokenizerFiles files_among(const std::vector<Sidecar>& sidecars) {
  TokenizerFiles files;
  for (const Sidecar& sidecar : sidecars)
    if (is_tokenizer_file(sidecar.name))
      files[sidecar.name] =
          sidecar.text ? *sidecar.text : io::read_file(sidecar.path, kMostText);
  return files;
}

TokenizerFiles files_in(const std::string& folder) {
  Catalog beside;
  formats::add_sidecars(folder, beside);
  return files_among(beside.sidecars);
}

GgufKeys keys_of_file(const std::string& path) {
  const gguf::Header header = gguf::read_header(io::Handle::open_read(path));
  GgufKeys keys;
  for (const gguf::Key& key : header.keys)
    if (key.name.starts_with(kTokenizerPrefix))
      keys.push_back(
          {key.name, key.type,
           pickle::to_config(*header.document, key.value, kMostTokens)});
  if (keys.empty()) throw unfaithful_error({path, {}}, "has no tokenizer");
  return keys;
}

// Unused ids are no reason to refuse; ids past the embedding are.
void check_count(const GgufKeys& keys, uint64_t rows, const std::string& path) {
  for (const GgufKey& key : keys)
    if (key.key == "tokenizer.ggml.tokens" && key.value.size() != rows)
      throw unfaithful_error({path, {}},
                             "has {} tokens, and the model's embedding has {} "
                             "rows",
                             key.value.size(), rows);
}

}  // namespace

GgufKeys tokenizer_keys(Catalog& catalog, const TranslateOptions& options,
                        const Json& config, const Facts& facts,
                        const std::string& architecture) {
  const std::string& from = options.tokenizer_from;
  if (from == "none") return {};
  const auto rows = facts.find("vocab_size");
  const uint64_t count =
      rows != facts.end() && rows->second.value.is_number_unsigned()
          ? rows->second.value.get<uint64_t>()
          : 0;
  if (!from.empty() && io::is_file(from)) {
    GgufKeys keys = keys_of_file(from);
    if (count) check_count(keys, count, from);
    return keys;
  }
  const std::string& folder = from.empty() ? options.config_from : from;
  TokenizerFiles files =
      folder.empty() ? files_among(catalog.sidecars) : files_in(folder);
  const bool any = std::ranges::any_of(files, [](const auto& file) {
    return file.first != "generation_config.json";
  });
  if (!any) {
    if (!from.empty())
      throw missing_error({from, {}}, "there is no tokenizer in it");
    catalog.problems.push_back(
        warning("no_tokenizer", {catalog.path, {}},
                "there is no tokenizer beside the model, and llama.cpp needs "
                "one: --tokenizer-from DIR names another's"));
    return {};
  }
  files["config.json"] = config.dump();
  std::vector<std::string> notes;
  GgufKeys keys = gguf_of_tokenizer(files, count, architecture, notes);
  for (const std::string& one : notes)
    catalog.problems.push_back(
        warning("tokenizer", {catalog.path, {}}, "{}", one));
  return keys;
}

void add_gguf_tokenizer(Catalog& catalog) {
  Json metadata = Json::object();
  for (const Object& object : catalog.objects)
    if (object.document && (object.name.starts_with(kTokenizerPrefix) ||
                            object.name.starts_with("general.")))
      metadata[object.name] =
          pickle::to_config(*object.document, object.node, kMostTokens);
  if (!metadata.contains("tokenizer.ggml.model")) return;
  for (const auto& file : tokenizer_of_gguf(metadata, catalog.path)) {
    std::erase_if(catalog.sidecars, [&](const Sidecar& sidecar) {
      return sidecar.name == file.first;
    });
    add_text(catalog, file.first, file.second);
  }
}

}  // namespace ckpt::families
