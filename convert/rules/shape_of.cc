// SPDX-License-Identifier: Apache-2.0
// Applies operations to shapes alone.
#include <fmt/ranges.h>

#include "ckpt/error.h"
#include "convert/rules/check.h"

namespace ckpt::families {
namespace {

class Shaper {
 public:
  Shaper(const Instance& instance, const Numbers& numbers)
      : instance_(instance), numbers_(numbers) {}

  Shape run(std::vector<Shape> shapes) {
    for (const Op& op : instance_.rule->ops) shapes = {apply(op, shapes)};
    if (shapes.size() != 1)
      throw bug_error({}, "{}: {} tensors are left", instance_.to,
                      shapes.size());
    check_cut(shapes[0]);
    return shapes[0];
  }

 private:
  template <class... Args>
  [[noreturn]] void fail(fmt::format_string<Args...> text,
                         Args&&... args) const {
    throw unfaithful_error({{}, instance_.to}, "{}",
                           fmt::format(text, std::forward<Args>(args)...));
  }

  uint64_t size(const Op& op, const char* param, const char* fallback) const {
    return numbers_.whole(op, param, fallback, instance_.index);
  }

  uint64_t product(uint64_t a, uint64_t b) const {
    const auto result = checked_mul(a, b);
    if (!result) fail("{} * {} is not a size", a, b);
    return *result;
  }

  Shape apply(const Op& op, const std::vector<Shape>& from) const {
    if (op.name == "const") return list(op, "shape");
    if (op.name == "cat") return cat(op, from);
    if (op.name == "stack") return stack(from);
    if (op.name == "qkv" || op.name == "qkv_gated") return qkv(op, from);
    if (op.name == "kv") return kv(op, from);
    if (op.name == "ungroup") return ungroup(op, from);
    if (from.size() != 1) fail("{} of {} tensors", op.name, from.size());
    Shape shape = from[0];
    if (op.name == "t" && shape.size() >= 2)
      std::swap(shape[shape.size() - 2], shape[shape.size() - 1]);
    if (op.name == "vocab") check_vocabulary(shape);
    if (op.name == "qkv_cat") check_qkv_rows(op, shape);
    if (op.name == "rope_interleave") check_pairs(op, shape);
    if (op.name == "deinterleave") check_rows(shape, 2, "pairs of rows");
    if (op.name == "roll") check_rolled(op, shape);
    if (op.name == "tile") check_tiled(op, shape);
    if (op.name == "index") return without_first(op, shape);
    if (op.name == "part") return part(op, shape);
    if (op.name == "reshape") return reshape(op, shape);
    if (op.name == "upright") return upright(op, shape);
    return shape;
  }

  Shape list(const Op& op, const char* param) const {
    return list(op.params.at(param), param);
  }

  Shape list(const Json& entries, const char* param) const {
    Shape shape;
    for (const Json& entry : entries)
      shape.push_back(numbers_.whole(
          entry.is_string() ? entry.get<std::string>() : entry.dump(),
          instance_.index, param));
    return shape;
  }

  void check_rows(const Shape& shape, uint64_t unit, const char* what) const {
    if (shape.empty() || unit == 0 || shape[0] % unit != 0)
      fail("{} is not made of {} ({} each)", to_string(shape), what, unit);
  }

  // Shapes must be equal except in `dim`, where sizes are summed.
  Shape joined(const std::vector<Shape>& from, uint64_t dim) const {
    if (from.empty()) fail("made of no tensors");
    Shape all = from[0];
    if (dim >= all.size()) fail("dimension {} of {}", dim, to_string(from[0]));
    all[dim] = 0;
    for (const Shape& part : from) {
      Shape same = part;
      if (same.size() == all.size()) same[dim] = all[dim];
      if (same != all)
        fail("{} next to {}", to_string(part), to_string(from[0]));
      const auto sum = checked_add(all[dim], part[dim]);
      if (!sum) fail("sizes that 64 bits do not hold");
      all[dim] = *sum;
    }
    return all;
  }

  Shape stack(std::vector<Shape> from) const {
    for (Shape& part : from) {
      Shape one{1};
      for (const uint64_t size : part) one.push_back(size);
      part = one;
    }
    return joined(from, 0);
  }

  Shape cat(const Op& op, const std::vector<Shape>& from) const {
    const uint64_t dim = size(op, "dim", "0");
    const Shape all = joined(from, dim);
    const bool given = op.params.contains("sizes");
    const Shape sizes =
        given ? list(op, "sizes") : Shape(from.size(), from[0][dim]);
    if (sizes.size() != from.size())
      fail("{} sizes for {} tensors", sizes.size(), from.size());
    for (size_t i = 0; i < from.size(); ++i)
      if (from[i][dim] != sizes[i])
        fail("part {} is {}, {} expected along dimension {}", i,
             to_string(from[i]), sizes[i], dim);
    return all;
  }

  Shape qkv(const Op& op, const std::vector<Shape>& from) const {
    const uint64_t heads = size(op, "heads", "$nh");
    const uint64_t groups = size(op, "groups", "$ng");
    const uint64_t head = size(op, "head_dim", "$hd");
    check_groups(heads, groups);
    for (size_t i = 0; i < from.size(); ++i) {
      uint64_t rows = product(i == 0 ? heads : groups, head);
      if (i == 0 && op.name == "qkv_gated") rows = product(rows, 2);
      if (from[i].empty() || from[i][0] != rows)
        fail("{} is {}, {} heads of {} make {} rows", "qkv"[i],
             to_string(from[i]), i == 0 ? heads : groups, head, rows);
    }
    Shape all = joined(from, 0);
    if (from.size() < 3)  // keys again, or zeros
      all[0] = product(checked_add(heads, 2 * groups).value_or(0), head);
    return all;
  }

  Shape kv(const Op& op, const std::vector<Shape>& from) const {
    const uint64_t groups = size(op, "groups", "$ng");
    const uint64_t head = size(op, "head_dim", "$hd");
    for (const Shape& part : from)
      if (part.empty() || part[0] != product(groups, head))
        fail("{} is not {} groups of {} rows", to_string(part), groups, head);
    return joined(from, 0);
  }

  Shape ungroup(const Op& op, const std::vector<Shape>& from) const {
    const uint64_t groups = size(op, "groups", "1");
    const Json& lists = op.params.at("sizes");
    for (size_t i = 0; i < from.size(); ++i) {
      uint64_t rows = 0;
      for (const uint64_t part : list(lists.at(i), "sizes")) {
        const auto all = checked_add(rows, part);
        if (!all) fail("sizes that 64 bits do not hold");
        rows = *all;
      }
      if (from[i].empty() || from[i][0] != product(rows, groups))
        fail("{} is not {} groups of {} rows", to_string(from[i]), groups,
             rows);
    }
    return joined(from, 0);
  }

  Shape part(const Op& op, Shape shape) const {
    const uint64_t dim = size(op, "dim", "0");
    const uint64_t groups = size(op, "groups", "1");
    const uint64_t at = size(op, "at", "0");
    const Shape sizes = list(op, "sizes");
    uint64_t each = 0;
    for (const uint64_t one : sizes) {
      const auto all = checked_add(each, one);
      if (!all) fail("sizes that 64 bits do not hold");
      each = *all;
    }
    if (dim >= shape.size() || shape[dim] != product(groups, each))
      fail("{} where dimension {} is {} times {}", to_string(shape), dim,
           groups, fmt::join(sizes, " + "));
    if (at >= sizes.size()) fail("part {} of {}", at, sizes.size());
    shape[dim] = product(groups, sizes[at]);
    return shape;
  }

  void check_groups(uint64_t heads, uint64_t groups) const {
    if (groups == 0 || heads % groups != 0)
      fail("{} heads in {} groups", heads, groups);
  }

  void check_qkv_rows(const Op& op, const Shape& shape) const {
    const uint64_t heads = size(op, "heads", "$nh");
    const uint64_t groups = size(op, "groups", "$ng");
    check_groups(heads, groups);
    const uint64_t rows =
        product(heads + 2 * groups, size(op, "head_dim", "$hd"));
    if (shape.empty() || shape[0] != rows)
      fail("{} where {} heads and 2 * {} groups make {} rows", to_string(shape),
           heads, groups, rows);
  }

  void check_pairs(const Op& op, const Shape& shape) const {
    const uint64_t heads = size(op, "heads", "$nh");
    check_rows(shape, product(heads, 2), "pairs of rows for each head");
    const auto head =
        numbers_.dialect().vars.contains("$hd") ? numbers_.eval("$hd") : Json();
    if (head.is_number_unsigned() || head.is_number_integer()) {
      const uint64_t rows =
          product(heads, numbers_.whole("$hd", {}, "head size"));
      if (shape[0] != rows)
        fail("{} where {} heads make {} rows", to_string(shape), heads, rows);
    }
  }

  void check_rolled(const Op& op, const Shape& shape) const {
    const uint64_t rows = size(op, "rows", "0");
    if (shape.empty() || rows == 0 || rows >= shape[0])
      fail("{} has no {} rows to go behind the others", to_string(shape), rows);
  }

  void check_tiled(const Op& op, const Shape& shape) const {
    const uint64_t dim = size(op, "dim", "0");
    const uint64_t from = size(op, "from", "0");
    const uint64_t unit =
        product(size(op, "groups", "1"), size(op, "size", "1"));
    if (dim >= shape.size() || unit == 0 || from >= shape[dim] ||
        (shape[dim] - from) % unit != 0)
      fail("{} where dimension {} has heads in groups of {} past {}",
           to_string(shape), dim, unit, from);
  }

  void check_vocabulary(const Shape& shape) const {
    const uint64_t rows = numbers_.whole("$V", {}, "vocabulary");
    if (shape.empty() || shape[0] != rows)
      fail("{}{}{}", to_string(shape), kVocabularyHas, rows);
  }

  Shape without_first(const Op& op, const Shape& shape) const {
    const auto index = op.params.at("index").get<std::string>();
    const uint64_t count = numbers_.count(index);
    if (shape.empty() || shape[0] != count)
      fail("{}, {} of index {} expected", to_string(shape), count, index);
    return Shape(std::span(shape.begin() + 1, shape.end()));
  }

  Shape reshape(const Op& op, const Shape& shape) const {
    const Shape from = list(op, "from");
    const Shape to = list(op, "to");
    if (shape != from)
      fail("{} where {} is expected", to_string(shape), to_string(from));
    if (element_count(from) != element_count(to))
      fail("{} does not become {}", to_string(from), to_string(to));
    return to;
  }

  Shape upright(const Op& op, const Shape& shape) const {
    const Shape wanted{size(op, "rows", "0"), size(op, "columns", "0")};
    if (shape != wanted && shape != Shape{wanted[1], wanted[0]})
      fail("{} where {} or its transpose is expected", to_string(shape),
           to_string(wanted));
    return wanted;
  }

  void check_cut(const Shape& shape) const {
    const auto& cut = instance_.rule->tp;
    if (!cut) return;
    const uint64_t dim = numbers_.whole(cut->dim, instance_.index, "dim");
    const uint64_t extent = dim < shape.size() ? shape[dim] : 0;
    std::vector<uint64_t> sizes;
    std::optional<uint64_t> all = 0;
    for (const std::string& part : cut->sizes) {
      sizes.push_back(numbers_.whole(part, instance_.index, "parts"));
      if (all) all = checked_add(*all, sizes.back());
    }
    if (!sizes.empty() && all != extent)
      fail("{} is cut along dimension {} in parts of {}", to_string(shape), dim,
           fmt::join(sizes, ", "));
    if (dim >= shape.size() || (sizes.empty() && extent % cut->parts != 0))
      fail("{} is cut along dimension {} in {} parts", to_string(shape), dim,
           cut->parts);
  }

  const Instance& instance_;
  const Numbers& numbers_;
};

}  // namespace

Shape shape_of(const Instance& instance, const Numbers& numbers,
               const std::vector<Shape>& sources) {
  return Shaper(instance, numbers).run(sources);
}

}  // namespace ckpt::families
