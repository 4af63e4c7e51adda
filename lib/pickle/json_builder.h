// SPDX-License-Identifier: Apache-2.0
// The implementation of to_json(): values wait on a stack, each with the place
// in the result where its JSON goes.
#pragma once

#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "lib/pickle/json.h"
#include "lib/pickle/ndarray.h"
#include "lib/pickle/tensor_view.h"

namespace ckpt::pickle {

using Json = nlohmann::ordered_json;

// numpy's item(): the number of a scalar, the first of an array.
Json number_json(const Numbers& numbers);

class JsonBuilder {
 public:
  JsonBuilder(const Document& document, uint64_t budget,
              const NameTensor& name_tensor, bool whole = false)
      : doc_(document),
        budget_(budget),
        name_tensor_(name_tensor),
        whole_(whole) {}

  Json run(Id root);

 private:
  // Where a value is in the tree: the key at each level.
  struct Place {
    uint32_t parent;
    uint32_t depth;
    std::string key;
  };
  struct Task {
    Id id;       // kNoId: sort the elements of the slot
    Json* slot;  // never moves: its container is complete
    uint32_t place;
    bool key = false;  // of a dict: never a reference
  };

  // json.cc
  void show(const Task& task);
  bool show_scalar(Id id, Json& slot);
  bool show_reference(const Task& task);
  void show_items(const Task& task);
  void show_dict(const Task& task, std::span<const Id> pairs);
  void show_pairs(Json& slot, std::span<const Id> pairs, const Task& task,
                  const char* key_name = nullptr);
  bool all_plain_keys(std::span<const Id> pairs) const;

  // json_objects.cc
  void show_global(Id id, Json& slot);
  void show_persistent(const Task& task);
  void show_call(const Task& task);
  bool show_known(const Task& task, const Call& call);
  bool show_ordered_dict(const Task& task, const Call& call);
  bool show_size(const Task& task);
  bool show_complex(Json& slot, const Call& call);
  bool show_device(Json& slot, const Call& call);
  bool show_layout(Json& slot, const Call& call);
  bool show_tensor(const Task& task);
  bool show_sparse(const Task& task, std::span<const Id> args);
  bool show_meta(const Task& task, std::span<const Id> args);
  bool show_parts(const Task& task, std::span<const Id> args, const char* name,
                  std::initializer_list<const char*> parts);
  bool show_array(Id id, Json& slot);
  bool show_numpy_dtype(Id id, Json& slot);
  void show_object(const Task& task, const Call& call);

  // Adds a member to an object; call it before any task points into it.
  static Json& member(Json& object, std::string key, Json value = {});
  // Arranges for `slot` to be filled with a value at key `key` below `task`;
  // false if that is already done.
  bool fill(const Task& task, Json& slot, Id id, std::string key);
  // Makes `slot` an array of these; the elements' keys are their indices.
  void fill_array(const Task& task, Json& slot, std::span<const Id> ids);
  uint64_t spend(uint64_t wanted);  // how many values may be shown
  std::string path(uint32_t place, char separator) const;
  std::string key_text(Id id) const;

  const Document& doc_;
  uint64_t budget_;
  const NameTensor& name_tensor_;
  const bool whole_;  // long bytes are shown, what is too deep is refused
  std::vector<Place> places_;
  std::vector<Task> tasks_;
  std::unordered_map<Id, uint32_t> seen_;
};

// As Python's repr() of a float.
std::string float_text(double value);
std::string hex_text(std::string_view bytes);
// Valid UTF-8 for JSON, whatever the text holds.
std::string json_text(std::string_view text);
Json int_json(int64_t value);

}  // namespace ckpt::pickle
