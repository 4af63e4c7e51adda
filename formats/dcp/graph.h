// SPDX-License-Identifier: Apache-2.0
// The object graph of .metadata: dataclass instances, identified by class and
// fields. Private to this room.
//
//   instance = call of class (NEWOBJ), state = {field: value}, or a record
//
// A document holds each short text or global once, however often the pickle
// spells it, so fields and classes are compared by id: this graph has millions
// of nodes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "ckpt/box.h"
#include "ckpt/error.h"
#include "lib/pickle/value.h"
#include "lib/text/format.h"

namespace ckpt::dcp {

// A view of an instance's fields, whether they are a dict or a record. (There
// are few of them: an index isn't worth it.)
class Fields {
 public:
  Fields() = default;
  // For a dict: name, value, name, value …
  explicit Fields(std::span<const pickle::Id> pairs)
      : names_(pairs.data()), count_(pairs.size() / 2), step_(2) {
    values_ = names_ + 1;
  }
  explicit Fields(const pickle::Record& record)
      : names_(record.names.data()),
        values_(record.values.data()),
        count_(record.names.size()) {}

  // kNoId if it is not there.
  pickle::Id find(pickle::Id name) const {
    for (size_t i = 0; i < count_; ++i)
      if (names_[i * step_] == name) return values_[i * step_];
    return pickle::kNoId;
  }

 private:
  const pickle::Id* names_ = nullptr;
  const pickle::Id* values_ = nullptr;
  size_t count_ = 0;
  size_t step_ = 1;
};

class Graph {
 public:
  // Adds to the document the names that it looks for.
  Graph(pickle::Document& document, std::string path);

  // Fields.
  struct Names {
    pickle::Id state_dict_metadata, planner_data, storage_data, version;
    pickle::Id mcore_data, original_shape;
    pickle::Id properties, size, chunks, dtype, requires_grad;
    pickle::Id offsets, sizes;
    pickle::Id fqn, offset, index;
    pickle::Id relative_path, length, transform_descriptors;
  } names;

  const pickle::Document& document() const { return document_; }
  const std::string& path() const { return path_; }

  // The name of an instance's class, "" if the node is not an instance.
  std::string_view class_name(pickle::Id node) const;
  // The instance's fields; none if it has no state. Throws input_error unless
  // the node is an instance of a class named `type`.
  Fields fields(pickle::Id node, std::string_view type);

  // A torch.Size, tuple or list of integers >= 0. `tensor` and `what` are for
  // messages.
  Dims dims(pickle::Id node, std::string_view tensor,
            std::string_view what) const;
  // The same, valid until the next call: millions of boxes are read, most of
  // which have one of a few thousand sizes and offsets.
  const Dims& known_dims(pickle::Id node, std::string_view tensor,
                         std::string_view what);
  uint64_t count(pickle::Id node, std::string_view tensor,
                 std::string_view what) const;
  // A str; throws input_error for anything else.
  std::string_view text(pickle::Id node, std::string_view what) const;
  // What a value is, for messages: "an int", "an object collections Counter".
  std::string describe(pickle::Id node) const;

  template <class... Args>
  [[noreturn]] void fail(std::string_view tensor,
                         fmt::format_string<Args...> format,
                         Args&&... args) const {
    throw Error(ExitCode::kDamaged, {path_, text::printable(tensor)},
                fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  struct KnownDims {
    pickle::Id node = pickle::kNoId;
    Dims dims;
  };

  const pickle::Document& document_;
  const std::string path_;
  std::vector<KnownDims> known_;  // by the bits of a product of the node
  pickle::Id size_class_;
  // The class of the last instance: instances come in long runs of one class.
  pickle::Id last_class_ = pickle::kNoId;
  std::string_view last_name_;
};

}  // namespace ckpt::dcp
