// SPDX-License-Identifier: Apache-2.0
#include "convert/config/gguf.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numbers>
#include <set>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "convert/config/facts_table.h"
#include "convert/config/gguf_tokenizer.h"
#include "convert/config/parts.h"
#include "convert/config/told.h"
#include "formats/gguf/gguf.h"
#include "lib/embedded.h"
#include "lib/pickle/config.h"
#include "lib/pickle/json.h"
#include "lib/small_tensor.h"
#include "lib/text/format.h"
#include "models/order.h"
#include "models/view.h"

namespace ckpt::families {
namespace {

constexpr std::string_view kArchitecture = "general.architecture";
constexpr std::string_view kTokenizer = "tokenizer.ggml.";
constexpr uint64_t kMostFreqs = 1 << 16;
constexpr uint64_t kMostComputed = 1 << 20;  // bytes

const nlohmann::ordered_json& ordered_table() {
  static const auto table =
      nlohmann::ordered_json::parse(embedded_text("gguf"));
  return table;
}
const Json& gguf_table() {
  static const Json table = Json::parse(embedded_text("gguf"));
  return table;
}

// {"a.b": 1} as {"a": {"b": 1}}. A key that is the beginning of another stays
// out: no expression asks for both.
void set_nested(Json& at, std::string_view name, Json value) {
  Json* object = &at;
  for (size_t dot = name.find('.'); dot != name.npos; dot = name.find('.')) {
    object = &(*object)[std::string(name.substr(0, dot))];
    if (!object->is_object() && !object->is_null()) return;
    name.remove_prefix(dot + 1);
  }
  (*object)[std::string(name)] = std::move(value);
}

// The name without "blk.N.".
std::string_view in_block(std::string_view name) {
  if (!name.starts_with("blk.")) return name;
  const size_t dot = name.find('.', 4);
  return dot == name.npos ? name : name.substr(dot + 1);
}

// The factor by which llama.cpp divides each frequency, as its converter
// computes them in f32 from Llama 3's rope_scaling.
struct ScaledRope {
  double factor, low, high, original;
};
std::vector<float> rope_factors(const ScaledRope& rope, double theta,
                                uint64_t dims) {
  std::vector<float> factors;
  const float low = static_cast<float>(rope.original / rope.low);
  const float high = static_cast<float>(rope.original / rope.high);
  const auto factor = static_cast<float>(rope.factor);
  for (uint64_t i = 0; i < dims; i += 2) {
    const float power =
        std::pow(static_cast<float>(theta),
                 static_cast<float>(i) / static_cast<float>(dims));
    const float wave =
        static_cast<float>(2 * std::numbers::pi) / (1.0F / power);
    if (wave < high) {
      factors.push_back(1);
    } else if (wave > low) {
      factors.push_back(factor);
    } else {
      const float smooth = (static_cast<float>(rope.original) / wave -
                            static_cast<float>(rope.low)) /
                           static_cast<float>(rope.high - rope.low);
      factors.push_back(1.0F / ((1.0F - smooth) / factor + smooth));
    }
  }
  return factors;
}

// Llama 3's scaling from its factors. All models of it that are published have
// 1, 4 and 8192 beside the factor, which is the largest number.
Json told_rope(const Catalog& catalog, const Tensor& tensor, double theta) {
  if (tensor.pieces.empty()) return nullptr;  // names alone are looked at
  const auto stored = small_floats(catalog, tensor, kMostFreqs);
  if (!stored || stored->empty())
    throw unfaithful_error({catalog.path, tensor.name},
                           "{} {} is not a list of factors of a scaled rope",
                           name(tensor.dtype), to_string(tensor.shape));
  const ScaledRope rope{.factor = *std::ranges::max_element(*stored),
                        .low = 1,
                        .high = 4,
                        .original = 8192};
  const auto made = rope_factors(rope, theta, 2 * stored->size());
  for (size_t i = 0; i < made.size(); ++i)
    if (!(std::abs(made[i] - (*stored)[i]) <= 1e-5F * made[i]))
      throw unfaithful_error(
          {catalog.path, tensor.name},
          "element {} is {}, and Llama 3's scaling by {} gives {}", i,
          (*stored)[i], rope.factor, made[i])
          .with_hint(
              "--config-from DIR names a directory with the model's "
              "config.json");
  return {{"factor", rope.factor},
          {"low", rope.low},
          {"high", rope.high},
          {"original", 8192}};
}

std::string architecture_of(const Catalog& catalog) {
  for (const Object& object : catalog.objects)
    if (object.name == kArchitecture && object.document &&
        object.document->is(object.node, pickle::Type::kString))
      return std::string(object.document->text(object.node));
  return "";
}

// The metadata as the table's expressions ask for it.
Json told_values(const Catalog& catalog, const std::string& architecture) {
  Json values = {{"architecture", architecture}};
  const std::string prefix = architecture + ".";
  for (const Object& object : catalog.objects) {
    if (!object.document) continue;
    std::string_view name = object.name;
    const bool own = name.starts_with(prefix);
    const bool tokens = name.starts_with(kTokenizer);
    const pickle::Type type = object.document->type(object.node);
    if (!own && !tokens && !name.starts_with("general.")) continue;
    // The lists of a tokenizer are long, and say nothing about the model.
    if (tokens && type != pickle::Type::kInt) continue;
    if (own) name.remove_prefix(prefix.size());
    std::string key(name);
    if (tokens) key = "tokenizer." + key.substr(kTokenizer.size());
    set_nested(values, key,
               Json(pickle::to_config(*object.document, object.node)));
  }
  std::set<std::string_view> names;
  const Tensor* rope = nullptr;
  for (const Tensor& tensor : catalog.tensors) {
    names.insert(in_block(tensor.name));
    if (tensor.name == "token_embd.weight" && !tensor.shape.empty())
      values["rows"] = tensor.shape[0];
    if (tensor.name == kGgufRope) rope = &tensor;
  }
  values["tensors"] = names;
  if (rope) {
    const Json theta =
        values.value(Json::json_pointer("/rope/freq_base"), Json(10000.0));
    values["rope_llama3"] =
        told_rope(catalog, *rope, theta.is_number() ? theta.get<double>() : 0);
  }
  return values;
}

// Keys of the architecture that no expression asks for.
std::vector<std::string> unknown_gguf_keys(const Catalog& catalog,
                                           const std::string& architecture) {
  static const std::set<std::string> known = told_keys(gguf_table(), true);
  std::vector<std::string> unknown;
  for (const Object& object : catalog.objects)
    if (object.name.starts_with(architecture + ".") &&
        !known.contains(object.name.substr(architecture.size() + 1)))
      unknown.push_back(object.name);
  return unknown;
}

// Names, authors, licences.
bool is_about_model(const std::string& key) {
  constexpr std::string_view kOfFile[] = {
      kArchitecture, "general.type", "general.file_type", "general.alignment",
      "general.quantization_version"};
  return key.starts_with("general.") &&
         std::ranges::find(kOfFile, key) == std::end(kOfFile);
}

// To the nearest number of bf16 or f16.
double narrowed(DType dtype, double number) {
  if (!std::isfinite(number) || number == 0) return number;
  const bool half = dtype == DType::f16;
  int exponent = 0;
  std::frexp(number, &exponent);
  const int unit = std::max(exponent - (half ? 11 : 8), half ? -24 : -133);
  const double near =
      std::ldexp(std::nearbyint(std::ldexp(number, -unit)), unit);
  return half && std::abs(near) > 65504 ? std::copysign(INFINITY, near) : near;
}

// What the file has from the first to the last element of a piece, and those
// between. Without pieces for what is not in strides.
Tensor run_of(const Tensor& tensor, const Piece& piece) {
  Tensor run;
  run.dtype = tensor.dtype;
  const Dims& size = piece.box.shape;
  const uint64_t element = element_size(tensor.dtype);
  if (piece.flat || piece.extent.strides.size() != size.size()) return run;
  uint64_t last = 0;
  for (size_t d = 0; d < size.size(); ++d) {
    if (size[d] == 0) return run;
    last += (size[d] - 1) * piece.extent.strides[d];
  }
  run.shape = {last / element + 1};
  Piece& whole = run.pieces.emplace_back(piece);
  whole.box = Box::whole(run.shape);
  whole.extent.strides = {};
  whole.transform = kNoTransform;
  return run;
}

// The same elements in the order of the file, if they are beside one another
// there, as those of a bias are whose rows a dialect has in another order; else
// without pieces.
Tensor in_stored_order(const Tensor& tensor) {
  Tensor stored;
  uint64_t begin = UINT64_MAX, end = 0, count = 0;
  const uint64_t element = element_size(tensor.dtype);
  for (const Piece& piece : tensor.pieces) {
    Tensor run = run_of(tensor, piece);
    const Piece& first = tensor.pieces[0];
    if (run.pieces.empty() || piece.extent.file != first.extent.file ||
        piece.transform != first.transform)
      return {};
    begin = std::min(begin, piece.extent.offset);
    end = std::max(end, piece.extent.offset + run.shape[0] * element);
    count += volume(piece.box);
    stored = std::move(run);
  }
  if (stored.pieces.empty() || end - begin != count * element) return {};
  stored.shape = {count};
  stored.pieces[0].box = Box::whole(stored.shape);
  stored.pieces[0].extent.offset = begin;
  stored.pieces[0].transform = tensor.pieces[0].transform;
  return stored;
}

float computed(uint8_t transform, float number) {
  switch (transform) {
    case kAddOne:
      return number + 1;
    case kSubtractOne:
      return number - 1;
    case kNegatedExp:
      return -std::exp(number);
    case kLogOfNegated:
      return std::log(-number);
    default:
      return number;
  }
}

// True if each number is one of that dtype, or comes back from one: norms that
// ggml's kernels want in f32, of a model whose other weights have 16 bits.
bool fits_in(const Catalog& catalog, const Tensor& tensor, DType dtype) {
  Tensor plain = tensor.pieces.size() == 1 ? tensor : in_stored_order(tensor);
  if (plain.pieces.empty()) return false;
  const uint8_t transform = plain.pieces[0].transform;
  const uint8_t inverse = inverse_of(transform);
  if (transform != kNoTransform && inverse == kNoTransform) return false;
  plain.pieces[0].transform = kNoTransform;
  const auto numbers = small_floats(catalog, plain, kMostComputed);
  if (!numbers) return false;
  // The last bit of an exponential depends on the library that computed it.
  // That of a number next to 0 is next to 1, where several have the same.
  const bool decays = transform == kLogOfNegated;
  const float unit = decays ? 0x1p-23F : 0;
  const float least = !decays ? 0 : dtype == DType::f16 ? 0x1p-11F : 0x1p-14F;
  return std::ranges::all_of(*numbers, [&](float number) {
    const auto narrow =
        static_cast<float>(narrowed(dtype, computed(transform, number)));
    if (narrow != 0 && std::abs(narrow) < least) return false;
    const float again = computed(inverse, narrow);
    return again == number ||
           std::abs(again - number) <= unit * std::abs(number);
  });
}

}  // namespace

Values values_of_gguf(const Catalog& catalog) {
  const std::string architecture = architecture_of(catalog);
  if (architecture.empty()) return {};
  const Json values = told_values(catalog, architecture);
  ToldScope scope(gguf_table(), values);
  std::string unmet;
  Json told;
  try {
    told = told_config(scope, &unmet);
  } catch (const Error& error) {
    if (!error.where().path.empty()) throw;
    throw unfaithful_error({catalog.path, {}}, "{}", error.problem());
  }
  if (told.is_null())
    throw unfaithful_error({catalog.path, {}},
                           "GGUF's architecture {} is not known{}{}",
                           text::printable(architecture),
                           unmet.empty() ? "" : " as it is here: ", unmet)
        .with_hint(
            "--config-from DIR names a directory with the model's "
            "config.json, --dialect keep keeps llama.cpp's names");
  // A class of transformers has ids of its own where a file says nothing.
  for (const char* id : kTokenIds)
    if (!told.contains(id)) told[id] = nullptr;
  if (told.contains("kv_lora_rank") && !told.contains("q_lora_rank"))
    told["q_lora_rank"] = nullptr;  // queries of full rank
  return {.values = std::move(told),
          .source = "GGUF's metadata",
          .unknown = unknown_gguf_keys(catalog, architecture)};
}

void leave_gguf_metadata(Catalog& catalog) {
  std::set<std::string> keys;
  std::vector<std::string> left;
  for (const Object& object : catalog.objects) {
    if (object.name != gguf::kTypes) continue;
    const auto pairs = object.document->as_pairs(object.node);
    for (size_t i = 0; pairs && i + 1 < pairs->size(); i += 2)
      keys.emplace(object.document->text((*pairs)[i]));
  }
  std::erase_if(catalog.objects, [&](const Object& object) {
    if (object.name == gguf::kTypes) return true;
    if (!keys.contains(object.name)) return false;
    if (is_about_model(object.name)) left.push_back(object.name);
    return true;
  });
  if (!left.empty())
    catalog.problems.push_back(
        remark("object_left_out", {catalog.path, {}},
               "config.json has no place for {}",
               text::printable(fmt::format("{}", fmt::join(left, ", ")))));
}

void check_gguf_decays(const Catalog& catalog) {
  for (const Tensor& tensor : catalog.tensors)
    for (const Piece& piece : tensor.pieces) {
      if (piece.transform != kLogOfNegated) continue;
      const Tensor run = run_of(tensor, piece);
      const auto numbers = small_floats(catalog, run, kMostComputed);
      if (!numbers) continue;
      for (const float number : *numbers)
        if (!(number < 0))
          throw input_error({catalog.path, tensor.name},
                            "is log(-a) of llama.cpp's decays, and one of them "
                            "is {}: they are below 0",
                            number);
    }
}

void narrow_gguf_tensors(Catalog& catalog) {
  const DType dtype = model_dtype(catalog.tensors);
  if (dtype != DType::bf16 && dtype != DType::f16) return;
  for (Tensor& tensor : catalog.tensors) {
    if (tensor.dtype != DType::f32 || tensor.kind != Kind::model) continue;
    if (fits_in(catalog, tensor, dtype)) tensor.pinned = dtype;
  }
}

namespace {

void add_rope_freqs(const Facts& facts, Catalog& catalog) {
  const auto number = [&](const char* name) {
    const auto found = facts.find(name);
    if (found == facts.end() || !found->second.value.is_number())
      throw unfaithful_error({catalog.path, {}}, "nothing says {}", name);
    return found->second.value.get<double>();
  };
  const ScaledRope rope{.factor = number("rope_factor"),
                        .low = number("rope_low_freq_factor"),
                        .high = number("rope_high_freq_factor"),
                        .original = number("rope_original_positions")};
  const auto dims =
      static_cast<uint64_t>(number("head_dim") * number("rope_fraction"));
  const auto factors = rope_factors(rope, number("rope_theta"), dims);
  Tensor tensor;
  tensor.name = kGgufRope;
  tensor.shape = {factors.size()};
  tensor.dtype = DType::f32;
  tensor.pieces = {
      {.box = Box::whole(tensor.shape),
       .flat = {},
       .extent = {.offset = 0,
                  .strides = {},
                  .file = add_numbers(factors, tensor.name, catalog)}}};
  catalog.tensors.insert(catalog.tensors.begin(), std::move(tensor));
}

const nlohmann::ordered_json& writer_of(const std::string& type,
                                        const std::string& path) {
  for (const auto& one : ordered_table().at("write").at("architectures"))
    for (const auto& known : one.at("types"))
      if (known == type) return one;
  throw unfaithful_error({path, {}},
                         "no architecture of llama.cpp is known for {}",
                         text::printable(type))
      .with_hint("docs/formats/gguf.md lists those that are");
}

// Numbers that f32 holds alike are the same there.
bool same_in_f32(const Json& a, const Json& b) {
  return a.is_number() && b.is_number() &&
         static_cast<float>(a.get<double>()) ==
             static_cast<float>(b.get<double>());
}

// Reads the metadata back: facts that then differ could not be said.
void check_said(const std::shared_ptr<const Family>& family, const Facts& facts,
                const std::vector<std::string>& allow, Catalog& catalog) {
  const Facts said = read_facts(family, "hf", values_of_gguf(catalog));
  std::vector<FactDifference> allowed;
  for (const FactDifference& one : differing(facts, said)) {
    if (same_in_f32(one.a, one.b)) continue;
    if (!is_allowed(allow, one.name))
      throw unfaithful_error({catalog.path, {}},
                             "{} is {} ({}), and llama.cpp's {} has {}",
                             one.name, shown_fact(one.a), one.source_a,
                             architecture_of(catalog), shown_fact(one.b))
          .with_hint(fmt::format("--allow-unsaid {} writes it all the same",
                                 one.name));
    allowed.push_back(one);
  }
  for (const auto& [name, fact] : said)
    if (const auto own = facts.find(name);
        own != facts.end() && is_of_class(name, own->second.value, fact.value))
      catalog.problems.push_back(
          remark("class_default", {catalog.path, {}},
                 "{} is {}: the configuration has none, and transformers' "
                 "class takes these",
                 name, shown_fact(fact.value)));
  warn_of_unsaid(allowed, "GGUF's metadata", catalog);
}

// Metadata in the order in which it is added.
class Metadata {
 public:
  void add(const std::string& key, const std::string& type, const Json& value) {
    const pickle::Id node = pickle::from_json(*document_, value);
    types_->set(dict_, key, types_->add_string(type));
    objects_.push_back({key, document_, node});
  }
  void put(Catalog& catalog) {
    types_->set_root(dict_);
    objects_.push_back({std::string(gguf::kTypes), types_, dict_});
    catalog.objects = std::move(objects_);
  }

 private:
  std::shared_ptr<pickle::Document> document_ =
      std::make_shared<pickle::Document>();
  std::shared_ptr<pickle::Document> types_ =
      std::make_shared<pickle::Document>();
  pickle::Id dict_ = types_->add_container(pickle::Type::kDict);
  std::vector<Object> objects_;
};

// Without those that `own` has: an architecture's say for themselves.
void add_keys(const nlohmann::ordered_json& keys,
              const nlohmann::ordered_json& own, ToldScope& scope,
              const std::string& architecture, Metadata& metadata) {
  for (const auto& [name, entry] : keys.items()) {
    if (own.contains(name) && &own != &keys) continue;
    const Json made = scope.made({{"value", Json(entry.at(1))}});
    if (!made.contains("value")) continue;
    metadata.add(name.starts_with('.') ? architecture + name : name,
                 entry.at(0).get<std::string>(), made.at("value"));
  }
}

}  // namespace

void widen_gguf_numbers(Catalog& catalog) {
  for (Tensor& tensor : catalog.tensors) {
    if (tensor.dtype != DType::bf16 && tensor.dtype != DType::f16) continue;
    std::vector<Piece> wide;
    for (const Piece& piece : tensor.pieces) {
      if (inverse_of(piece.transform) == kNoTransform) break;
      auto numbers =
          small_floats(catalog, run_of(tensor, piece), kMostComputed);
      if (!numbers) break;
      for (float& number : *numbers) number = computed(piece.transform, number);
      Piece& made = wide.emplace_back(piece);
      made.transform = kNoTransform;
      made.extent = {.offset = 0,
                     .strides = piece.extent.strides,
                     .file = add_numbers(*numbers, tensor.name, catalog)};
      for (uint64_t& stride : made.extent.strides)
        stride *= sizeof(float) / element_size(tensor.dtype);
    }
    if (wide.empty() || wide.size() != tensor.pieces.size()) continue;
    tensor.dtype = DType::f32;
    tensor.pieces = std::move(wide);
  }
}

void add_gguf_metadata(const std::shared_ptr<const Family>& family,
                       const Facts& facts, const Json& config,
                       const TranslateOptions& options, Catalog& catalog) {
  const Json text = config.value("text_config", config);
  const auto& writer =
      writer_of(text.value("model_type", family->name()), catalog.path);
  const std::string architecture = writer.at("architecture");
  Json values = {{"architecture", architecture}, {"config", text}};
  for (const auto& [name, fact] : facts) values[name] = fact.value;
  ToldScope scope(gguf_table(), values);
  Metadata metadata;
  const auto own =
      writer.value("keys", nlohmann::ordered_json(nlohmann::json::object()));
  add_keys(ordered_table().at("write").at("common"), own, scope, architecture,
           metadata);
  add_keys(own, own, scope, architecture, metadata);
  for (const GgufKey& key :
       tokenizer_keys(catalog, options, config, facts, architecture))
    metadata.add(key.key, key.type, key.value);
  metadata.put(catalog);
  if (values.value("rope_type", Json()) == "llama3")
    add_rope_freqs(facts, catalog);
  check_said(family, facts, options.allow_unsaid, catalog);
}

void add_gguf_adapter(const std::string& model_type, double alpha,
                      Catalog& adapter) {
  Metadata metadata;
  metadata.add(std::string(kArchitecture), "str",
               Json(writer_of(model_type, adapter.path).at("architecture")));
  metadata.add("general.type", "str", "adapter");
  metadata.add("adapter.type", "str", "lora");
  metadata.add("adapter.lora.alpha", "f32", alpha);
  metadata.add("general.quantization_version", "u32", 2);
  metadata.put(adapter);
}

}  // namespace ckpt::families
