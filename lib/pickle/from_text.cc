// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "lib/pickle/json.h"
#include "lib/text/format.h"
#include "lib/text/json.h"

namespace ckpt::pickle {

using Kind = text::Scanner::Kind;

namespace {

// Integers have no largest one in JSON, and none in Python.
Id number(Document& document, text::Scanner& scan) {
  const std::string_view from_here = scan.rest();
  const nlohmann::json value = text::number_of(scan);
  const std::string_view spelled =
      from_here.substr(0, from_here.size() - scan.rest().size());
  const bool whole = spelled.find_first_not_of("-0123456789") == spelled.npos;
  return whole && value.is_number_float() ? document.add_big_int(spelled)
                                          : from_json(document, value);
}

}  // namespace

JsonText::JsonText(Document& document, text::Scanner& scan,
                   const std::string& path, uint64_t size)
    : document_(document),
      scan_(scan),
      path_(path),
      size_(size),
      before_(document.memory()) {}

Id JsonText::value() {
  const uint64_t begin = scan_.position();
  try {
    return next();
  } catch (const tree_memory::Full&) {
    tree_memory::fail(path_, document_.memory() - before_,
                      scan_.position() - begin, size_);
  }
}

// Recurses no deeper than the scanner lets it: kMaxJsonDepth.
Id JsonText::next() {
  const Kind kind = scan_.peek();
  switch (kind) {
    case Kind::kObject:
      return object();
    case Kind::kArray:
      return list();
    case Kind::kString:
      return document_.add_string(scan_.string());
    case Kind::kNumber:
      return number(document_, scan_);
    default:
      break;
  }
  scan_.literal();
  if (kind == Kind::kNull) return document_.add_none();
  return document_.add_bool(kind == Kind::kTrue);
}

Id JsonText::list() {
  std::vector<Id> items;
  scan_.enter_array();
  while (scan_.next_item()) items.push_back(next());
  const Id id = document_.add_container(Type::kList, items);
  check_size();
  return id;
}

Id JsonText::object() {
  std::vector<Id> pairs;
  scan_.enter_object();
  while (const auto key = scan_.next_key()) {
    pairs.push_back(document_.add_string(*key));
    pairs.push_back(next());
  }
  return dict(std::move(pairs));
}

Id JsonText::dict(std::vector<Id> pairs) {
  std::vector<size_t> order(pairs.size() / 2);
  for (size_t i = 0; i < order.size(); ++i) order[i] = 2 * i;
  const auto key = [&](size_t at) { return document_.text(pairs[at]); };
  std::ranges::stable_sort(order, {}, key);
  std::vector<Id> sorted;
  sorted.reserve(pairs.size());
  for (size_t i = 0; i < order.size(); ++i) {
    if (i > 0 && key(order[i - 1]) == key(order[i]))
      scan_.fail(fmt::format("key \"{}\" given twice",
                             text::printable(key(order[i]))));
    sorted.push_back(pairs[order[i]]);
    sorted.push_back(pairs[order[i] + 1]);
  }
  const Id id = document_.add_container(Type::kDict, sorted);
  check_size();
  return id;
}

// Too many values for their bytes: no program writes that.
void JsonText::check_size() const {
  const uint64_t taken = document_.memory() - before_;
  if (taken > std::max(tree_memory::kFree, tree_memory::kMostPerByte * size_))
    tree_memory::check(path_, taken, size_);
}

Id read_json(Document& document, std::string_view text,
             const std::string& path) {
  text::Scanner scan(text, path, {.offset = 0, .python_numbers = true});
  const Id id = JsonText(document, scan, path, text.size()).value();
  scan.finish();
  return id;
}

}  // namespace ckpt::pickle
