// SPDX-License-Identifier: Apache-2.0
#include "api/check/compare.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <unordered_map>
#include <unordered_set>

#include "api/check/arrangement.h"
#include "api/check/beside.h"
#include "api/check/explain.h"
#include "api/check/not_compared.h"
#include "api/check/read_all.h"
#include "api/check/rounded.h"
#include "ckpt/ckpt.h"
#include "ckpt/error.h"
#include "lib/heap.h"
#include "lib/text/other_json.h"
#include "lib/text/words.h"
#include "reshard/numbers/numeric.h"
#include "reshard/numbers/values.h"
#include "reshard/plan/plan_size.h"
#include "reshard/prove/prove.h"
#include "reshard/run/read.h"

namespace ckpt::library {
namespace {

using Index = std::unordered_map<std::string_view, size_t>;

Index index_of(const Catalog& catalog) {
  Index index;
  for (size_t i = 0; i < catalog.tensors.size(); ++i)
    index.emplace(catalog.tensors[i].name, i);
  return index;
}

std::string about(const Tensor& tensor) {
  return fmt::format("{} {}", name(tensor.dtype), to_string(tensor.shape));
}

// How two tensors differ before their values are compared; nothing if they
// don't. Only diff distinguishes a quantized type from its integers: the bytes
// are the same.
std::optional<Difference> header_difference(const Tensor& a, const Tensor& b,
                                            const CompareOptions& options) {
  const bool same =
      a.dtype == b.dtype || (!options.describe && same_bytes(a.dtype, b.dtype));
  if (same && a.dtype != b.dtype &&
      byte_size(a.dtype, a.shape) == byte_size(b.dtype, b.shape))
    return std::nullopt;
  if (a.shape != b.shape)
    return Difference{"shape", a.name,
                      fmt::format("A has {}, B has {}", about(a), about(b))};
  if (!same && !options.numeric)
    return Difference{
        "dtype", a.name,
        fmt::format("A has {}, B has {}", name(a.dtype), name(b.dtype))};
  return std::nullopt;
}

// True if only the number of rows differs: how far a vocabulary is padded
// depends on how many ranks share it.
bool rows_differ(const Tensor& a, const Tensor& b) {
  return a.dtype == b.dtype && element_size(a.dtype) != 0 && !a.shape.empty() &&
         a.shape.size() == b.shape.size() && a.shape[0] != b.shape[0] &&
         std::equal(a.shape.begin() + 1, a.shape.end(), b.shape.begin() + 1);
}

uint64_t tile_bytes(const Engine& engine) {
  return std::min<uint64_t>(engine.max_mem / 8, 64 << 20);
}

// Works tile by tile, so that no tensor is ever in memory whole.
reshard::Comparison numbers(const Catalog& a, const Tensor& x, const Catalog& b,
                            const Tensor& y, const CompareOptions& options,
                            const Engine& engine) {
  const reshard::RunOptions run = plain_read(engine);
  reshard::Comparison sum;
  for (const Box& box : reshard::tiles(x, tile_bytes(engine))) {
    const auto left = reshard::read_box(a, x, box, run);
    const auto right = reshard::read_box(b, y, box, run);
    reshard::Comparison part;
    reshard::add_comparison(x.dtype, left.data(), y.dtype, right.data(),
                            volume(box), options.rtol, options.atol, part);
    sum += part;
  }
  return sum;
}

// True if all rows of x are the first rows of y.
bool begins_with(const Catalog& a, const Tensor& x, const Catalog& b,
                 const Tensor& y, const Engine& engine) {
  const reshard::RunOptions run = plain_read(engine);
  return std::ranges::all_of(reshard::tiles(x, tile_bytes(engine)),
                             [&](const Box& box) {
                               return reshard::read_box(a, x, box, run) ==
                                      reshard::read_box(b, y, box, run);
                             });
}

// For two that differ in their number of rows. A digest ignores zeros at the
// end.
Difference row_difference(const Catalog& a, const Tensor& x, const Catalog& b,
                          const Tensor& y, bool same_digest,
                          const Engine& engine) {
  const bool b_has_more = x.shape[0] < y.shape[0];
  const uint64_t common = std::min(x.shape[0], y.shape[0]);
  const uint64_t more = std::max(x.shape[0], y.shape[0]) - common;
  const std::string shapes =
      fmt::format("A has {}, B has {}", about(x), about(y));
  if (same_digest)
    return {"padding", x.name,
            fmt::format("{}: the first {} rows are equal, the other {} are "
                        "zero (padding)",
                        shapes, common, more)};
  const bool same = b_has_more ? begins_with(a, x, b, y, engine)
                               : begins_with(b, y, a, x, engine);
  return {"shape", x.name,
          fmt::format(
              "{}: the first {} rows {}", shapes, common,
              same ? "are equal, the others are not zero" : "differ as well")};
}

Distance distance_of(const reshard::Comparison& apart) {
  return {apart.count,   apart.mismatches, apart.max_abs,   apart.max_rel,
          apart.squares, apart.squares_a,  apart.squares_b, apart.products};
}

bool has_numbers(const Tensor& tensor) {
  return reshard::has_values(tensor.dtype);
}

// What else is known about two tensors whose elements differ.
std::string explained(const Catalog& a, const Tensor& x, const Catalog& b,
                      const Tensor& y, const CompareOptions& options,
                      const Engine& engine) {
  if (const auto why = only_padding(a, x, b, y, options.vocabulary, engine))
    return *why;
  if (const auto why = rounding(a, x, b, y, engine)) return *why;
  return row_order(a, x, b, y, engine).value_or("");
}

// `swapped`: B has another tensor's elements here, and A's elements there.
std::optional<Difference> value_difference(const Catalog& a, const Tensor& x,
                                           const Catalog& b, const Tensor& y,
                                           const std::string& swapped,
                                           const CompareOptions& options,
                                           const Engine& engine) {
  Difference difference{"values", x.name, "the values differ"};
  const bool numbered = has_numbers(x) && has_numbers(y);
  std::optional<reshard::Comparison> apart;
  // A tolerance was requested: what is within it is not a difference at all.
  if (options.numeric && numbered) {
    apart = numbers(a, x, b, y, options, engine);
    if (apart->mismatches == 0) {
      if (options.within && apart->max_abs != 0) ++*options.within;
      return std::nullopt;
    }
  }
  const auto measure = [&] {
    if (!apart && options.describe && numbered)
      apart = numbers(a, x, b, y, options, engine);
    if (apart) difference.distance = distance_of(*apart);
  };
  if (!swapped.empty()) return Difference{"arrangement", x.name, swapped};
  if (options.arrangements && numbered) {
    if (const auto why = arrangement(a, x, b, y, engine))
      return Difference{"arrangement", x.name, *why};
    difference.why = explained(a, x, b, y, options, engine);
  }
  measure();
  if (!difference.why.empty())
    difference.message = difference.why;
  else if (difference.distance)
    difference.message = distance_text(*difference.distance);
  return difference;
}

// What a container says about itself (that its tensors are PyTorch's, how many
// there are) says nothing about the model, and other containers have no place
// for it.
bool is_container_habit(const ObjectDifference& object) {
  const bool ours =
      object.name == "__metadata__" || object.name == "__index_metadata__";
  if (!ours || (!object.left.empty() && !object.right.empty())) return false;
  const auto said = text::parse_or_discard(object.left + object.right);
  if (!said.is_object()) return false;
  for (const auto& [key, value] : said.items())
    if (key != "total_size" && key != "total_parameters" &&
        !(key == "format" && value == "pt"))
      return false;
  return true;
}

// `only_alike`: of values that one side lacks, or has in another form as other
// writers make them, nothing is said.
void compare_objects(const Catalog& a, const Catalog& b, bool only_alike,
                     std::vector<Difference>& differences) {
  const auto cut = [](const std::string& text) {
    return text.size() <= 60 ? text : text.substr(0, 57) + "...";
  };
  for (const ObjectDifference& object : diff_objects(a, b)) {
    if (is_container_habit(object)) continue;
    if (only_alike && object.why.empty()) continue;
    std::string message;
    if (!object.why.empty())
      message = object.why;
    else if (object.right.empty())
      message = "only in A: " + cut(object.left);
    else if (object.left.empty())
      message = "only in B: " + cut(object.right);
    else
      message = fmt::format("A has {}, B has {}", cut(object.left),
                            cut(object.right));
    differences.push_back({"object", object.name, std::move(message)});
  }
}

// Parameters that models share: a checkpoint has either one of them or all.
bool may_be_shared(std::string_view name) {
  constexpr std::string_view kEndings =
      "lm_head.weight embed_out.weight output_layer.weight output.weight "
      "final_proj.weight lm_head.w_out.weight embed_tokens.weight "
      "word_embeddings.weight wte.weight embed_in.weight "
      "tok_embeddings.weight embed.weight embeddings.weight "
      "shared_head.head.weight";
  return text::ends_with_any(name, kEndings);
}

bool shares_bytes(const Tensor& x, const Tensor& y) {
  return x.tie != 0 && x.tie == y.tie;
}

// A tensor that only one of two checkpoints has is not a difference if it
// equals another tensor of that checkpoint, bit for bit, and the other
// checkpoint has that one.
std::optional<Difference> tied(const Catalog& catalog, const Tensor& lonely,
                               const Index& other, const Engine& engine) {
  for (const Tensor& mate : catalog.tensors) {
    if (!other.contains(mate.name) || mate.dtype != lonely.dtype ||
        mate.shape != lonely.shape || element_size(mate.dtype) == 0 ||
        mate.kind != lonely.kind)
      continue;
    const bool shared =
        shares_bytes(mate, lonely) ||
        (may_be_shared(mate.name) && may_be_shared(lonely.name));
    if (shared && begins_with(catalog, lonely, catalog, mate, engine))
      return Difference{
          "tied", lonely.name,
          "is " + mate.name + " once more, bit for bit; the other has one"};
  }
  return std::nullopt;
}

// Values of an object that are no larger are compared with tensors.
constexpr uint64_t kMostInside = 1 << 20;

// True if the other checkpoint has the tensor's bytes inside an object: a run
// keeps its random states in a file of values, a single file lists them among
// its tensors.
bool in_object(const Catalog& catalog, const Tensor& lonely,
               const Catalog& other, const Engine& engine) {
  if (!other.skeleton || byte_size(lonely) > kMostInside) return false;
  const bool below =
      std::ranges::any_of(other.objects, [&](const Object& object) {
        return object.document == other.skeleton->document &&
               lonely.name.starts_with(object.name + ".");
      });
  if (!below) return false;
  const std::vector<std::byte> bytes = reshard::read_box(
      catalog, lonely, Box::whole(lonely.shape), plain_read(engine));
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()),
                              bytes.size());
  return std::ranges::any_of(
      other.skeleton->storages, [&](const auto& storage) {
        const Content& content = storage.second;
        return !content.damage() && content.bytes() == text;
      });
}

// Proves that what was left out to bring both to the same names is what it
// should be: constants and second copies.
void prove_left_out(const Catalog& catalog, const Engine& engine,
                    std::vector<Difference>& differences) {
  try {
    reshard::prove_redundant(catalog, plain_read(engine));
  } catch (const Error& error) {
    if (error.code() != ExitCode::kUnfaithful) throw;
    differences.push_back({"values", error.where().tensor, error.problem()});
  }
}

// Tensors of a layer that changed places: A has here what B has there, and vice
// versa. Decided by digests; a tensor equal to several others is not reported.
std::map<size_t, size_t> swapped(const Reading& a, const Reading& b,
                                 const Catalog& catalog) {
  using Sum = std::pair<uint64_t, uint64_t>;
  const auto sum = [](const Digest& digest) {
    return Sum(digest.d0, digest.d1);
  };
  std::map<Sum, std::vector<size_t>> in_b;
  for (size_t i = 0; i < b.digests.size(); ++i)
    if (a.digests[i] != b.digests[i]) in_b[sum(b.digests[i])].push_back(i);
  std::map<size_t, size_t> found;
  for (size_t i = 0; i < a.digests.size(); ++i) {
    const auto at = in_b.find(sum(a.digests[i]));
    if (a.digests[i] == b.digests[i] || at == in_b.end()) continue;
    const size_t j = at->second[0];
    if (at->second.size() == 1 && a.digests[j] == b.digests[i] &&
        catalog.tensors[i].shape == catalog.tensors[j].shape)
      found[i] = j;
  }
  return found;
}

// "swapped with up_proj": the part of the other's name that differs.
std::string swap_text(std::string_view here, std::string_view there) {
  const auto parts = [](std::string_view name) {
    std::vector<std::string> list{""};
    for (const char c : name)
      c == '.' ? (void)list.emplace_back() : (void)(list.back() += c);
    return list;
  };
  const auto x = parts(here), y = parts(there);
  std::vector<size_t> unlike;
  if (x.size() == y.size())
    for (size_t i = 0; i < x.size(); ++i)
      if (x[i] != y[i]) unlike.push_back(i);
  if (unlike.size() != 1) return "swapped with " + std::string(there);
  const std::string &one = x[unlike[0]], &other = y[unlike[0]];
  const auto is = [](const std::string& part, std::string_view a,
                     std::string_view b, std::string_view c) {
    return part == a || part == b || part == c;
  };
  const bool gated = (is(one, "gate_proj", "w1", "gate") &&
                      is(other, "up_proj", "w3", "inner_proj")) ||
                     (is(other, "gate_proj", "w1", "gate") &&
                      is(one, "up_proj", "w3", "inner_proj"));
  return (gated ? "gate and up swapped: has " : "swapped: has ") + other +
         "'s values";
}

// The dtypes and shapes of both sides, for reports.
void add_sides(const Catalog& a, const Catalog& b,
               std::vector<Difference>& differences) {
  if (differences.empty()) return;
  const Index in_a = index_of(a), in_b = index_of(b);
  const auto side = [](const Catalog& catalog, const Index& index,
                       const std::string& name) -> std::optional<Side> {
    const auto found = index.find(name);
    if (found == index.end()) return std::nullopt;
    const Tensor& tensor = catalog.tensors[found->second];
    return Side{tensor.dtype, tensor.shape};
  };
  for (Difference& difference : differences) {
    if (!difference.a) difference.a = side(a, in_a, difference.tensor);
    if (!difference.b) difference.b = side(b, in_b, difference.tensor);
  }
}

// Keeps the tensors at these indexes, in this order.
void keep(Catalog& catalog, const std::vector<size_t>& indexes) {
  std::vector<Tensor> kept;
  kept.reserve(indexes.size());
  for (const size_t i : indexes) kept.push_back(std::move(catalog.tensors[i]));
  catalog.tensors = std::move(kept);
}

// Reports a tensor that only `catalog` has; `names` are those of the other.
void add_unmatched(const char* kind, const Catalog& catalog,
                   const Tensor& tensor, const Catalog& other,
                   const Index& names, const Engine& engine,
                   std::vector<Difference>& differences) {
  if (in_object(catalog, tensor, other, engine)) return;
  if (auto twice = tied(catalog, tensor, names, engine))
    differences.push_back(std::move(*twice));
  else
    differences.push_back({kind, tensor.name, about(tensor)});
}

// Adds what the values say about it: the same in another arrangement, rounded,
// and how far a cast took them.
void explain(const Catalog& a, const Tensor& x, const Catalog& b,
             const Tensor& y, const CompareOptions& options,
             const Engine& engine, Difference& difference) {
  std::optional<std::string> why;
  if (options.arrangements && difference.kind == "shape")
    why = arrangement(a, x, b, y, engine);
  if ((options.arrangements || options.casts) && difference.kind == "dtype")
    why = rounding(a, x, b, y, engine);
  if (options.describe && difference.kind == "dtype" && has_numbers(x) &&
      has_numbers(y))
    difference.distance = distance_of(numbers(a, x, b, y, options, engine));
  if (!why) return;
  difference.message += ": " + *why;
  difference.why = std::move(*why);
}

// What matters most first; what has no distance is not about values.
void sort_by_distance(std::vector<Difference>& differences) {
  const auto far = [](const Difference& difference) {
    return difference.distance ? relative_l2(*difference.distance) : -1.0;
  };
  std::ranges::stable_sort(
      differences, [&](const auto& one, const auto& other) {
        const double left = far(one), right = far(other);
        return left < 0 ? right >= 0 : left > right && right >= 0;
      });
}

// Compares names, shapes and dtypes. Leaves in a and b, side by side, the
// tensors whose values must be compared.
void compare_headers(Catalog& a, Catalog& b, const CompareOptions& options,
                     const Engine& engine, Comparison& result) {
  const Index in_b = index_of(b), in_a = index_of(a);
  std::vector<size_t> left, right;
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    const Tensor& x = a.tensors[i];
    const auto other = in_b.find(x.name);
    if (other == in_b.end()) {
      add_unmatched("only_in_a", a, x, b, in_b, engine, result.differences);
      continue;
    }
    ++result.tensors;
    const Tensor& y = b.tensors[other->second];
    if (options.rounded && !options.numeric)
      if (const std::string type = blocks_of_one(a, x, b, y); !type.empty()) {
        if (auto far =
                rounded_difference(a, x, b, y, type, engine, *options.rounded))
          result.differences.push_back(std::move(*far));
        result.bytes += byte_size(x) + byte_size(y);
        continue;
      }
    auto difference = header_difference(x, y, options);
    if (!difference || rows_differ(x, y)) {
      left.push_back(i);
      right.push_back(other->second);
      continue;
    }
    explain(a, x, b, y, options, engine, *difference);
    if (difference->kind == "dtype" && is_own_dtype(a, b, difference->message))
      continue;
    result.differences.push_back(std::move(*difference));
  }
  for (const Tensor& y : b.tensors)
    if (!in_a.contains(y.name))
      add_unmatched("only_in_b", b, y, a, in_a, engine, result.differences);
  add_sides(a, b, result.differences);
  keep(a, left);
  keep(b, right);
}

// Compares the digests of tensors side by side; where they differ, the values.
void compare_values(const Catalog& a, const Reading& from_a, const Catalog& b,
                    const Reading& from_b, const CompareOptions& options,
                    const Engine& engine,
                    std::vector<Difference>& differences) {
  std::map<size_t, size_t> places;
  if (options.arrangements) places = swapped(from_a, from_b, a);
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    const Tensor& x = a.tensors[i];
    const Tensor& y = b.tensors[i];
    const bool same = from_a.digests[i] == from_b.digests[i];
    if (rows_differ(x, y)) {
      differences.push_back(row_difference(a, x, b, y, same, engine));
      continue;
    }
    if (same_bytes(x.dtype, y.dtype) && same) continue;
    const auto other = places.find(i);
    const std::string swapped =
        other == places.end()
            ? ""
            : swap_text(x.name, a.tensors[other->second].name);
    if (auto found = value_difference(a, x, b, y, swapped, options, engine))
      differences.push_back(std::move(*found));
  }
}

}  // namespace

std::string distance_text(const Distance& distance) {
  return fmt::format(
      "{} of {} elements differ, relative L2 {:.3g}, at most by {:g}",
      distance.differing, distance.elements, relative_l2(distance),
      distance.max_abs);
}

Comparison compare(Catalog a, Catalog b, const CompareOptions& options,
                   const Engine& engine) {
  Comparison result;
  locate(a);
  locate(b);
  for (const Catalog* catalog : {&a, &b})
    prove_left_out(*catalog, engine, result.differences);
  const auto not_compared =
      options.casts ? without_place(a, b) : std::unordered_set<std::string>();
  compare_headers(a, b, options, engine, result);
  const Reading from_a =
      read_all(a, engine, {.replicas = true, .beside = reshard::held_bytes(b)});
  const Reading from_b =
      read_all(b, engine, {.replicas = true, .beside = reshard::held_bytes(a)});
  const heap::Unbounded tiles;  // of a part of --max-mem
  for (const Reading* reading : {&from_a, &from_b})
    for (const Problem& problem : reading->problems)
      result.differences.push_back({.kind = "replica",
                                    .tensor = problem.tensor,
                                    .message = problem.message,
                                    .file = problem.file});
  result.bytes += from_a.bytes + from_b.bytes;
  compare_values(a, from_a, b, from_b, options, engine, result.differences);
  add_sides(a, b, result.differences);
  if (options.objects || options.alike_objects) {
    compare_objects(a, b, !options.objects, result.differences);
    compare_files(a, b, result.differences);
  }
  mark_not_compared(not_compared, result.differences);
  if (options.describe) sort_by_distance(result.differences);
  return result;
}

}  // namespace ckpt::library
