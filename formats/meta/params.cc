// SPDX-License-Identifier: Apache-2.0
#include "formats/meta/params.h"

#include "ckpt/error.h"
#include "formats/meta/meta.h"
#include "lib/io/file.h"
#include "lib/text/json.h"

namespace ckpt::meta {
namespace {

using Json = nlohmann::json;

constexpr uint64_t kMaxParams = 16 << 20;
// No model comes near this; products of two such numbers fit 64 bits.
constexpr uint64_t kMost = uint64_t{1} << 31;

const Json* member(const Json& json, const char* key) {
  const auto found = json.find(key);
  return found == json.end() || found->is_null() ? nullptr : &*found;
}

std::optional<uint64_t> count(const Json& json, const char* key,
                              const std::string& path) {
  const Json* value = member(json, key);
  if (!value) return std::nullopt;
  const bool number = value->is_number_unsigned() ||
                      (value->is_number_integer() && value->get<int64_t>() > 0);
  if (!number || value->get<uint64_t>() == 0 || value->get<uint64_t>() > kMost)
    throw input_error({path, {}}, "{} is {}, expected a count", key,
                      value->dump(-1, ' ', true, Json::error_handler_t::replace)
                          .substr(0, 40));
  return value->get<uint64_t>();
}

std::string family_of(const Json& json) {
  if (member(json, "moe")) return "mixtral";
  const bool mistral =
      member(json, "hidden_dim") && !member(json, "multiple_of");
  return mistral ? "mistral" : "llama";
}

void settle_heads(Params& params, const std::string& path) {
  if (!params.heads) return;
  if (!params.kv_heads) params.kv_heads = params.heads;
  if (*params.heads % *params.kv_heads != 0)
    throw input_error({path, {}},
                      "n_heads {} is not a multiple of n_kv_heads {}",
                      *params.heads, *params.kv_heads);
  if (params.head_dim || !params.dim) return;
  if (*params.dim % *params.heads != 0)
    throw input_error({path, {}}, "dim {} is not a multiple of n_heads {}",
                      *params.dim, *params.heads);
  params.head_dim = *params.dim / *params.heads;
}

using Plain = nlohmann::ordered_json;

Plain plain(const pickle::Document& document, pickle::Id value, int depth) {
  using pickle::Type;
  constexpr int kDeepest = 64;
  if (depth > kDeepest)
    throw unfaithful_error({}, "params: nested deeper than {}", kDeepest);
  switch (document.type(value)) {
    case Type::kNone:
      return nullptr;
    case Type::kBool:
      return document.boolean(value);
    case Type::kInt:
      return document.integer(value);
    case Type::kFloat:
      return document.real(value);
    case Type::kString:
      return document.text(value);
    case Type::kList:
    case Type::kTuple: {
      Plain array = Plain::array();
      for (const pickle::Id item : document.items(value))
        array.push_back(plain(document, item, depth + 1));
      return array;
    }
    default:
      break;
  }
  const auto pairs = document.as_pairs(value);
  if (!pairs)
    throw unfaithful_error({}, "params: JSON has no {}",
                           pickle::name(document.type(value)));
  Plain object = Plain::object();
  for (size_t i = 0; i + 1 < pairs->size(); i += 2) {
    if (!document.is((*pairs)[i], Type::kString))
      throw unfaithful_error({}, "params: a key that is not text");
    object[std::string(document.text((*pairs)[i]))] =
        plain(document, (*pairs)[i + 1], depth + 1);
  }
  return object;
}

}  // namespace

nlohmann::ordered_json plain_json(const pickle::Document& document,
                                  pickle::Id value) {
  return plain(document, value, 0);
}

std::optional<uint64_t> Params::query_rows() const {
  return heads && head_dim ? std::optional(*heads * *head_dim) : std::nullopt;
}

std::optional<uint64_t> Params::key_rows() const {
  return kv_heads && head_dim ? std::optional(*kv_heads * *head_dim)
                              : std::nullopt;
}

Params parse_params(const Json& json, const std::string& path) {
  if (!json.is_object())
    throw input_error({path, {}}, "expected an object, found {}",
                      json.type_name());
  const Json* inner = member(json, "model");
  if (inner && inner->is_object()) return parse_params(*inner, path);
  Params params;
  params.dim = count(json, "dim", path);
  params.heads = count(json, "n_heads", path);
  params.kv_heads = count(json, "n_kv_heads", path);
  params.head_dim = count(json, "head_dim", path);
  const Json* vocab = member(json, "vocab_size");
  params.unsaid_vocab = vocab && *vocab == -1;
  if (!params.unsaid_vocab) params.vocab = count(json, "vocab_size", path);
  params.family = family_of(json);
  settle_heads(params, path);
  return params;
}

Params read_params(const std::string& path) {
  return parse_params(
      text::parse_python_json(io::read_file(path, kMaxParams), path), path);
}

std::optional<Params> params_of(const Catalog& catalog) {
  for (const Object& object : catalog.objects)
    if (object.name == kParamsObject && object.document)
      return parse_params(Json(plain_json(*object.document, object.node)),
                          std::string(kParamsObject));
  for (const Sidecar& sidecar : catalog.sidecars)
    if (sidecar.name == kParams)
      return sidecar.text ? parse_params(text::parse_python_json(*sidecar.text,
                                                                 sidecar.path),
                                         sidecar.path)
                          : read_params(sidecar.path);
  // Container readers, which know no models, leave it beside the files.
  const std::string home =
      io::is_file(catalog.path) ? io::parent(catalog.path) : catalog.path;
  const std::string beside = io::join(home, kParams);
  if (io::is_file(beside)) return read_params(beside);
  return std::nullopt;
}

}  // namespace ckpt::meta
