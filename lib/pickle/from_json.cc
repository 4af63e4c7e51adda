#include <vector>

#include "lib/pickle/json.h"

namespace ckpt::pickle {
namespace {

using Value = nlohmann::json;

Id add_scalar(Document& document, const Value& value) {
  switch (value.type()) {
    case Value::value_t::boolean:
      return document.add_bool(value.get<bool>());
    case Value::value_t::number_integer:
      return document.add_int(value.get<int64_t>());
    case Value::value_t::number_unsigned:
      return document.add_big_int(std::to_string(value.get<uint64_t>()));
    case Value::value_t::number_float:
      return document.add_float(value.get<double>());
    case Value::value_t::string:
      return document.add_string(value.get_ref<const std::string&>());
    default:
      return document.add_none();
  }
}

Id add_value(Document& document, const Value& value) {
  if (value.is_array()) return document.add_container(Type::kList);
  if (value.is_object()) return document.add_container(Type::kDict);
  return add_scalar(document, value);
}

}  // namespace

Id from_json(Document& document, const Value& value) {
  struct Open {
    const Value* value;
    Id id;
  };
  const Id root = add_value(document, value);
  std::vector<Open> open{{&value, root}};
  while (!open.empty()) {
    const Open container = open.back();
    open.pop_back();
    if (!container.value->is_structured()) continue;
    for (auto it = container.value->begin(); it != container.value->end();
         ++it) {
      const Id item = add_value(document, *it);
      if (container.value->is_array())
        document.append(container.id, item);
      else
        document.set(container.id, it.key(), item);
      if (it->is_structured() && !it->empty()) open.push_back({&*it, item});
    }
  }
  return root;
}

}  // namespace ckpt::pickle
