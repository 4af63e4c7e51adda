// The object graph of .metadata: dataclass instances, known by their class and
// their fields. Private to this room.
//
//   instance = call of class (NEWOBJ), state = {field: value}
//
// Short texts and globals are one value each in a document, however often a
// pickle spells them, so fields and classes are compared by their ids: this
// graph has millions of nodes.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "ckpt/box.h"
#include "ckpt/error.h"
#include "lib/pickle/value.h"
#include "lib/text/format.h"

namespace ckpt::dcp {

class Graph {
 public:
  // Adds the names that it looks for to the document.
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

  // The name of an instance's class, "" if the node is no instance.
  std::string_view class_name(pickle::Id node) const;
  // Its fields: field, value, field, value …; none if it has no state.
  // Throws input_error if the node is no instance of a class of this name.
  std::span<const pickle::Id> fields(pickle::Id node, std::string_view type);
  // kNoId if it is not there. (A few fields: no index is worth it.)
  static pickle::Id find(std::span<const pickle::Id> fields, pickle::Id name) {
    for (size_t i = 0; i + 1 < fields.size(); i += 2)
      if (fields[i] == name) return fields[i + 1];
    return pickle::kNoId;
  }

  // A torch.Size, tuple or list of integers >= 0. `tensor` and `what` are for
  // messages.
  Dims dims(pickle::Id node, std::string_view tensor,
            std::string_view what) const;
  // The same into dims that are there: millions of boxes are read.
  void read_dims(pickle::Id node, Dims& dims, std::string_view tensor,
                 std::string_view what) const;
  uint64_t count(pickle::Id node, std::string_view tensor,
                 std::string_view what) const;
  // A str; throws input_error for anything else.
  std::string_view text(pickle::Id node, std::string_view what) const;
  // "an int", "an object collections Counter": what a value is, for messages.
  std::string describe(pickle::Id node) const;

  template <class... Args>
  [[noreturn]] void fail(std::string_view tensor,
                         fmt::format_string<Args...> format,
                         Args&&... args) const {
    throw Error(ExitCode::kDamaged, {path_, text::printable(tensor)},
                fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  const pickle::Document& document_;
  const std::string path_;
  pickle::Id size_class_;
  // The class of the last instance: they come in long runs of one.
  pickle::Id last_class_ = pickle::kNoId;
  std::string_view last_name_;
};

}  // namespace ckpt::dcp
