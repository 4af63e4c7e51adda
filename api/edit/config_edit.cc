// SPDX-License-Identifier: Apache-2.0
#include "api/edit/config_edit.h"

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "formats/megatron/model/facts.h"
#include "lib/io/file.h"
#include "lib/pickle/config.h"
#include "lib/pickle/json.h"
#include "lib/text/other_json.h"

namespace ckpt::library {
namespace {

constexpr uint64_t kMostBytes = uint64_t{16} << 20;
constexpr uint64_t kMostValues = 100'000;

}  // namespace

void take_config(Catalog& catalog) {
  load_objects(catalog);  // args in an archive that nobody has opened
  for (SourceFile& file : catalog.file_list) {
    if (file.path != "config.json" || file.sidecar) continue;
    file.sidecar = true;
    catalog.sidecars.push_back({.name = file.path,
                                .path = io::join(catalog.file_root, file.path),
                                .size = file.bytes});
  }
}

namespace {

// Python's json module writes them, and JSON has no such numbers.
constexpr std::string_view kNoNumbers[] = {"-Infinity", "Infinity", "NaN"};
constexpr std::string_view kMark = "\"\\u0001";  // begins a text in their place

// With texts in place of those, which outlast an edit.
std::string masked(std::string_view text) {
  std::string all;
  for (bool inside = false; !text.empty();) {
    const auto* word =
        inside ? std::end(kNoNumbers)
               : std::ranges::find_if(kNoNumbers, [&](std::string_view one) {
                   return text.starts_with(one);
                 });
    if (word != std::end(kNoNumbers)) {
      all.append(kMark).append(*word).append("\"");
      text.remove_prefix(word->size());
      continue;
    }
    const size_t size = inside && text[0] == '\\' && text.size() > 1 ? 2 : 1;
    if (text[0] == '"') inside = !inside;
    all.append(text.substr(0, size));
    text.remove_prefix(size);
  }
  return all;
}

std::string unmasked(std::string text) {
  for (const std::string_view word : kNoNumbers) {
    const std::string mask = std::string(kMark) + std::string(word) + "\"";
    for (size_t at = text.find(mask); at != text.npos;
         at = text.find(mask, at + word.size()))
      text.replace(at, mask.size(), word);
  }
  return text;
}

}  // namespace

bool is_config_file(const Sidecar& sidecar) {
  return (sidecar.name == "config.json" || sidecar.name == "params.json") &&
         sidecar.size <= kMostBytes;
}

bool is_config_object(const Object& object) {
  return (object.name == "args" || object.name == "params") &&
         object.document &&
         megatron::args_dict(*object.document, object.node) != pickle::kNoId;
}

ConfigTable config_of(const Sidecar& sidecar) {
  const std::string text =
      sidecar.text ? *sidecar.text : io::read_file(sidecar.path, kMostBytes);
  return text::parse_or_discard<ConfigTable>(masked(text));
}

ConfigTable config_of(const Object& object) {
  // A Namespace's entries are in its state.
  return pickle::to_config(*object.document,
                           megatron::args_dict(*object.document, object.node),
                           kMostValues);
}

void edit_config(Sidecar& sidecar, const ConfigEdit& edit) {
  ConfigTable table = config_of(sidecar);
  if (table.is_discarded() || !edit(table)) return;
  std::string made =
      unmasked(
          table.dump(2, ' ', false, ConfigTable::error_handler_t::replace)) +
      "\n";
  sidecar.path = "made:" + sidecar.name;
  sidecar.size = made.size();
  sidecar.text = std::make_shared<const std::string>(std::move(made));
}

void edit_config(Object& object, const ConfigEdit& edit) {
  const ConfigTable before = config_of(object);
  ConfigTable table = before;
  if (!edit(table)) return;
  auto document = std::make_shared<pickle::Document>();
  object.node = document->import(*object.document, object.node);
  const pickle::Id dict = megatron::args_dict(*document, object.node);
  for (const auto& [key, value] : table.items())
    if (const auto old = before.find(key); old == before.end() || *old != value)
      document->set(dict, key,
                    pickle::from_json(*document, nlohmann::json(value)));
  document->set_root(object.node);
  object.document = std::move(document);
  object.bytes = 0;  // no longer in an archive of the source
}

}  // namespace ckpt::library
