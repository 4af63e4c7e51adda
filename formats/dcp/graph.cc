// SPDX-License-Identifier: Apache-2.0
#include "formats/dcp/graph.h"

namespace ckpt::dcp {

using pickle::Id;
using pickle::kNoId;
using pickle::Type;

Graph::Graph(pickle::Document& document, std::string path)
    : document_(document), path_(std::move(path)) {
  const auto name = [&](std::string_view text) {
    return document.add_string(text);
  };
  names = {.state_dict_metadata = name("state_dict_metadata"),
           .planner_data = name("planner_data"),
           .storage_data = name("storage_data"),
           .version = name("version"),
           .mcore_data = name("mcore_data"),
           .original_shape = name("nd_reformulated_orig_global_shape"),
           .properties = name("properties"),
           .size = name("size"),
           .chunks = name("chunks"),
           .dtype = name("dtype"),
           .requires_grad = name("requires_grad"),
           .offsets = name("offsets"),
           .sizes = name("sizes"),
           .fqn = name("fqn"),
           .offset = name("offset"),
           .index = name("index"),
           .relative_path = name("relative_path"),
           .length = name("length"),
           .transform_descriptors = name("transform_descriptors")};
  size_class_ = document.add_global("torch", "Size");
}

std::string_view Graph::class_name(Id node) const {
  if (!document_.is(node, Type::kCall)) return {};
  const Id callable = document_.callable(node);
  return document_.is(callable, Type::kGlobal) ? document_.text(callable)
                                               : std::string_view();
}

Fields Graph::fields(Id node, std::string_view type) {
  if (!document_.is(node, Type::kCall))
    fail({}, "{} where {} is expected", describe(node), type);
  const Id callable = document_.callable(node);
  if (callable != last_class_) {
    if (!document_.is(callable, Type::kGlobal))
      fail({}, "an object of no class where {} is expected", type);
    last_class_ = callable;
    last_name_ = document_.text(callable);
  }
  if (last_name_ != type)
    fail({}, "{} where {} is expected", describe(node), type);
  if (document_.is_record(node)) return Fields(document_.record(node));
  const Id state = document_.call(node).state;
  if (state == kNoId) return {};
  if (!document_.is(state, Type::kDict))
    fail({}, "the fields of {} are {}, not a dict", type, describe(state));
  return Fields(document_.items(state));
}

const Dims& Graph::known_dims(Id node, std::string_view tensor,
                              std::string_view what) {
  constexpr int kBits = 12;
  if (known_.empty()) known_.resize(size_t{1} << kBits);
  KnownDims& known = known_[node * 0x9E3779B1u >> (32 - kBits)];
  if (known.node == node && node != kNoId) return known.dims;
  known.node = kNoId;
  known.dims = dims(node, tensor, what);
  known.node = node;
  return known.dims;
}

Dims Graph::dims(Id node, std::string_view tensor,
                 std::string_view what) const {
  const Id given = node;
  Dims dims;
  if (document_.is(node, Type::kCall)) {
    const pickle::Call call = document_.call(node);
    const bool size = call.callable == size_class_ &&
                      document_.is(call.args, Type::kTuple) &&
                      document_.items(call.args).size() <= 1;
    if (!size) fail(tensor, "{} is {}", what, describe(node));
    if (document_.items(call.args).empty()) return dims;
    node = document_.items(call.args)[0];
  }
  if (!document_.is(node, Type::kTuple) && !document_.is(node, Type::kList))
    fail(tensor, "{} is {}, not a torch.Size", what, describe(given));
  const auto items = document_.items(node);
  if (items.size() > kMaxRank)
    fail(tensor, "{} has {} dimensions, known are up to {}", what, items.size(),
         kMaxRank);
  for (const Id item : items) dims.push_back(count(item, tensor, what));
  return dims;
}

uint64_t Graph::count(Id node, std::string_view tensor,
                      std::string_view what) const {
  if (!document_.is(node, Type::kInt))
    fail(tensor, "{} is {}, not an integer of 64 bits", what, describe(node));
  const int64_t value = document_.integer(node);
  if (value < 0) fail(tensor, "{} {} is negative", what, value);
  return static_cast<uint64_t>(value);
}

std::string_view Graph::text(Id node, std::string_view what) const {
  if (!document_.is(node, Type::kString))
    fail({}, "{} is {}, not a str", what, describe(node));
  return document_.text(node);
}

std::string Graph::describe(Id node) const {
  if (node == kNoId) return "nothing";
  const Type type = document_.type(node);
  if (type == Type::kNone) return "None";
  const std::string_view name = pickle::name(type);
  const bool vowel = name[0] == 'i' || name[0] == 'o';
  std::string what = fmt::format("{} {}", vowel ? "an" : "a", name);
  if (type == Type::kCall || type == Type::kGlobal)
    what += " " + text::printable(document_.callable_name(node));
  return what;
}

}  // namespace ckpt::dcp
