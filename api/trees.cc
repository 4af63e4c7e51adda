// SPDX-License-Identifier: Apache-2.0
#include "ckpt/trees.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <map>
#include <unordered_map>

#include "ckpt/error.h"
#include "lib/pickle/json.h"
#include "lib/pickle/value.h"

namespace ckpt {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::kNoId;
using pickle::Type;

// No trainer makes deeper trees. Together with the count, it bounds the cost of
// a value that holds itself, or one thing many times.
constexpr size_t kMostDepth = 200;
constexpr uint64_t kMostValues = 10'000'000;

// A value of a document.
struct Node {
  const Document& document;
  Id id = kNoId;

  Type type() const { return document.type(id); }
  Node at(Id other) const { return {document, other}; }
};

Node node_of(const Object& object) {
  if (!object.document)
    throw bug_error({{}, object.name}, "an object that nobody has opened");
  return {*object.document, object.node};
}

std::string dump(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

// Two keys of a dict are the same if these texts are equal: 1 and True, but not
// "1".
std::string key_text(const Node& key) {
  if (key.type() == Type::kString)
    return '"' + std::string(key.document.text(key.id));
  if (const auto number = key.document.as_int(key.id))
    return std::to_string(*number);
  return dump(pickle::to_json(key.document, key.id));
}

std::string element_of(const std::string& path, const Node& key) {
  std::string text = key_text(key);
  if (text.starts_with('"')) text.erase(0, 1);
  return path.empty() ? text : path + "." + text;
}

std::string element_of(const std::string& path, size_t index) {
  return path.empty() ? std::to_string(index)
                      : fmt::format("{}.{}", path, index);
}

std::string type_of(const Node& node) {
  const Document& document = node.document;
  const bool named = node.type() == Type::kCall || node.type() == Type::kGlobal;
  if (named && pickle::is_rebuild(document.known(node.id)))
    return "torch Tensor";
  const std::string name = document.callable_name(node.id);
  return name.empty() ? std::string(pickle::name(node.type())) : name;
}

bool is_list(const Node& node) { return node.type() == Type::kList; }

// A dict's keys and values, by the keys' texts.
using Entries = std::map<std::string, std::pair<Id, Id>>;
Entries entries_of(const Document& document, const std::vector<Id>& pairs) {
  Entries entries;
  for (size_t i = 0; i + 1 < pairs.size(); i += 2)
    entries[key_text({document, pairs[i]})] = {pairs[i], pairs[i + 1]};
  return entries;
}

// How much a walk may still visit.
class Budget {
 public:
  void spend(size_t depth) {
    if (depth <= kMostDepth && ++spent_ <= kMostValues) return;
    throw unsafe_error({}, "a tree of more than {} levels or {} values",
                       kMostDepth, kMostValues);
  }

 private:
  uint64_t spent_ = 0;
};

// --- equality of leaves ---

class Same {
 public:
  explicit Same(Budget& budget) : budget_(budget) {}

  bool operator()(const Node& a, const Node& b, size_t depth) {
    budget_.spend(depth);
    if (&a.document == &b.document && a.id == b.id) return true;
    const auto m = a.document.as_int(a.id), n = b.document.as_int(b.id);
    if (m || n) return m == n || same_numbers(a, b);
    if (a.type() == Type::kFloat || b.type() == Type::kFloat)
      return same_numbers(a, b);
    const auto x = a.document.as_pairs(a.id), y = b.document.as_pairs(b.id);
    if (x && y) return same_dicts(a, *x, b, *y, depth);
    if (a.type() != b.type()) return false;
    switch (a.type()) {
      case Type::kBigInt:
      case Type::kString:
      case Type::kBytes:
      case Type::kByteArray:
        return a.document.text(a.id) == b.document.text(b.id);
      case Type::kGlobal:
        return a.document.callable_name(a.id) == b.document.callable_name(b.id);
      case Type::kSet:
      case Type::kFrozenSet:
        return same_sets(a, b);
      case Type::kCall:
        return same_calls(a, b, depth);
      case Type::kPersistent:
        return same_storages(a, b, depth);
      case Type::kNone:
        return true;
      default:
        return same_items(a, a.document.items(a.id), b, b.document.items(b.id),
                          depth);
    }
  }

 private:
  static bool same_numbers(const Node& a, const Node& b) {
    const auto number = [](const Node& node) -> std::optional<double> {
      if (node.type() == Type::kFloat) return node.document.real(node.id);
      if (const auto n = node.document.as_int(node.id))
        return static_cast<double>(*n);
      return std::nullopt;
    };
    const auto x = number(a), y = number(b);
    return x && y && (*x == *y || (*x != *x && *y != *y));
  }

  bool same_items(const Node& a, std::span<const Id> x, const Node& b,
                  std::span<const Id> y, size_t depth) {
    if (x.size() != y.size()) return false;
    for (size_t i = 0; i < x.size(); ++i)
      if (!(*this)(a.at(x[i]), b.at(y[i]), depth + 1)) return false;
    return true;
  }

  bool same_dicts(const Node& a, const std::vector<Id>& x, const Node& b,
                  const std::vector<Id>& y, size_t depth) {
    const Entries left = entries_of(a.document, x);
    const Entries right = entries_of(b.document, y);
    if (left.size() != right.size()) return false;
    for (const auto& [key, entry] : left) {
      const auto other = right.find(key);
      if (other == right.end() ||
          !(*this)(a.at(entry.second), b.at(other->second.second), depth + 1))
        return false;
    }
    return true;
  }

  static bool same_sets(const Node& a, const Node& b) {
    const auto texts = [](const Node& node) {
      std::vector<std::string> all;
      for (const Id id : node.document.items(node.id))
        all.push_back(key_text(node.at(id)));
      std::ranges::sort(all);
      return all;
    };
    return texts(a) == texts(b);
  }

  // ("storage", class, key, location, numel …): the key is specific to a file.
  bool same_storages(const Node& a, const Node& b, size_t depth) {
    const auto id = [](const Node& node) {
      const Id tuple = node.document.items(node.id)[0];
      return node.document.is(tuple, Type::kTuple)
                 ? node.document.items(tuple)
                 : node.document.items(node.id);
    };
    const auto x = id(a), y = id(b);
    if (x.size() != y.size() || x.size() < 5)
      return same_items(a, x, b, y, depth);
    for (const size_t i : {0, 1, 4})
      if (!(*this)(a.at(x[i]), b.at(y[i]), depth + 1)) return false;
    return true;
  }

  bool same_calls(const Node& a, const Node& b, size_t depth) {
    const pickle::Call x = a.document.call(a.id), y = b.document.call(b.id);
    const std::pair<Id, Id> parts[] = {{x.callable, y.callable},
                                       {x.args, y.args},
                                       {x.kwargs, y.kwargs},
                                       {x.state, y.state}};
    for (const auto& [left, right] : parts) {
      if ((left == kNoId) != (right == kNoId)) return false;
      if (left != kNoId && !(*this)(a.at(left), b.at(right), depth + 1))
        return false;
    }
    return same_items(a, x.items, b, y.items, depth) &&
           same_items(a, x.pairs, b, y.pairs, depth);
  }

  Budget& budget_;
};

// --- walks ---

class Types {
 public:
  explicit Types(uint64_t limit) : limit_(limit) {}

  void walk(const Node& node, const std::string& path, size_t depth) {
    if (leaves_.size() >= limit_) return;
    budget_.spend(depth);
    const auto pairs = node.document.as_pairs(node.id);
    if (pairs && !pairs->empty()) {
      for (size_t i = 0; i + 1 < pairs->size(); i += 2)
        walk(node.at((*pairs)[i + 1]), element_of(path, node.at((*pairs)[i])),
             depth + 1);
    } else if (is_list(node) && !node.document.items(node.id).empty()) {
      size_t index = 0;
      for (const Id item : node.document.items(node.id))
        walk(node.at(item), element_of(path, index++), depth + 1);
    } else {
      leaves_.push_back({path, type_of(node)});
    }
  }
  std::vector<TreeLeaf> take() { return std::move(leaves_); }

 private:
  const uint64_t limit_;
  Budget budget_;
  std::vector<TreeLeaf> leaves_;
};

class Differ {
 public:
  void walk(const Node& a, const Node& b, const std::string& path,
            size_t depth) {
    budget_.spend(depth);
    const auto x = a.document.as_pairs(a.id), y = b.document.as_pairs(b.id);
    if (x && y)
      dicts(a, entries_of(a.document, *x), b, entries_of(b.document, *y), path,
            depth);
    else if (is_list(a) && is_list(b))
      lists(a, b, path, depth);
    else if (!Same(budget_)(a, b, depth))
      found_.mismatching.push_back({path, type_of(a), type_of(b)});
  }
  TreeDifference take() { return std::move(found_); }

 private:
  void dicts(const Node& a, const Entries& left, const Node& b,
             const Entries& right, const std::string& path, size_t depth) {
    for (const auto& [key, entry] : left) {
      const std::string below = element_of(path, a.at(entry.first));
      const auto other = right.find(key);
      if (other == right.end())
        found_.only_left.push_back(below);
      else
        walk(a.at(entry.second), b.at(other->second.second), below, depth + 1);
    }
    for (const auto& [key, entry] : right)
      if (!left.contains(key))
        found_.only_right.push_back(element_of(path, b.at(entry.first)));
  }

  void lists(const Node& a, const Node& b, const std::string& path,
             size_t depth) {
    const auto x = a.document.items(a.id), y = b.document.items(b.id);
    const size_t both = std::min(x.size(), y.size());
    for (size_t i = 0; i < both; ++i)
      walk(a.at(x[i]), b.at(y[i]), element_of(path, i), depth + 1);
    for (size_t i = both; i < x.size(); ++i)
      found_.only_left.push_back(element_of(path, i));
    for (size_t i = both; i < y.size(); ++i)
      found_.only_right.push_back(element_of(path, i));
  }

  Budget budget_;
  TreeDifference found_;
};

// Merges the right tree into the left one; both are in the same document.
class Merger {
 public:
  explicit Merger(Document& document) : document_(document) {}

  void merge(Id left, Id right, const std::string& path, size_t depth) {
    budget_.spend(depth);
    const auto x = document_.as_pairs(left), y = document_.as_pairs(right);
    if (x && y) return dicts(left, *x, *y, path, depth);
    const Node a{document_, left}, b{document_, right};
    if (!is_list(a) || !is_list(b))
      throw unfaithful_error({{}, path}, "both trees have it: a {} and a {}",
                             type_of(a), type_of(b));
    const auto l = document_.items(left), r = document_.items(right);
    const std::vector<Id> these(l.begin(), l.end()), those(r.begin(), r.end());
    if (these.size() != those.size())
      throw unfaithful_error({{}, path},
                             "a list of {} and one of {} elements can't be "
                             "merged",
                             these.size(), those.size());
    for (size_t i = 0; i < these.size(); ++i)
      merge(these[i], those[i], element_of(path, i), depth + 1);
  }

 private:
  void dicts(Id left, const std::vector<Id>& these,
             const std::vector<Id>& those, const std::string& path,
             size_t depth) {
    const Entries known = entries_of(document_, these);
    for (size_t i = 0; i + 1 < those.size(); i += 2) {
      const Node key{document_, those[i]};
      const auto found = known.find(key_text(key));
      if (found == known.end())
        document_.set(left, those[i], those[i + 1]);
      else
        merge(found->second.second, those[i + 1], element_of(path, key),
              depth + 1);
    }
  }

  Document& document_;
  Budget budget_;
};

}  // namespace

std::string json_of(const Object& object) {
  const Node node = node_of(object);
  return dump(pickle::to_json(node.document, node.id));
}

namespace {

// The tag of canonical JSON in a dict ({"!float": "0.5"}), or "". A dict whose
// own keys begin like that is {"!dict": …} there.
std::string_view tag_of(const Document& document, Id id) {
  if (!document.is(id, Type::kDict)) return {};
  const auto pairs = document.as_pairs(id);
  for (size_t i = 0; pairs && i + 1 < pairs->size(); i += 2) {
    if (!document.is((*pairs)[i], Type::kString)) continue;
    const std::string_view key = document.text((*pairs)[i]);
    if (key.starts_with('!')) return key;
  }
  return {};
}

Id add_number(Document& document, std::string_view tag, std::string_view text) {
  if (tag == "!int" && !text.empty() &&
      text.find_first_not_of("0123456789", text[0] == '-') == text.npos)
    return document.add_big_int(text);
  double real = 0;
  const char* const last = text.data() + text.size();
  const auto [end, failure] = std::from_chars(text.data(), last, real);
  const bool whole = failure == std::errc{} && end == last && !text.empty();
  return tag == "!float" && whole ? document.add_float(real) : kNoId;
}

// Turns numbers that canonical JSON tags back into numbers. Anything else it
// tags is of a class that JSON lacks, and would be another value as a dict.
void undo_tags(const Document& from, Id root, Document& document) {
  std::unordered_map<Id, Id> numbers;
  for (size_t node = 0; node < from.size(); ++node) {
    const Id id = static_cast<Id>(node);
    const std::string_view tag = tag_of(from, id);
    if (tag.empty()) continue;
    const auto pairs = from.as_pairs(id);
    const Id value = (*pairs)[1];
    const Id number = pairs->size() == 2 && from.is(value, Type::kString)
                          ? add_number(document, tag, from.text(value))
                          : kNoId;
    if (number == kNoId)
      throw input_error({}, "{} is a value that JSON has no word for", tag);
    numbers[id] = number;
  }
  document.set_root(document.import(from, root, numbers));
}

}  // namespace

Object object_from_json(std::string name, const std::string& json) {
  auto document = std::make_shared<Document>();
  try {
    Document read;
    const Id root = pickle::read_json(read, json, name);
    undo_tags(read, root, *document);
    const Id id = document->root();
    Object object{.name = std::move(name)};
    object.document = std::move(document);
    object.node = id;
    return object;
  } catch (const Error& error) {
    throw usage_error({{}, name}, "its value is not JSON: {}", error.problem());
  }
}

std::vector<TreeLeaf> inspect_types(const Object& tree, uint64_t limit) {
  Types types(limit);
  types.walk(node_of(tree), "", 0);
  return types.take();
}

TreeDifference diff_trees(const Object& left, const Object& right) {
  Differ differ;
  differ.walk(node_of(left), node_of(right), "", 0);
  return differ.take();
}

Object merge_trees(const Object& left, const Object& right) {
  const Node a = node_of(left), b = node_of(right);
  auto document = std::make_shared<Document>();
  const Id root = document->import(a.document, a.id);
  const Id other = document->import(b.document, b.id);
  Merger(*document).merge(root, other, "", 0);
  document->set_root(root);
  Object merged{.name = left.name};
  merged.document = std::move(document);
  merged.node = root;
  return merged;
}

}  // namespace ckpt
