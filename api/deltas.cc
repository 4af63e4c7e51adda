// SPDX-License-Identifier: Apache-2.0
#include "api/deltas.h"

#include <fmt/format.h>

#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include "api/delta/lossless.h"
#include "ckpt/error.h"
#include "containers/safetensors/header.h"
#include "lib/io/file.h"
#include "lib/pickle/json.h"
#include "lib/pickle/value.h"
#include "lib/text/format.h"
#include "lib/text/utf8.h"

namespace ckpt::library {
namespace {

// "" where the header has no such text.
std::string said(const Catalog& catalog, std::string_view key) {
  for (const Object& object : catalog.objects) {
    if (object.name != safetensors::kMetadata || !object.document) continue;
    const pickle::Id id = object.document->find(object.node, key);
    if (object.document->is(id, pickle::Type::kString))
      return std::string(object.document->text(id));
  }
  return "";
}

std::string lossless_text(const std::string& path) {
  try {
    const LosslessResult found = lossless_contents(path);
    return fmt::format("a lossless delta of {} ({}), against {}, not a model",
                       text::counted(found.files, "file"),
                       text::iec_size(found.bytes),
                       text::counted(found.tensors, "tensor"));
  } catch (const Error& error) {
    return "a lossless delta, not a model: " + error.problem();
  }
}

}  // namespace

std::string delta_mark(const std::string& path) {
  const std::string name = io::base_name(path);
  const bool plain =
      !name.empty() && name != "." && name != ".." && text::is_utf8(name);
  return plain ? name : "difference";
}

bool is_delta(const Catalog& catalog) {
  return !said(catalog, kDeltaOf).empty();
}

void drop_delta_mark(Catalog& catalog) {
  for (Object& object : catalog.objects) {
    if (object.name != safetensors::kMetadata || !object.document) continue;
    nlohmann::ordered_json all = pickle::to_json(*object.document, object.node);
    if (!all.is_object() || all.erase(std::string(kDeltaOf)) == 0) continue;
    auto document = std::make_shared<pickle::Document>();
    object.node = pickle::from_json(*document, nlohmann::json(all));
    document->set_root(object.node);
    object.document = std::move(document);
  }
}

bool is_lossless_delta(const Catalog& catalog) {
  return said(catalog, "format") == safetensors::kLosslessFormat;
}

std::string delta_text(const Catalog& catalog) {
  if (is_lossless_delta(catalog))
    return lossless_text(catalog.files.at(0).path);
  const std::string base = said(catalog, kDeltaOf);
  if (base.empty()) return "";
  return fmt::format("a difference of two checkpoints{}, not a model",
                     base == "difference" ? "" : " (B - " + base + ")");
}

}  // namespace ckpt::library
