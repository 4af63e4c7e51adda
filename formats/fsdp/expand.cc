// SPDX-License-Identifier: Apache-2.0
#include "formats/fsdp/expand.h"

#include <algorithm>
#include <set>
#include <unordered_map>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "lib/io/file.h"
#include "lib/text/format.h"
#include "lib/text/suggest.h"
#include "models/wrapper.h"

namespace ckpt::fsdp {
namespace {

using text::printable;
using Severity = Problem::Severity;

constexpr std::string_view kModel = "model.";

// True for one dimension, with pieces that are runs of it.
bool is_vector(const Tensor& tensor) {
  if (tensor.shape.size() != 1 || element_size(tensor.dtype) == 0) return false;
  return std::ranges::all_of(tensor.pieces, [](const Piece& piece) {
    return !piece.flat && piece.box.shape.size() == 1;
  });
}

uint64_t count_ranks(const Tensor& tensor) {
  std::set<uint64_t> offsets;
  for (const Piece& piece : tensor.pieces) offsets.insert(piece.box.offset[0]);
  return std::max<uint64_t>(1, offsets.size());
}

class Expander {
 public:
  Expander(Catalog& catalog, const FlatParameters& all, const Names& padded)
      : catalog_(catalog), all_(all), padded_(padded) {
    for (const Tensor& tensor : catalog.tensors)
      last_tie_ = std::max(last_tie_, tensor.tie);
  }

  std::vector<Expansion> run() {
    find_flats();
    locate_flats();
    std::vector<Tensor> before = std::move(catalog_.tensors);
    catalog_.tensors.clear();
    for (size_t i = 0; i < before.size(); ++i)
      if (belongs_[i] != kNone && before[i].kind != Kind::optim)
        known_[belongs_[i]] = {before[i].shape[0],
                               begins_of(before[i], belongs_[i])};
    for (size_t i = 0; i < before.size(); ++i) {
      if (belongs_[i] == kNone)
        catalog_.tensors.push_back(std::move(before[i]));
      else
        replace(before[i], belongs_[i]);
    }
    check_names();
    return std::move(expansions_);
  }

 private:
  static constexpr size_t kNone = SIZE_MAX;

  // Finds which flat parameter each tensor belongs to.
  void find_flats() {
    std::unordered_map<std::string, size_t> keys;
    for (size_t k = 0; k < all_.all.size(); ++k) {
      keys.emplace(all_.all[k].key, k);
      keys.emplace(std::string(kModel) + all_.all[k].key, k);
    }
    belongs_.assign(catalog_.tensors.size(), kNone);
    std::vector<bool> used(all_.all.size());
    for (size_t i = 0; i < catalog_.tensors.size(); ++i) {
      const Tensor& tensor = catalog_.tensors[i];
      const bool state = tensor.kind == Kind::optim;
      const size_t k = state ? of_state(tensor, keys) : of(tensor.name, keys);
      if (k == kNone || (!state && !is_vector(tensor))) continue;
      belongs_[i] = k;
      used[k] = true;
    }
    for (size_t k = 0; k < used.size(); ++k)
      if (!used[k]) throw_unknown(all_.all[k].key);
  }

  static size_t of(const std::string& name,
                   const std::unordered_map<std::string, size_t>& keys) {
    const auto found = keys.find(name);
    return found == keys.end() ? kNone : found->second;
  }

  // torch numbers parameters in the order of module.parameters().
  size_t of_state(const Tensor& tensor,
                  const std::unordered_map<std::string, size_t>& keys) const {
    if (tensor.param.empty() || tensor.state.empty()) return kNone;
    if (const size_t k = of(tensor.param, keys); k != kNone) return k;
    const bool number =
        tensor.param.size() < 8 &&
        tensor.param.find_first_not_of("0123456789") == std::string::npos;
    if (!number) return kNone;
    const size_t k = std::stoul(tensor.param);
    return k < all_.all.size() ? k : kNone;
  }

  [[noreturn]] void throw_unknown(const std::string& key) const {
    std::vector<std::string> names;
    for (const Tensor& tensor : catalog_.tensors)
      if (tensor.kind != Kind::optim && is_vector(tensor))
        names.push_back(tensor.name);
    const std::string near = text::nearest(key, names);
    const Where where{all_.source, printable(key)};
    const char* text =
        "the checkpoint has no tensor of this name in one "
        "dimension";
    throw(all_.from_user ? usage_error(where, "{}", text)
                         : input_error(where, "{}", text))
        .with_hint(near.empty() ? "ckpt inspect lists the names"
                                : "did you mean " + near + "?");
  }

  // A part of an archive has no place until its payload is located.
  void locate_flats() {
    const auto again = catalog_.archive_opener;
    if (!again) return;
    std::vector<Tensor> tensors = std::move(catalog_.tensors);
    catalog_.tensors.clear();
    for (size_t i = 0; i < tensors.size(); ++i)
      if (belongs_[i] != kNone) catalog_.tensors.push_back(tensors[i]);
    ckpt::locate(catalog_);
    size_t next = 0;
    for (size_t i = 0; i < tensors.size(); ++i)
      if (belongs_[i] != kNone)
        tensors[i] = std::move(catalog_.tensors[next++]);
    catalog_.tensors = std::move(tensors);
    catalog_.archive_opener = again;
  }

  // A state's name without ".exp_avg"; the whole name of others.
  static std::string_view stem(const Tensor& tensor) {
    std::string_view name = tensor.name;
    const size_t tail = tensor.state.size() + 1;
    if (tensor.kind == Kind::optim && name.size() > tail)
      name.remove_suffix(tail);
    return name;
  }

  void replace(const Tensor& tensor, size_t which) {
    const FlatParameter& flat = all_.all[which];
    const bool state = tensor.kind == Kind::optim;
    const std::string_view before = stem(tensor);
    // "state.0": the number stands for the whole key.
    const bool numbered = state && !before.ends_with(flat.leaf);
    const std::string_view leaf =
        numbered ? std::string_view(tensor.param) : flat.leaf;
    Expansion expansion{
        .name = tensor.name, .leaf = std::string(leaf), .into = {}};
    const bool repeated = state && volume(Box::whole(tensor.shape)) <= 1;
    const auto at = repeated ? std::vector<uint64_t>() : offsets(tensor, which);
    const uint32_t tie = repeated ? ++last_tie_ : 0;
    for (size_t p = 0; p < flat.parameters.size(); ++p) {
      const Parameter& parameter = flat.parameters[p];
      const std::string inner =
          numbered ? with_parameter(flat.key, flat.leaf, parameter.name)
                   : parameter.name;
      Tensor part = repeated ? tensor : cut(tensor, parameter.shape, at[p]);
      part.name = with_parameter(before, leaf, inner);
      if (state) {
        part.name += "." + tensor.state;
        part.param = numbered
                         ? inner
                         : with_parameter(tensor.param, leaf, parameter.name);
      }
      if (repeated) part.tie = tie;
      expansion.into.push_back({part.name, inner});
      catalog_.tensors.push_back(std::move(part));
    }
    expansions_.push_back(std::move(expansion));
    if (!repeated && padded_.contains(tensor.name))
      expect_zeros(
          tensor,
          at.back() + element_count(flat.parameters.back().shape).value_or(0));
  }

  // Ranks pad with zeros. Parameters missing at the end of the list would not
  // be zeros.
  void expect_zeros(const Tensor& tensor, uint64_t begin) {
    const uint64_t rest = tensor.shape[0] - begin;
    if (rest == 0) return;
    catalog_.redundant.push_back({.tensor = cut(tensor, {rest}, begin),
                                  .value = 0.0,
                                  .same_as = {},
                                  .why = "it pads a flat parameter"});
    catalog_.redundant.back().tensor.tie = 0;
  }

  // Where the parameters begin: as in the model's own flat tensor, if that is
  // here and has the same length except for padding; the length alone may fit
  // two alignments.
  std::vector<uint64_t> offsets(const Tensor& tensor, size_t flat) const {
    if (!is_vector(tensor))
      throw input_error({all_.source, printable(tensor.name)},
                        "state of a flat parameter in {} dimensions",
                        tensor.shape.size());
    const auto known = known_.find(flat);
    if (known != known_.end()) {
      const auto& [length, begins] = known->second;
      const uint64_t more = tensor.shape[0] - std::min(length, tensor.shape[0]);
      const bool same =
          tensor.shape[0] == length || (padded_.contains(tensor.name) &&
                                        more > 0 && more < count_ranks(tensor));
      if (same) return begins;
    }
    return begins_of(tensor, flat);
  }

  std::vector<uint64_t> begins_of(const Tensor& tensor, size_t flat) const {
    return begins(all_, all_.all[flat],
                  {.name = tensor.name,
                   .length = tensor.shape[0],
                   .itemsize = element_size(tensor.dtype),
                   .ranks = count_ranks(tensor),
                   .padded = padded_.contains(tensor.name)});
  }

  Tensor cut(const Tensor& tensor, const Shape& shape, uint64_t begin) const {
    const uint64_t item = element_size(tensor.dtype);
    const uint64_t end = begin + element_count(shape).value_or(0);
    Tensor part = tensor;
    part.shape = shape;
    part.tp = {};
    part.pieces.clear();
    for (const Piece& piece : tensor.pieces) {
      const uint64_t first = piece.box.offset[0];
      const uint64_t from = std::max(begin, first);
      const uint64_t to = std::min(end, first + piece.box.shape[0]);
      if (from >= to) continue;
      const Dims& strides = piece.extent.strides;
      if (!strides.empty() && strides[0] != item && piece.box.shape[0] > 1)
        throw input_error({all_.source, printable(tensor.name)},
                          "a flat parameter with a stride of {} bytes",
                          strides[0]);
      Piece mine{.box = Box::whole(shape),
                 .flat = FlatRange{from - begin, to - begin},
                 .extent = piece.extent,
                 .transform = piece.transform};
      mine.extent.offset += (from - first) * item;
      mine.extent.strides = {};
      part.pieces.push_back(std::move(mine));
    }
    return part;
  }

  void check_names() const {
    std::unordered_set<std::string_view> names;
    for (const Tensor& tensor : catalog_.tensors) {
      if (names.insert(tensor.name).second) continue;
      throw(all_.from_user ? usage_error({all_.source, printable(tensor.name)},
                                         "there are two tensors of this name")
                           : input_error({all_.source, printable(tensor.name)},
                                         "there are two tensors of this name"));
    }
  }

  Catalog& catalog_;
  const FlatParameters& all_;
  const Names& padded_;
  uint32_t last_tie_ = 0;
  std::vector<size_t> belongs_;  // by tensor: its flat parameter
  // By flat parameter: the length of the model's tensor, and where its
  // parameters begin.
  std::unordered_map<size_t, std::pair<uint64_t, std::vector<uint64_t>>> known_;
  std::vector<Expansion> expansions_;
};

void note_flat(Catalog& catalog) {
  for (const Tensor& tensor : catalog.tensors) {
    const std::string_view name = tensor.name;
    const size_t dot = name.rfind('.');
    if (tensor.shape.size() != 1 || tensor.kind == Kind::optim ||
        !is_flat_leaf(dot == name.npos ? name : name.substr(dot + 1)))
      continue;
    catalog.problems.push_back(remark(
        "flat_parameter", {{}, tensor.name},
        "a flat parameter of FSDP: many parameters one after the other, whose "
        "names and shapes are not stored; it is carried as it is "
        "(--flat-params FILE.json can say them)"));
    return;
  }
}

}  // namespace

std::string with_parameter(std::string_view text, std::string_view leaf,
                           std::string_view parameter) {
  return families::without_wrappers(
             std::string(text.substr(0, text.size() - leaf.size())))
      .append(parameter);
}

std::vector<Expansion> expand(Catalog& catalog, const FlatParameters& all,
                              const Names& padded) {
  auto expansions = Expander(catalog, all, padded).run();
  catalog.assumptions.push_back(
      fmt::format("{} flat parameters: their names and shapes are from {}",
                  all.all.size(), printable(io::base_name(all.source))));
  return expansions;
}

std::vector<Expansion> expand_given(Catalog& catalog,
                                    const formats::ReadOptions& options,
                                    const Names& padded) {
  std::vector<Expansion> expansions;
  if (!options.flat_params_file.empty())
    expansions =
        expand(catalog, read_flat_params(options.flat_params_file), padded);
  note_flat(catalog);
  return expansions;
}

}  // namespace ckpt::fsdp
