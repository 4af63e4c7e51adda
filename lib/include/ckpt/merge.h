// SPDX-License-Identifier: Apache-2.0
// Several checkpoints of one model as one: means, weighted sums, averages over
// a run's steps, and what they add to a base, put together in mergekit's ways
// (docs/merge.md).
//
//   std::vector<ckpt::Catalog> steps;
//   for (const char* path : {"step_900", "step_1000"})
//     steps.push_back(ckpt::open(path).catalog());
//   ckpt::Catalog mean = ckpt::merge_models(std::move(steps));
//   ckpt::run(mean, {.format = "safetensors"}, "averaged");
//
// Headers are read; elements are computed when they are written or read.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "ckpt/catalog.h"

namespace ckpt {

// As mergekit names and defines them.
enum class MergeMethod : uint8_t {
  kLinear,          // the sum of weight x, divided by the sum of the weights
  kSlerp,           // of two, on the sphere
  kTaskArithmetic,  // base + the sum of weight (x - base)
  kTies,            // the largest of those deltas, where their signs agree
  kDareLinear,      // deltas that are left out by chance, the others enlarged
  kDareTies,        // the same, where signs agree
  kModelStock,      // between base and mean, by the angles between deltas
};

// Tensors that one source gives as they are.
struct MergeTake {
  std::string glob;  // of names in the first source
  size_t source = 0;
};

// What may differ from tensor to tensor; as in MergeOptions.
struct MergeNumbers {
  std::optional<size_t> take;  // a source that gives the tensor as it is
  std::vector<double> weights;
  std::vector<double> densities;
  double lambda = 1;
  double t = 0.5;
  std::optional<bool> normalize;
  std::optional<bool> rescale;
};

// For a tensor, the layer that it is of, if it is of one, and how many there
// are.
using MergeTune = std::function<MergeNumbers(
    const std::string& tensor, std::optional<uint32_t> layer, uint64_t layers)>;

struct MergeOptions {
  // None: nothing is computed, and tensors that no `takes` names are the first
  // source's.
  std::optional<MergeMethod> method = MergeMethod::kLinear;
  // The source that others are compared with: of the methods with deltas and of
  // model_stock.
  std::optional<size_t> base;
  // One for each source but the base; empty: 1 each.
  std::vector<double> weights;
  // kLinear: e = decay e + (1 - decay) x, from the first source to the last.
  std::optional<double> decay;
  // One for all or one for each source but the base: the share of deltas that
  // is kept. Empty: all.
  std::vector<double> densities;
  double lambda = 1;              // of all deltas together
  double t = 0.5;                 // kSlerp: 0 is the first source
  std::optional<bool> normalize;  // the method's own if not given
  std::optional<bool> rescale;    // likewise: to the sum of magnitudes before
  uint64_t seed = 0;              // of kDareLinear and kDareTies
  bool exact = false;             // f64 instead of f32
  std::vector<MergeTake> takes = {};
  // Moments and main weights are taken together as well, by kLinear with
  // weights that are divided by their sum, or with a decay; else they are left
  // out. Objects and files, among them where training stands, are then the last
  // source's.
  bool with_optimizer = false;
  std::string family = {};  // "": as the sources say
  uint32_t threads = 0;     // 0: as many as processors
  uint64_t max_mem = uint64_t{1} << 30;
  // Look at headers alone: the result can be planned, and not be read.
  bool only_planned = false;
  bool ignore_checksums = false;
  // What the target is written with (SaveOptions::dtype): sums are rounded to
  // it at once. Nothing: each tensor's own in the first source.
  std::optional<DType> dtype = {};
  // Values that are not finite may come out.
  bool allow_nonfinite = false;
  // Called with what the user should know, one sentence at a time.
  std::function<void(const std::string& line)> note = {};
  // Not null: the numbers of each tensor, by its name as transformers has it,
  // instead of those above.
  MergeTune tune = {};
};

// What the sources amount to, with the names, dtypes, objects and files of the
// first, or of the last with its optimizer. Their names are made to meet if
// formats differ. Throws unfaithful_error, naming the tensor or the fact and
// both values, for sources that are not of one model; usage_error for options
// that contradict each other.
Catalog merge_models(std::vector<Catalog> sources,
                     const MergeOptions& options = {});

// A configuration of mergekit 0.1.5: what is merged, and how.
struct MergeFile {
  std::vector<std::string> sources;  // relative to the working directory; hf://
  MergeOptions options;
  std::optional<DType> dtype;  // of the result; none: the first source's
  std::vector<std::string> notes;
};
// Throws usage_error for what is no such file, unfaithful_error with the line
// for what would be merged another way here: models made of other layers than
// their own, adapters, unknown methods and keys.
MergeFile read_mergekit(const std::string& path);

// "linear" … as mergekit and the command line spell them.
std::optional<MergeMethod> merge_method(const std::string& name);

}  // namespace ckpt
