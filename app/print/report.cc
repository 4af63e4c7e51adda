// SPDX-License-Identifier: Apache-2.0
#include "app/print/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <unordered_set>

#include "api/deltas.h"
#include "app/print/facts.h"
#include "app/print/json_writer.h"
#include "app/print/models.h"
#include "app/print/quantized.h"
#include "app/print/ranks.h"
#include "app/print/value_text.h"
#include "ckpt/error.h"
#include "formats/peft/settings.h"
#include "lib/decoding.h"
#include "lib/pickle/json.h"
#include "lib/pickle/value.h"
#include "lib/text/format.h"
#include "lib/unruled.h"

namespace ckpt::app {
namespace {

std::string_view severity_name(Problem::Severity severity) {
  switch (severity) {
    case Problem::Severity::kNote:
      return "note";
    case Problem::Severity::kWarning:
      return "warning";
    case Problem::Severity::kDamage:
      return "damage";
  }
  return "warning";
}

void write_dims(JsonWriter& json, const Dims& dims) {
  json.begin_array();
  for (const uint64_t dim : dims) json.value(dim);
  json.end_array();
}

void write_topology(JsonWriter& json, const Topology& topology) {
  json.begin_object();
  json.member("tp", topology.tp);
  json.member("pp", topology.pp);
  json.member("dp", topology.dp);
  json.member("ep", topology.ep);
  json.end_object();
}

void write_problems(JsonWriter& json, std::span<const Problem> problems,
                    std::span<const Difference> differences = {},
                    const std::vector<families::FactDifference>& facts = {}) {
  json.begin_array();
  for (const families::FactDifference& fact : facts) write_fact(json, fact);
  for (size_t i = 0; i < problems.size(); ++i) {
    const Problem& problem = problems[i];
    json.begin_object();
    json.member("kind", problem.kind);
    json.member("severity", severity_name(problem.severity));
    json.member("file", problem.file);
    json.member("tensor", problem.tensor);
    json.member("message", problem.message);
    if (i < differences.size()) write_numbers(json, differences[i]);
    json.end_object();
  }
  json.end_array();
}

void write_shards(JsonWriter& json, const Catalog& catalog,
                  const Tensor& tensor) {
  json.key("shards").begin_array();
  for (const Piece& piece : tensor.pieces) {
    json.begin_object();
    json.member("file", catalog.files[piece.extent.file].path);
    json.member("begin", piece.extent.offset);
    json.key("offset");
    write_dims(json, piece.box.offset);
    json.key("shape");
    write_dims(json, piece.box.shape);
    if (piece.flat) {
      json.key("flat").begin_array();
      json.value(piece.flat->begin).value(piece.flat->end);
      json.end_array();
    }
    json.end_object();
  }
  json.end_array();
}

// Writes nothing if nothing is quantized.
void write_quantized(JsonWriter& json,
                     const std::vector<families::LogicalWeight>& weights) {
  if (weights.empty()) return;
  json.key("quantized").begin_array();
  for (const families::LogicalWeight& weight : weights) {
    json.begin_object();
    json.member("name", weight.name);
    json.key("shape");
    write_dims(json, weight.shape);
    json.member("method", weight.method);
    json.member("bits", weight.bits);
    json.member("block", weight.block);
    json.key("tensors").begin_array();
    for (const std::string& part : weight.parts) json.value(part);
    json.end_array().end_object();
  }
  json.end_array();
}

// If the tensor's singular values were asked for.
void write_spectrum(JsonWriter& json,
                    std::span<const library::SpectrumOf> spectra,
                    size_t tensor) {
  const auto found = std::ranges::lower_bound(spectra, tensor, {},
                                              &library::SpectrumOf::tensor);
  if (found == spectra.end() || found->tensor != tensor) return;
  json.key("spectral").begin_object();
  if (found->spectrum) {
    json.member("norm", found->spectrum->norm);
    json.member("effective_rank", found->spectrum->effective_rank);
    json.member("stable_rank", found->spectrum->stable_rank);
  } else {
    json.member("left_out", found->left_out);
  }
  json.end_object();
}

void write_tensor(JsonWriter& json, const Catalog& catalog,
                  const Tensor& tensor, const InspectParts& parts) {
  json.begin_object();
  json.member("name", tensor.name);
  json.member("dtype", name(tensor.dtype));
  json.key("shape");
  write_dims(json, tensor.shape);
  json.member("bytes", byte_size(tensor));
  json.member("kind", name(tensor.kind));
  json.member("pieces", uint64_t{tensor.pieces.size()});
  json.key("shard_dim");
  if (tensor.tp.state == TpRule::State::kSplit) {
    json.value(tensor.tp.dim);
  } else {
    json.null();
  }
  if (tensor.kind == Kind::optim) {
    json.member("param", tensor.param);
    json.member("state", tensor.state);
  }
  if (const GgmlInfo* blocks = blocks_of(tensor, catalog)) {
    json.key("stored").begin_object();
    json.member("type", blocks->name);
    json.member("bits", 8.0 * blocks->bytes / blocks->elements);
    json.member("bytes", stored_bytes(tensor, catalog));
    json.end_object();
  }
  const auto index = static_cast<size_t>(&tensor - catalog.tensors.data());
  if (!parts.digests.empty()) json.member("digest", parts.digests[index].hex());
  if (!parts.stats.empty()) write_stats(json, parts.stats[index]);
  write_spectrum(json, parts.spectra, index);
  if (parts.shards) write_shards(json, catalog, tensor);
  json.end_object();
}

void write_object(JsonWriter& json, const ObjectValues& values,
                  const Object& object) {
  constexpr uint64_t kMostValues = 100'000;
  json.begin_object();
  json.member("name", object.name);
  json.member("type", type_name(object));
  json.key("value").tree(values.json(object, kMostValues));
  json.end_object();
}

void write_names(JsonWriter& json, std::string_view key,
                 const std::vector<std::string>& names) {
  json.key(key);
  json.begin_array();
  for (const std::string& name : names) json.value(name);
  json.end_array();
}

void write_adapter(JsonWriter& json, const Catalog& catalog) {
  json.key("adapter");
  const auto config = peft::config_of(catalog);
  if (!config) {
    json.null();
    return;
  }
  json.begin_object();
  json.member("type", config->type);
  json.member("base", config->base);
  json.member("dialect", config->dialect);
  json.member("rank", config->rank);
  json.key("alpha");
  if (config->says_alpha)
    json.value(config->alpha);
  else
    json.null();
  json.member("rslora", config->rslora);
  json.member("dora", config->dora);
  write_names(json, "target_modules", config->targets);
  write_names(json, "modules_to_save", config->saved);
  json.end_object();
}

void write_trainer(JsonWriter& json, const Catalog& catalog) {
  json.key("trainer");
  if (!catalog.run) {
    json.null();
    return;
  }
  json.begin_object();
  json.member("name", catalog.run->trainer);
  json.key("step");
  if (catalog.run->step)
    json.value(*catalog.run->step);
  else
    json.null();
  json.end_object();
}

void write_file_list(JsonWriter& json, const Catalog& catalog) {
  json.key("file_list").begin_array();
  for (const SourceFile& file : catalog.file_list) {
    json.begin_object();
    json.member("path", file.path);
    json.member("bytes", file.bytes);
    json.member("part", file.part);
    json.end_object();
  }
  json.end_array();
}

// Tied tensors are one tensor under several names.
struct Place {
  uint32_t tie, file;
  uint64_t offset;
  auto operator<=>(const Place&) const = default;
};

bool seen_before(const Tensor& tensor, std::set<Place>& seen) {
  if (tensor.tie == 0 || tensor.pieces.empty()) return false;
  const Extent& extent = tensor.pieces.front().extent;
  return !seen.insert({tensor.tie, extent.file, extent.offset}).second;
}

}  // namespace

void write_stats(JsonWriter& json, const reshard::Stats& stats,
                 std::string_view key) {
  const bool numbers = stats.numbers() != 0;
  const auto number = [&](std::string_view name, double value) {
    json.key(name);
    numbers ? json.value(value) : json.null();
  };
  json.key(key).begin_object();
  number("min", stats.min);
  number("max", stats.max);
  number("mean", reshard::mean(stats));
  number("std", reshard::deviation(stats));
  json.member("nans", stats.nans);
  json.member("infs", stats.infs);
  json.member("zeros", stats.zeros);
  number("norm", reshard::norm(stats));
  number("rms", reshard::root_mean_square(stats));
  json.key("magnitudes").begin_array();
  for (const uint64_t count : stats.magnitudes) json.value(count);
  json.end_array();
  if (stats.quantiles) {
    json.key("quantiles").begin_object();
    for (size_t i = 0; i < stats.quantiles->size(); ++i)
      json.member(fmt::format("{}", reshard::Stats::kThousandths[i] / 1000.0),
                  (*stats.quantiles)[i]);
    json.end_object();
    json.member("quantile_error", stats.quantile_error);
  }
  if (stats.zero_rows) {
    json.member("zero_rows", *stats.zero_rows);
    json.member("zero_columns", *stats.zero_columns);
  }
  json.end_object();
}

namespace {

// Only if there are any.
void write_unruled(JsonWriter& json, const Catalog& catalog) {
  const std::vector<Unruled> unruled = unruled_of(catalog);
  if (unruled.empty()) return;
  json.key("no_rule").begin_array();
  for (const Unruled& one : unruled) {
    json.begin_object();
    json.member("name", one.tensor->name);
    json.member("copies", one.copies);
    json.member("different", one.different);
    json.end_object();
  }
  json.end_array();
}

}  // namespace

std::string inspect_json(const Catalog& catalog, const InspectParts& parts) {
  const Totals sums = totals(catalog);
  JsonWriter json;
  json.begin_document("inspect");
  json.member("format", catalog.format);
  json.member("version", catalog.version);
  json.member("path", catalog.path);
  json.text_or_null("family", catalog.family);
  json.text_or_null("dialect", catalog.dialect);
  write_trainer(json, catalog);
  write_adapter(json, catalog);
  json.key("topology");
  write_topology(json, catalog.topology);
  json.member("bytes", sums.bytes);
  json.member("files", sums.files);
  if (const bool lossless = library::is_lossless_delta(catalog);
      lossless || library::is_delta(catalog))
    json.member("delta", lossless ? "lossless" : "difference");
  json.member("parameters", sums.parameters);
  if (const auto active = active_parameters(catalog, sums))
    json.member("active_parameters", *active);
  if (!parts.fingerprint.empty()) json.member("fingerprint", parts.fingerprint);
  if (parts.bytes_read) json.member("bytes_read", *parts.bytes_read);
  if (parts.header_bytes) json.member("header_bytes_read", *parts.header_bytes);
  write_facts(json, parts.facts);
  write_quantized(json, quantized_of(catalog));
  write_unruled(json, catalog);
  write_models(json, catalog);
  json.key("tensors").begin_array();
  for (const Tensor& tensor : catalog.tensors)
    write_tensor(json, catalog, tensor, parts);
  json.end_array();
  json.key("objects").begin_array();
  const ObjectValues values(catalog);
  for (const Object& object : catalog.objects)
    write_object(json, values, object);
  json.end_array();
  write_file_list(json, catalog);
  json.key("problems");
  write_problems(json, catalog.problems);
  json.key("assumptions").begin_array();
  for (const std::string& assumption : catalog.assumptions)
    json.value(assumption);
  json.end_array();
  json.end_object();
  return std::move(json).text();
}

void write_numbers(JsonWriter& json, const Difference& difference) {
  if (difference.a) {
    json.member("dtype_a", name(difference.a->dtype)).key("shape_a");
    write_dims(json, difference.a->shape);
  }
  if (difference.b) {
    json.member("dtype_b", name(difference.b->dtype)).key("shape_b");
    write_dims(json, difference.b->shape);
  }
  if (difference.distance) write_distance(json, *difference.distance);
}

void write_distance(JsonWriter& json, const Distance& distance) {
  json.member("elements", distance.elements);
  json.member("differing", distance.differing);
  json.member("relative_l2", relative_l2(distance));
  json.member("rms", rms(distance));
  json.member("cosine", cosine(distance));
  json.member("max_abs", distance.max_abs);
  json.member("max_rel", distance.max_rel);
}

size_t not_compared_of(const VerifyReport& report) {
  return static_cast<size_t>(
      std::ranges::count(report.problems, "not_compared", &Problem::kind));
}

std::string verify_json(const VerifyReport& report) {
  JsonWriter json;
  json.begin_document("verify");
  json.member("ok", report.ok);
  json.member("verdict", name(report.verdict));
  if (!report.open.empty()) json.member("cant_tell", report.open);
  if (report.unproven) json.member("values_proven", false);
  if (!report.fingerprint.empty())
    json.member("fingerprint", report.fingerprint);
  if (!report.sealed.empty()) json.member("sealed", report.sealed);
  if (const size_t count = not_compared_of(report); count != 0)
    json.member("not_compared", count);
  json.key("checked").begin_object();
  json.member("tensors", report.tensors);
  json.member("bytes", report.bytes);
  json.member("files", report.files);
  json.end_object();
  json.key("problems");
  write_problems(json, report.problems, report.differences, report.facts);
  if (!report.rounded.empty()) {
    json.key("rounded").begin_array();
    for (const library::Rounded& one : report.rounded) {
      json.begin_object();
      json.member("type", one.type);
      json.member("tensors", one.tensors);
      json.member("largest", one.largest);
      json.member("deviation", one.deviation);
      json.end_object();
    }
    json.end_array();
  }
  if (report.within != 0) json.member("within_tolerance", report.within);
  write_ranks(json);
  json.end_object();
  return std::move(json).text();
}

// "mlp.experts.3.up_proj.weight", "mlp.experts.gate_up_proj"; shared experts
// are of another name.
static bool is_of_expert(std::string_view name) {
  return name.find(".experts.") != name.npos ||
         name.find(".local_experts.") != name.npos ||
         name.find(".switch_mlp.") != name.npos;
}

std::optional<uint64_t> active_parameters(const Catalog& catalog,
                                          const Totals& sums) {
  if (sums.of_experts == 0) return std::nullopt;
  try {
    const auto facts = families::facts_of(catalog);
    const auto count = [&](const char* name) -> uint64_t {
      const auto found = facts.find(name);
      return found != facts.end() && found->second.value.is_number_unsigned()
                 ? found->second.value.template get<uint64_t>()
                 : 0;
    };
    const uint64_t experts = count("experts");
    const uint64_t chosen = count("experts_per_token");
    if (chosen == 0 || chosen > experts || sums.of_experts % experts != 0)
      return std::nullopt;
    return sums.parameters - sums.of_experts +
           sums.of_experts / experts * chosen;
  } catch (const Error&) {
    return std::nullopt;  // a command that needs facts reports what is wrong
  }
}

Totals totals(const Catalog& catalog) {
  Totals sums;
  std::set<Place> seen;
  for (const Tensor& tensor : catalog.tensors) {
    // The reader checked each term, but their sum may still be a lie.
    sums.bytes = checked_add(sums.bytes, stored_bytes(tensor, catalog))
                     .value_or(UINT64_MAX);
    (tensor.kind == Kind::model   ? sums.model
     : tensor.kind == Kind::optim ? sums.optim
                                  : sums.other)++;
    if (tensor.kind == Kind::model && !seen_before(tensor, seen)) {
      const uint64_t count = element_count(tensor.shape).value_or(0);
      sums.parameters += count;
      if (is_of_expert(tensor.name)) sums.of_experts += count;
    }
  }
  // A quantized weight counts as what it represents, its scales not at all.
  std::unordered_map<std::string_view, const Tensor*> by_name;
  const auto weights = quantized_of(catalog);
  if (!weights.empty())
    for (const Tensor& tensor : catalog.tensors)
      if (tensor.kind == Kind::model) by_name.emplace(tensor.name, &tensor);
  for (const families::LogicalWeight& weight : weights) {
    const uint64_t count = element_count(weight.shape).value_or(0);
    sums.parameters += count;
    if (is_of_expert(weight.name)) sums.of_experts += count;
    for (const std::string& part : weight.parts)
      if (const auto found = by_name.find(part); found != by_name.end()) {
        const uint64_t gone = element_count(found->second->shape).value_or(0);
        sums.parameters -= gone;
        if (is_of_expert(part)) sums.of_experts -= gone;
      }
  }
  // An inflated part of a file is a separate File with the same path.
  std::unordered_set<std::string_view> paths;
  std::vector<bool> known(catalog.files.size());
  for (const Tensor& tensor : catalog.tensors) {
    for (const Piece& piece : tensor.pieces) {
      const uint32_t file = piece.extent.file;
      if (known[file]) continue;
      known[file] = true;
      for (const std::string_view path : stored_in(piece, catalog))
        paths.insert(path);
    }
  }
  sums.files = paths.size();
  return sums;
}

ObjectValues::ObjectValues(const Catalog& catalog) {
  if (!catalog.skeleton) return;
  document_ = catalog.skeleton->document.get();
  for (const auto& [node, name] : catalog.skeleton->tensors)
    names_.emplace(node, name);
}

nlohmann::ordered_json ObjectValues::json(const Object& object,
                                          uint64_t budget) const {
  const auto name_of = [&](pickle::Id tensor, const std::string&) {
    const auto found = names_.find(tensor);
    return found == names_.end() ? std::nullopt : std::optional(found->second);
  };
  const bool known = object.document.get() == document_;
  return pickle::to_json(
      *object.document, object.node, budget,
      known ? pickle::NameTensor(name_of) : pickle::NameTensor());
}

std::string ObjectValues::line(const Object& object, size_t length) const {
  // A value takes at least two bytes: "0,".
  return value_text(json(object, length / 2 + 1), length);
}

std::string type_name(const Object& object) {
  using pickle::Type;
  const pickle::Document& document = *object.document;
  switch (document.type(object.node)) {
    case Type::kNone:
      return "NoneType";
    case Type::kBool:
      return "bool";
    case Type::kInt:
    case Type::kBigInt:
      return "int";
    case Type::kFloat:
      return "float";
    case Type::kString:
      return "str";
    case Type::kBytes:
      return "bytes";
    case Type::kByteArray:
      return "bytearray";
    case Type::kList:
      return "list";
    case Type::kTuple:
      return "tuple";
    case Type::kSet:
      return "set";
    case Type::kFrozenSet:
      return "frozenset";
    case Type::kDict:
      return "dict";
    case Type::kGlobal:
      return "global";
    case Type::kPersistent:
      return "persistent";
    case Type::kCall:
      break;
  }
  std::string name = document.callable_name(object.node);
  std::ranges::replace(name, ' ', '.');
  return name.empty() ? "object" : name;
}

}  // namespace ckpt::app
