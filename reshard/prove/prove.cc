// SPDX-License-Identifier: Apache-2.0
#include "reshard/prove/prove.h"

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <iterator>
#include <mutex>
#include <unordered_map>
#include <unordered_set>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "lib/interrupt.h"
#include "lib/parallel.h"
#include "lib/processors.h"
#include "lib/rounded.h"
#include "reshard/numbers/numbers.h"
#include "reshard/prove/rounding.h"
#include "reshard/run/read.h"

namespace ckpt::reshard {
namespace {

// On the f32 side. Larger tiles are not faster to read; much smaller ones take
// more planning than reading.
constexpr uint64_t kMostTile = uint64_t{16} << 20;
// The least that each thread needs to be able to read.
constexpr uint64_t kLeastShare = uint64_t{4} << 20;

// What optimizers call the fp32 copy of a parameter: Megatron's (two names),
// OLMo-core's, Transformer Engine's, apex's, DeepSpeed's.
constexpr std::string_view kMains[] = {
    "param",  "fp32_param",     "main", "master_param",
    "master", "fp32_from_fp16", "fp32"};
// Of each pair, and of how many pairs, when they are only sampled: what is
// shifted is wrong from its first element on.
constexpr uint64_t kSampled = 4096;
constexpr size_t kMostSampled = 256;

template <class T>
T load(std::span<const std::byte> bytes, uint64_t index) {
  T value;
  std::memcpy(&value, bytes.data() + index * sizeof(T), sizeof(T));
  return value;
}

// Truth values are numbers here, so that loops have no branches.
uint32_t is_nan32(uint32_t bits) { return numbers::is_nan(bits); }

// Compares blocks without a branch per element, and looks for the element only
// in a block that has one.
template <class Same>
std::optional<uint64_t> first_not(uint64_t count, const Same& same) {
  constexpr uint64_t kBlock = 1024;
  for (uint64_t begin = 0; begin < count; begin += kBlock) {
    const uint64_t end = std::min(count, begin + kBlock);
    uint32_t all = 1;
    for (uint64_t i = begin; i < end; ++i) all &= same(i);
    if (all & 1) continue;
    for (uint64_t i = begin; i < end; ++i)
      if (!(same(i) & 1)) return i;
  }
  return std::nullopt;
}

double value_at(std::span<const std::byte> bytes, DType dtype, uint64_t index) {
  if (dtype == DType::f32) return load<float>(bytes, index);
  const auto bits = load<uint16_t>(bytes, index);
  return std::bit_cast<float>(dtype == DType::f16
                                  ? numbers::f16_to_float(bits)
                                  : numbers::bf16_to_float(bits));
}

bool comparable(const Tensor& exact, const Tensor& rounded) {
  return exact.dtype == DType::f32 && exact.shape == rounded.shape &&
         (rounded.dtype == DType::f32 || rounded.dtype == DType::bf16 ||
          rounded.dtype == DType::f16);
}

// A claim whose two tensors both exist; without a claim, two that stand side by
// side under names of their own.
struct Pair {
  const Claim* claim = nullptr;
  const Tensor* exact = nullptr;
  const Tensor* rounded = nullptr;
};

bool is_main_word(std::string_view word) {
  return std::ranges::find(kMains, word) != std::end(kMains);
}

// The parameter whose main weight a tensor is; "" if it is none. Containers
// that take any tensor keep the names of Megatron's, and know of no states:
// "optimizer.state.param.decoder.…".
std::string_view parameter_of(const Tensor& tensor) {
  if (tensor.dtype != DType::f32) return {};
  if (tensor.kind == Kind::optim && is_main_word(tensor.state))
    return tensor.param;
  constexpr std::string_view kState = ".state.";
  std::string_view name = tensor.name;
  const size_t at = name.find(kState);
  if (at == name.npos) return {};
  name.remove_prefix(at + kState.size());
  const size_t dot = name.find('.');
  if (dot == name.npos || !is_main_word(name.substr(0, dot))) return {};
  return name.substr(dot + 1);
}

// The main weights are the model's here.
std::vector<Pair> rounded_pairs(const Catalog& catalog) {
  std::vector<Pair> pairs;
  if (std::ranges::none_of(catalog.redundant, is_rounded_weight)) return pairs;
  std::unordered_map<std::string_view, const Tensor*> mains;
  for (const Tensor& tensor : catalog.tensors)
    if (tensor.kind == Kind::model) mains.emplace(tensor.name, &tensor);
  for (const Redundant& one : catalog.redundant) {
    if (!is_rounded_weight(one)) continue;
    const auto main = mains.find(one.tensor.name);
    if (main != mains.end() && comparable(*main->second, one.tensor))
      pairs.push_back({nullptr, main->second, &one.tensor});
  }
  return pairs;
}

// Nothing is inferred about them, so nothing is refused that can't be compared:
// an fp8 weight is not its main weight in another dtype.
std::vector<Pair> stored_pairs(const Catalog& catalog) {
  std::vector<Pair> pairs = rounded_pairs(catalog);
  const auto is_main = [](const Tensor& t) { return !parameter_of(t).empty(); };
  if (std::ranges::none_of(catalog.tensors, is_main)) return pairs;
  std::unordered_set<std::string_view> inferred;
  for (const Claim& claim : catalog.claims) inferred.insert(claim.exact);
  std::unordered_map<std::string_view, const Tensor*> models;
  for (const Tensor& tensor : catalog.tensors)
    if (tensor.kind == Kind::model) models.emplace(tensor.name, &tensor);
  for (const Tensor& tensor : catalog.tensors) {
    if (!is_main(tensor) || inferred.contains(tensor.name)) continue;
    const auto model = models.find(parameter_of(tensor));
    if (model != models.end() && comparable(tensor, *model->second))
      pairs.push_back({nullptr, &tensor, model->second});
  }
  return pairs;
}

std::vector<Pair> pairs_of(const Catalog& catalog) {
  std::unordered_map<std::string_view, const Tensor*> by_name;
  if (catalog.claims.empty()) return {};
  for (const Tensor& tensor : catalog.tensors)
    by_name.emplace(tensor.name, &tensor);
  std::vector<Pair> pairs;
  for (const Claim& claim : catalog.claims) {
    const auto exact = by_name.find(claim.exact);
    const auto rounded = by_name.find(claim.rounded);
    if (exact != by_name.end() && rounded != by_name.end())
      pairs.push_back({&claim, exact->second, rounded->second});
  }
  return pairs;
}

// What is sampled of a tensor.
Box first_box(const Tensor& tensor) {
  Box box = Box::whole(tensor.shape);
  uint64_t left = kSampled;
  for (size_t d = box.shape.size(); d-- > 0;) {
    box.shape[d] = std::min(box.shape[d], left);
    left = std::max<uint64_t>(1, left / std::max<uint64_t>(1, box.shape[d]));
  }
  return box;
}

// A tensor of many ranks has an item to be opened for each of them: only those
// that are sampled are kept. A grid counts pieces in other dimensions.
Tensor sampled_part(const Tensor& tensor) {
  if (!tensor.grid.empty()) return tensor;
  const Box box = first_box(tensor);
  Tensor part = tensor;
  std::erase_if(part.pieces,
                [&](const Piece& piece) { return !intersect(piece.box, box); });
  return part;
}

struct Tile {
  size_t pair = 0;
  Box box;
};

class Checker {
 public:
  Checker(const Catalog& catalog, const RunOptions& options,
          std::vector<Pair> pairs, bool sample = false)
      : catalog_(catalog),
        options_(options),
        pairs_(std::move(pairs)),
        sample_(sample) {
    const uint32_t wanted = options.threads ? options.threads : processors();
    const uint64_t fit = std::max<uint64_t>(1, options.max_mem / kLeastShare);
    threads_ = std::min<uint64_t>(wanted, fit);
    share_ = options.max_mem / threads_;
    found_.resize(pairs_.size());
    first_.resize(pairs_.size());
    sums_.resize(pairs_.size());
  }

  std::vector<Problem> run() {
    uint64_t total = 0;
    for (size_t p = 0; p < pairs_.size(); ++p) add_tiles(p);
    for (const Pair& pair : pairs_)
      total += byte_size(*pair.exact) + byte_size(*pair.rounded);
    if (pairs_.empty()) return {};
    options_.progress.begin("proving", sample_ ? 0 : total);
    parallel_for(threads_, [this](size_t) {
      for (size_t t; (t = next_++) < tiles_.size();) check(t);
    });
    options_.progress.end();
    if (interrupted()) throw Interrupted("stopped; nothing was written");
    std::vector<Problem> problems;
    size_t shifted = 0;
    for (size_t p = 0; p < pairs_.size(); ++p) {
      if (!found_[p] || (!pairs_[p].claim && sums_[p].holds())) continue;
      problems.push_back(std::move(*found_[p]));
      shifted += is_shifted(p);
    }
    if (shifted != 0) problems.push_back(megatrons_shift(shifted));
    return problems;
  }

 private:
  void add_tiles(size_t p) {
    const Pair& pair = pairs_[p];
    if (!comparable(*pair.exact, *pair.rounded)) {
      found_[p] = problem(
          p, fmt::format("{} {} can't be compared with {}, which is {} {}",
                         name(pair.exact->dtype), to_string(pair.exact->shape),
                         pair.rounded->name, name(pair.rounded->dtype),
                         to_string(pair.rounded->shape)));
      return;
    }
    if (sample_) {
      tiles_.push_back({p, first_box(*pair.exact)});
      return;
    }
    for (Box& box : tiles(*pair.exact, std::min(kMostTile, share_ / 4)))
      tiles_.push_back({p, std::move(box)});
  }

  void check(size_t t) {
    if (interrupted()) return;
    const Tile& tile = tiles_[t];
    const Pair& pair = pairs_[tile.pair];
    RunOptions options;
    options.threads = 1;
    options.max_mem = share_ / 2;
    options.digest = false;
    const auto exact = read_box(catalog_, *pair.exact, tile.box, options);
    const auto rounded = read_box(catalog_, *pair.rounded, tile.box, options);
    const std::optional<uint64_t> unlike = contradiction(t, exact, rounded);
    if (unlike) report(t, *unlike, exact, rounded);
    options_.progress.advance(exact.size() + rounded.size());
  }

  // What is inferred is proven bit for bit. What is stored may be rounded as
  // its trainer does, which all of it has to show (Rounding::holds).
  std::optional<uint64_t> contradiction(size_t t,
                                        std::span<const std::byte> exact,
                                        std::span<const std::byte> rounded) {
    const size_t p = tiles_[t].pair;
    const DType dtype = pairs_[p].rounded->dtype;
    if (pairs_[p].claim) return first_unlike(exact, rounded, dtype);
    const Rounding found = measure(exact, rounded, dtype);
    const std::lock_guard lock(mutex_);
    sums_[p].add(found);
    return found.first_far;
  }

  // Values of other elements, not a bit that flipped, in the form whose writer
  // shifts them.
  bool is_shifted(size_t p) const {
    const std::string_view name = pairs_[p].exact->name;
    return !pairs_[p].claim && name.find("state.param.") != name.npos &&
           sums_[p].far >= sums_[p].count / 4;
  }

  Problem megatrons_shift(size_t shifted) const {
    return damage(
        "shifted_optimizer", {catalog_.path, {}},
        "the optimizer states of {}{} of {} parameters are those of other "
        "elements, as Megatron-Core up to 0.19.2 saves fully_reshardable "
        "states of several padded buckets (overlap_grad_reduce; mended in "
        "August 2026, its pull request 5077): the weights are right, but "
        "training does not go on from where it was; --model-only writes the "
        "weights alone",
        sample_ ? "at least " : "", shifted, pairs_.size());
  }

  void report(size_t t, uint64_t index, std::span<const std::byte> exact,
              std::span<const std::byte> rounded) {
    const Tile& tile = tiles_[t];
    const Pair& pair = pairs_[tile.pair];
    Dims at = tile.box.offset;
    uint64_t rest = index;
    for (size_t d = at.size(); d-- > 0;) {
      at[d] += rest % tile.box.shape[d];
      rest /= tile.box.shape[d];
    }
    const auto float_at = load<float>(exact, index);
    const DType dtype = pair.rounded->dtype;
    Problem one = problem(
        tile.pair,
        fmt::format(
            "element {} of {} is {} and should round to {} of {}, which "
            "is {} {}",
            to_string(at), pair.exact->name, float_at, to_string(at),
            pair.rounded->name, name(dtype), value_at(rounded, dtype, index)));
    const std::lock_guard lock(mutex_);
    if (found_[tile.pair] && first_[tile.pair] < t) return;
    first_[tile.pair] = t;
    found_[tile.pair] = std::move(one);
  }

  Problem problem(size_t p, const std::string& what) const {
    const Pair& pair = pairs_[p];
    return damage("main_weight", {catalog_.path, pair.rounded->name},
                  "contradicts its fp32 main weight: {}{}", what,
                  pair.claim ? fmt::format(" ({})", pair.claim->why) : "");
  }

  const Catalog& catalog_;
  const RunOptions& options_;
  const std::vector<Pair> pairs_;
  uint64_t threads_ = 1;
  uint64_t share_ = 0;  // of the memory, for each thread
  std::vector<Tile> tiles_;
  std::atomic<size_t> next_ = 0;
  std::mutex mutex_;
  std::vector<std::optional<Problem>> found_;  // by pair
  std::vector<size_t> first_;                  // tile where it was found
  const bool sample_;
  std::vector<Rounding> sums_;  // of stored pairs, by pair
};

}  // namespace

std::optional<uint64_t> first_unlike(std::span<const std::byte> exact,
                                     std::span<const std::byte> rounded,
                                     DType dtype) {
  const uint64_t count = exact.size() / sizeof(float);
  if (dtype == DType::bf16)
    return first_not(count, [&](uint64_t i) {
      const auto bits = load<uint32_t>(exact, i);
      const uint32_t other = load<uint16_t>(rounded, i);
      const uint32_t nan = (other & 0x7fff) > 0x7f80;
      const uint32_t same =
          numbers::float_to_bf16(bits, numbers::kNanFromWide) == other;
      return same | (nan & is_nan32(bits));
    });
  if (dtype == DType::f16)
    return first_not(count, [&](uint64_t i) {
      const auto bits = load<uint32_t>(exact, i);
      const uint32_t other = load<uint16_t>(rounded, i);
      const uint32_t nan = (other & 0x7fff) > 0x7c00;
      const uint32_t same = numbers::float_to_f16(bits) == other;
      return same | (nan & is_nan32(bits));
    });
  return first_not(count, [&](uint64_t i) {
    const auto bits = load<uint32_t>(exact, i);
    const auto other = load<uint32_t>(rounded, i);
    const uint32_t same = bits == other;
    return same | (is_nan32(bits) & is_nan32(other));
  });
}

uint64_t claim_bytes(const Catalog& catalog) {
  uint64_t bytes = 0;
  for (const auto& pairs : {pairs_of(catalog), stored_pairs(catalog)})
    for (const Pair& pair : pairs)
      bytes += byte_size(*pair.exact) + byte_size(*pair.rounded);
  return bytes;
}

std::vector<Problem> check_claims(const Catalog& catalog,
                                  const RunOptions& options) {
  std::vector<Pair> pairs = pairs_of(catalog);
  std::ranges::move(stored_pairs(catalog), std::back_inserter(pairs));
  return Checker(catalog, options, std::move(pairs)).run();
}

Catalog main_weights(const Catalog& catalog) {
  const std::vector<Pair> pairs = stored_pairs(catalog);
  Catalog some;
  some.path = catalog.path;
  if (pairs.empty()) return some;
  const size_t step = (pairs.size() + kMostSampled - 1) / kMostSampled;
  for (size_t p = 0; p < pairs.size(); p += step) {
    some.tensors.push_back(sampled_part(*pairs[p].exact));
    Tensor rounded = sampled_part(*pairs[p].rounded);
    if (rounded.name != pairs[p].exact->name) {
      some.tensors.push_back(std::move(rounded));
      continue;
    }
    some.redundant.push_back({.tensor = std::move(rounded),
                              .value = {},
                              .same_as = {},
                              .why = std::string(kRoundedWeight)});
  }
  some.files = catalog.files;
  some.archive_opener = catalog.archive_opener;
  return some;
}

std::vector<Problem> sample_main_weights(const Catalog& catalog,
                                         const RunOptions& options) {
  return Checker(catalog, options, stored_pairs(catalog), true).run();
}

void prove_claims(const Catalog& catalog, const RunOptions& options) {
  const std::vector<Problem> problems =
      Checker(catalog, options, pairs_of(catalog)).run();
  if (problems.empty()) return;
  const Problem& first = problems.front();
  throw unfaithful_error({catalog.path, first.tensor}, "{}{}", first.message,
                         problems.size() > 1
                             ? fmt::format("; so it is for {} more parameters",
                                           problems.size() - 1)
                             : "")
      .with_hint(
          "the model weights alone can be written with --model-only; `ckpt "
          "verify --deep` lists all parameters of which this is so");
}

}  // namespace ckpt::reshard
