// SPDX-License-Identifier: Apache-2.0
// Shows calls of well-known globals as what they make, others as "!object".
#include <array>
#include <bit>
#include <cmath>
#include <limits>

#include "lib/hash/crc32.h"
#include "lib/pickle/json_builder.h"

namespace ckpt::pickle {
namespace {

constexpr size_t kLongestArray = 4096;  // bytes shown in full

std::string full_name(const Document& document, Id global) {
  return json_text(document.callable_name(global));
}

// The only argument, if there is exactly one.
Id only(const Document& document, const Call& call) {
  const std::span<const Id> args = document.items(call.args);
  return args.size() == 1 ? args[0] : kNoId;
}

double half_to_double(uint16_t bits) {
  const double sign = (bits & 0x8000) != 0 ? -1 : 1;
  const int exponent = bits >> 10 & 31;
  const int fraction = bits & 1023;
  if (exponent == 31)
    return fraction != 0 ? std::numeric_limits<double>::quiet_NaN()
                         : sign * std::numeric_limits<double>::infinity();
  if (exponent == 0) return sign * std::ldexp(fraction, -24);
  return sign * std::ldexp(fraction + 1024, exponent - 25);
}

double float_of(uint64_t bits, size_t size) {
  if (size == 2) return half_to_double(static_cast<uint16_t>(bits));
  if (size == 4) return std::bit_cast<float>(static_cast<uint32_t>(bits));
  return std::bit_cast<double>(bits);
}

// The first `size` bytes as an unsigned number.
uint64_t bits_of(std::string_view bytes, size_t size, bool big_endian) {
  uint64_t bits = 0;
  for (size_t i = 0; i < size; ++i) {
    const size_t at = big_endian ? i : size - 1 - i;
    bits = bits << 8 | static_cast<uint8_t>(bytes[at]);
  }
  return bits;
}

Json complex_json(double real, double imaginary) {
  Json object = Json::object();
  object["!complex"] = {float_text(real), float_text(imaginary)};
  return object;
}

}  // namespace

Json number_json(const Numbers& numbers) {
  const size_t size = numbers.kind == 'c' ? numbers.size / 2 : numbers.size;
  const uint64_t bits = bits_of(numbers.bytes, size, numbers.big_endian);
  Json object = Json::object();
  switch (numbers.kind) {
    case 'b':
      return bits != 0;
    case 'i': {
      const unsigned shift = static_cast<unsigned>(64 - 8 * size);
      return int_json(static_cast<int64_t>(bits << shift) >> shift);
    }
    case 'u':
      if (bits < uint64_t{1} << 53) return bits;
      object["!int"] = std::to_string(bits);
      return object;
    case 'c':
      return complex_json(
          float_of(bits, size),
          float_of(bits_of(std::string_view(numbers.bytes).substr(size), size,
                           numbers.big_endian),
                   size));
    default:
      object["!float"] = float_text(float_of(bits, size));
      return object;
  }
}

void JsonBuilder::show_global(Id id, Json& slot) {
  slot = Json::object();
  const std::string_view name = doc_.text(id);
  switch (doc_.known(id)) {
    case Known::kDtype:
      slot["!dtype"] = std::string(torch_dtype(name));
      return;
    case Known::kQScheme:
      slot["!qscheme"] = std::string(name);
      return;
    default:
      slot["!global"] = full_name(doc_, id);
  }
}

void JsonBuilder::show_persistent(const Task& task) {
  const Id meant = resolve_module(doc_, task.id);
  if (meant != task.id) return show_global(meant, *task.slot);
  *task.slot = Json::object();
  const auto storage = storage_view(doc_, task.id);
  if (!storage || !doc_.is(storage->location, Type::kString)) {
    Json& slot = member(*task.slot, "!persistent");
    fill(task, slot, doc_.items(task.id)[0], "persistent");
    return;
  }
  const Id type = storage->storage_class;
  (*task.slot)["!storage"] = json_text(storage->key);
  (*task.slot)["type"] =
      json_text(doc_.module(type)) + "." + json_text(doc_.text(type));
  (*task.slot)["numel"] = storage->numel;
  (*task.slot)["location"] = json_text(doc_.text(storage->location));
}

void JsonBuilder::show_call(const Task& task) {
  const Call call = doc_.call(task.id);
  if (!doc_.is(call.args, Type::kTuple) || !show_known(task, call))
    show_object(task, call);
}

// False if the call's arguments are not what its function accepts.
bool JsonBuilder::show_known(const Task& task, const Call& call) {
  const std::span<const Id> args = doc_.items(call.args);
  switch (doc_.known(task.id)) {
    case Known::kOther:
      return false;
    case Known::kOrderedDict:
    case Known::kCounter:
      return show_ordered_dict(task, call);
    case Known::kComplex:
      return show_complex(*task.slot, call);
    case Known::kSize:
      return show_size(task);
    case Known::kDevice:
      return show_device(*task.slot, call);
    case Known::kLayout:
      return show_layout(*task.slot, call);
    case Known::kSparse:
      return show_sparse(task, args);
    case Known::kMeta:
      return show_meta(task, args);
    case Known::kNested:
      return show_parts(task, args, "!nested",
                        {"buffer", "sizes", "strides", "offsets"});
    case Known::kFromNumpy:
      return show_parts(task, args, "!from_numpy",
                        {"array", "dtype", "device"});
    case Known::kNdarray:
    case Known::kNumpyScalar:
      return show_array(task.id, *task.slot);
    case Known::kNumpyDtype:
      return show_numpy_dtype(task.id, *task.slot);
    default:
      return show_tensor(task);
  }
}

bool JsonBuilder::show_ordered_dict(const Task& task, const Call& call) {
  const bool counter = doc_.known(task.id) == Known::kCounter;
  const auto pairs = doc_.as_pairs(task.id);
  if (!pairs || (counter && call.how != How::kReduce)) return false;
  *task.slot = Json::object();
  member(*task.slot, counter ? "!Counter" : "!OrderedDict");
  const bool attributes =
      call.state != kNoId && !doc_.is(call.state, Type::kNone);
  if (attributes) {
    member(*task.slot, "attrs");
    fill(task, (*task.slot)["attrs"], call.state, "attrs");
  }
  show_pairs(task.slot->front(), *pairs, task);
  return true;
}

bool JsonBuilder::show_size(const Task& task) {
  const auto items = sequence(doc_, task.id);
  if (!items || !int_list(doc_, task.id)) return false;
  *task.slot = Json::object();
  fill_array(task, member(*task.slot, "!Size"), *items);
  return true;
}

bool JsonBuilder::show_complex(Json& slot, const Call& call) {
  const std::span<const Id> args = doc_.items(call.args);
  double parts[2] = {0, 0};
  if (args.size() > 2) return false;
  for (size_t i = 0; i < args.size(); ++i) {
    const auto whole = doc_.as_int(args[i]);
    if (!whole && !doc_.is(args[i], Type::kFloat)) return false;
    parts[i] = whole ? static_cast<double>(*whole) : doc_.real(args[i]);
  }
  slot = complex_json(parts[0], parts[1]);
  return true;
}

bool JsonBuilder::show_device(Json& slot, const Call& call) {
  std::string text;
  for (const Id arg : doc_.items(call.args)) {
    if (!doc_.is(arg, Type::kString) && !doc_.is(arg, Type::kInt)) return false;
    if (!text.empty()) text += ':';
    text += json_text(key_text(arg));
  }
  slot = Json::object();
  slot["!device"] = text;
  return true;
}

bool JsonBuilder::show_layout(Json& slot, const Call& call) {
  const Id text = only(doc_, call);
  if (!doc_.is(text, Type::kString)) return false;
  slot = Json::object();
  slot["!layout"] = json_text(doc_.text(text));
  return true;
}

// --- tensors ---

bool JsonBuilder::show_tensor(const Task& task) {
  const auto tensor = tensor_view(doc_, task.id);
  if (!tensor || !doc_.is(tensor->storage.location, Type::kString))
    return false;
  std::optional<std::string> given;
  if (name_tensor_) given = name_tensor_(task.id, path(task.place, '.'));

  Json& slot = *task.slot = Json::object();
  member(slot, "!tensor", given ? Json(json_text(*given)) : Json());
  member(slot, "dtype", tensor->dtype);
  member(slot, "size", tensor->size);
  member(slot, "stride", tensor->stride);
  member(slot, "storage_offset", tensor->offset);
  member(slot, "storage", json_text(tensor->storage.key));
  member(slot, "storage_numel", tensor->storage.numel);
  member(slot, "location", json_text(doc_.text(tensor->storage.location)));
  member(slot, "requires_grad", tensor->requires_grad);
  if (tensor->parameter) member(slot, "parameter", true);
  if (!tensor->tensor_class.empty() && tensor->tensor_class != "torch.Tensor")
    member(slot, "class", json_text(tensor->tensor_class));

  struct Part {
    const char* key;
    Id id;
  };
  const auto metadata = doc_.as_pairs(tensor->metadata);
  const bool empty = metadata && metadata->empty();
  const Part parts[] = {
      {"attrs", tensor->attributes},
      {"metadata", empty ? kNoId : tensor->metadata},
      {"quantizer", tensor->quantizer},
  };
  const auto shown = [this](Id id) {
    return id != kNoId && !doc_.is(id, Type::kNone);
  };
  for (const Part& part : parts) {
    if (shown(part.id)) member(slot, part.key);
  }
  for (auto part = std::rbegin(parts); part != std::rend(parts); ++part) {
    if (!shown(part->id)) continue;
    const auto items = sequence(doc_, part->id);
    if (part->id == tensor->quantizer && items)
      fill_array(task, slot[part->key], *items);
    else
      fill(task, slot[part->key], part->id, part->key);
  }
  return true;
}

bool JsonBuilder::show_sparse(const Task& task, std::span<const Id> args) {
  if (args.size() != 2 || doc_.known(args[0]) != Known::kLayout ||
      !doc_.is(args[0], Type::kCall))
    return false;
  const Id layout = only(doc_, doc_.call(args[0]));
  const auto data = sequence(doc_, args[1]);
  if (!doc_.is(layout, Type::kString) || !data) return false;
  *task.slot = Json::object();
  Json& parts = member(*task.slot, "!sparse", Json::object());
  member(parts, "layout", json_text(doc_.text(layout)));
  Json& slot = member(parts, "data");
  const uint32_t depth = places_[task.place].depth + 1;
  places_.push_back({task.place, depth, "data"});
  const auto place = static_cast<uint32_t>(places_.size() - 1);
  fill_array({kNoId, &slot, place}, slot, *data);
  return true;
}

// (dtype, size, stride, requires_grad)
bool JsonBuilder::show_meta(const Task& task, std::span<const Id> args) {
  if (args.size() < 3 || doc_.known(args[0]) != Known::kDtype ||
      !doc_.is(args[0], Type::kGlobal))
    return false;
  const auto size = sequence(doc_, args[1]);
  const auto stride = sequence(doc_, args[2]);
  if (!size || !stride) return false;
  *task.slot = Json::object();
  Json& parts = member(*task.slot, "!meta", Json::object());
  member(parts, "dtype", std::string(torch_dtype(doc_.text(args[0]))));
  member(parts, "size", Json::object());
  member(parts, "stride", Json::object());
  fill_array(task, member(parts["size"], "!Size"), *size);
  fill_array(task, member(parts["stride"], "!tuple"), *stride);
  return true;
}

bool JsonBuilder::show_parts(const Task& task, std::span<const Id> args,
                             const char* name,
                             std::initializer_list<const char*> parts) {
  if (args.size() < parts.size()) return false;
  *task.slot = Json::object();
  Json& slot = member(*task.slot, name, Json::object());
  for (const char* part : parts) member(slot, part);
  size_t at = parts.size();
  for (auto part = std::rbegin(parts); part != std::rend(parts); ++part)
    fill(task, slot[*part], args[--at], *part);
  return true;
}

// --- numpy ---

bool JsonBuilder::show_array(Id id, Json& slot) {
  const auto array = numpy_array(doc_, id);
  if (!array) return false;
  slot = Json::object();
  const auto values = numbers(doc_, *array);
  if (!values) {
    slot["!ndarray_opaque"] =
        array->dtype ? Json(json_text(array->dtype->code)) : Json();
    slot["shape"] = array->shape ? Json(*array->shape) : Json();
    return true;
  }
  if (array->shape->empty()) {
    slot["!np_scalar"] = values->type;
    slot["value"] = number_json(*values);
    return true;
  }
  const bool whole = whole_ || values->bytes.size() <= kLongestArray;
  slot["!ndarray"] = values->type;
  slot["shape"] = *array->shape;
  slot["fortran"] = array->fortran;
  slot["hex"] = whole ? Json(hex_text(values->bytes)) : Json();
  slot["crc32"] = crc32(0, std::as_bytes(std::span(values->bytes)));
  return true;
}

bool JsonBuilder::show_numpy_dtype(Id id, Json& slot) {
  const auto dtype = numpy_dtype(doc_, id);
  if (!dtype) return false;
  slot = Json::object();
  slot["!np_dtype"] = json_text(dtype->order + dtype->code);
  return true;
}

// --- everything else ---

void JsonBuilder::show_object(const Task& task, const Call& call) {
  constexpr std::array kHow = {"reduce", "newobj", "newobj_ex", "inst"};
  const Id callable = resolve_module(doc_, call.callable);
  const bool global = doc_.is(callable, Type::kGlobal);
  Json& slot = *task.slot = Json::object();
  member(slot, "!object", global ? Json(full_name(doc_, callable)) : Json());
  member(slot, "how", kHow[static_cast<size_t>(call.how)]);
  member(slot, "args");
  if (call.kwargs != kNoId) member(slot, "kwargs");
  if (call.state != kNoId) member(slot, "state");
  if (!call.items.empty()) member(slot, "items");
  if (!call.pairs.empty()) member(slot, "pairs");

  // Last in, first shown.
  if (!call.pairs.empty()) show_pairs(slot["pairs"], call.pairs, task, "key");
  if (!call.items.empty()) fill_array(task, slot["items"], call.items);
  if (call.state != kNoId) fill(task, slot["state"], call.state, "state");
  if (call.kwargs != kNoId) fill(task, slot["kwargs"], call.kwargs, "kwargs");
  fill(task, slot["args"], call.args, "args");
  if (!global) fill(task, slot["!object"], callable, "func");
}

}  // namespace ckpt::pickle
