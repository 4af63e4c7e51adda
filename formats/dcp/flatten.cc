// SPDX-License-Identifier: Apache-2.0
#include "formats/dcp/flatten.h"

#include <algorithm>
#include <unordered_map>
#include <unordered_set>

#include "ckpt/note.h"
#include "containers/torch/walk.h"
#include "lib/pickle/parts.h"
#include "lib/text/format.h"

namespace ckpt::dcp {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::kNoId;
using pickle::Type;
using text::printable;

// Anything nested deeper, or visited more often because it is shared, is
// written as one value.
constexpr size_t kMaxDepth = 100;
constexpr size_t kMaxVisits = 20'000'000;

std::string join(const Path& path) {
  std::string name;
  for (const PathElement& element : path) {
    if (&element != path.data()) name += '.';
    if (const auto* key = std::get_if<std::string>(&element))
      name += *key;
    else
      name += std::to_string(std::get<int64_t>(element));
  }
  return name;
}

class Flattener {
 public:
  explicit Flattener(const Catalog& source)
      : source_(source), document_(*source.skeleton->document) {
    for (const Tensor& tensor : source.tensors) tensors_.insert(tensor.name);
    for (const auto& [node, name] : source.skeleton->tensors)
      names_[node].names.push_back(&name);
    for (const Object& object : source.objects)
      if (object.document == source.skeleton->document)
        objects_.emplace(object.name, &object);
    clean_.assign(document_.size(), false);
  }

  Flattened run() {
    open(source_.skeleton->root, nullptr);
    while (!frames_.empty()) step();
    for (const Object& object : source_.objects)
      if (!placed_.contains(&object))
        result_.values.push_back({object.name, &object, object.node});
    return std::move(result_);
  }

 private:
  // A container on the way down.
  struct Frame {
    Id node = kNoId;
    const Object* object = nullptr;  // that contains it
    std::vector<Id> pairs;           // of a mapping
    bool is_mapping = false;
    size_t next = 0;
  };
  struct Names {
    std::vector<const std::string*> names;
    size_t next = 0;
  };

  void step() {
    Frame& frame = frames_.back();
    const size_t unit = frame.is_mapping ? 2 : 1;
    const size_t count = frame.is_mapping ? frame.pairs.size()
                                          : document_.items(frame.node).size();
    if (frame.next + unit > count) {
      frames_.pop_back();
      if (!path_.empty()) path_.pop_back();
      return;
    }
    const size_t at = frame.next;
    frame.next += unit;
    const Object* object = frame.object;
    if (frame.is_mapping) {
      path_.emplace_back(torch::key_text(document_, frame.pairs[at], at / 2));
      visit(frame.pairs[at + 1], object);
    } else {
      // The root is a dict: its keys are texts.
      if (path_.empty())
        path_.emplace_back(std::to_string(at));
      else
        path_.emplace_back(static_cast<int64_t>(at));
      visit(document_.items(frame.node)[at], object);
    }
  }

  // Handles a value at path_; leaves path_ as it is only if a container was
  // opened.
  void visit(Id node, const Object* object) {
    const std::string name = join(path_);
    const auto found = objects_.find(name);
    if (found != objects_.end() && found->second->node == node) {
      object = found->second;
      placed_.insert(object);
    }
    const auto tensor = names_.find(node);
    if (tensor != names_.end()) {
      add_tensor(tensor->second);
    } else if (object && object->bytes) {
      add_value(name, *object, node);  // has an archive: carried whole
    } else if (descends(node, object != nullptr)) {
      open(node, object);
      return;
    } else if (object) {
      add_value(name, *object, node);
    } else if (holds_tensor(node)) {
      result_.problems.push_back(
          warning("object_left_out", {{}, printable(name)},
                  "an object with tensors in it: they are written under "
                  "their names, the object is left out"));
    }
    path_.pop_back();
  }

  void add_value(const std::string& name, const Object& object, Id node) {
    result_.values.push_back({name, &object, node});
    result_.paths.emplace_back(name, path_);
  }

  void open(Id node, const Object* object) {
    Frame frame{.node = node, .object = object};
    frame.is_mapping = torch::is_mapping(document_, node);
    if (frame.is_mapping) {
      frame.pairs = document_.as_pairs(node).value_or(std::vector<Id>());
    } else if (!document_.is(node, Type::kList) &&
               !document_.is(node, Type::kTuple)) {
      return;
    }
    frames_.push_back(std::move(frame));
  }

  // A list that is not an object, or part of one, exists for its contents.
  bool descends(Id node, bool in_object) {
    if (frames_.size() >= kMaxDepth || ++visits_ > kMaxVisits) return false;
    for (const Frame& frame : frames_)
      if (frame.node == node) return false;  // holds itself
    if (torch::is_mapping(document_, node)) {
      // An empty one would vanish, so it is kept as a value.
      const auto pairs = document_.as_pairs(node);
      return pairs && !pairs->empty();
    }
    if (document_.is(node, Type::kList))
      return !in_object || !is_terminal(node);
    if (!document_.is(node, Type::kTuple) || !holds_tensor(node)) return false;
    result_.problems.push_back(
        warning("tuple_as_list", {{}, printable(join(path_))},
                "a tuple of tensors comes back as a list"));
    return true;
  }

  // True if neither the list nor lists in it hold a mapping or a tensor.
  bool is_terminal(Id list) const {
    std::vector<Id> open{list};
    std::unordered_set<Id> seen{list};
    while (!open.empty()) {
      const Id id = open.back();
      open.pop_back();
      for (const Id item : document_.items(id)) {
        if (names_.contains(item) || torch::is_mapping(document_, item))
          return false;
        if (document_.is(item, Type::kList) && seen.insert(item).second)
          open.push_back(item);
      }
    }
    return true;
  }

  // Nodes searched without success are not searched again.
  bool holds_tensor(Id root) {
    std::vector<Id> open, seen;
    const auto enter = [&](Id id) {
      if (id == kNoId || clean_[id]) return;
      clean_[id] = true;
      seen.push_back(id);
      open.push_back(id);
    };
    enter(root);
    while (!open.empty()) {
      const Id id = open.back();
      open.pop_back();
      if (names_.contains(id)) {
        for (const Id other : seen) clean_[other] = false;
        return true;
      }
      pickle::each_part(document_, id, enter);
    }
    return false;
  }

  // Adds the tensor at path_ under its name in the catalog.
  void add_tensor(Names& names) {
    const std::string& name =
        *names.names[std::min(names.next, names.names.size() - 1)];
    ++names.next;
    if (!tensors_.contains(name)) return;  // was left out
    result_.paths.emplace_back(name, path_of(name));
  }

  // A renamed tensor keeps its place as far as the path above still fits.
  Path path_of(const std::string& name) const {
    if (join(path_) == name) return path_;
    Path above(path_.begin(), path_.end() - 1);
    const std::string prefix = join(above) + '.';
    if (above.empty() || !name.starts_with(prefix) ||
        name.size() == prefix.size())
      return {name};
    above.emplace_back(name.substr(prefix.size()));
    return above;
  }

  const Catalog& source_;
  const Document& document_;
  std::unordered_set<std::string_view> tensors_;  // of the catalog
  std::unordered_map<Id, Names> names_;           // of tensor nodes
  std::unordered_map<std::string_view, const Object*> objects_;
  std::unordered_set<const Object*> placed_;
  std::vector<bool> clean_;  // leads to no tensor
  std::vector<Frame> frames_;
  Path path_;
  size_t visits_ = 0;
  Flattened result_;
};

}  // namespace

Flattened flatten(const Catalog& source) {
  if (source.skeleton && source.skeleton->document)
    return Flattener(source).run();
  Flattened result;
  for (const Object& object : source.objects)
    result.values.push_back({object.name, &object, object.node});
  return result;
}

}  // namespace ckpt::dcp
