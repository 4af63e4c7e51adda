// SPDX-License-Identifier: Apache-2.0
// Several checkpoints as one: a catalog whose tensors are decoded files
// (lib/decoding.h) over the tensors of all.
//
//   A  w [r, c] in two pieces ─┐
//   B  w [r, c] whole         ─┼─► w   a File of r x c elements, computed from
//   C  w [r, c] by DCP's boxes─┘       all three as it is read
//
// Everything later sees an ordinary catalog.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <unordered_map>

#include "api/deltas.h"
#include "api/edit/towers.h"
#include "api/merge/meeting.h"
#include "api/merge/recipe.h"
#include "api/write/unproven.h"
#include "ckpt/error.h"
#include "ckpt/merge.h"
#include "convert/config/dialects.h"
#include "lib/decoding.h"
#include "lib/text/format.h"
#include "lib/text/glob.h"
#include "models/view.h"
#include "reshard/numbers/cast_kernel.h"
#include "reshard/run/crc_check.h"
#include "reshard/run/read.h"

namespace ckpt {
namespace {

using families::View;
using library::Recipe;

// A number of steps, which has no mean.
bool is_count(const Tensor& tensor) {
  return tensor.state == "step" || !reshard::is_float(tensor.dtype);
}

// Views hold as many pieces as rows alternate in.
constexpr uint64_t kSpare = uint64_t{1} << 20;

std::string shown(const Tensor& tensor) {
  return fmt::format("{} {}", name(tensor.dtype), to_string(tensor.shape));
}

// The first dimension from which on every piece has all of a tensor's elements
// side by side.
size_t dense_from(const Tensor& tensor) {
  Tensor boxes = tensor;
  View::of(tensor).into(boxes, kSpare);
  size_t from = 0;
  for (const Piece& piece : boxes.pieces) {
    uint64_t step = element_size(tensor.dtype);
    size_t d = tensor.shape.size();
    for (; d > 0; --d) {
      const uint64_t size = tensor.shape[d - 1];
      const bool dense = size == 1 || piece.extent.strides.empty() ||
                         piece.extent.strides[d - 1] == step;
      if (!dense || piece.box.shape[d - 1] != size) break;
      step *= size;
    }
    // Rows that are cut are still rows.
    from = std::max(from, d);
  }
  return from;
}

// [batch][rows][columns] with the longest rows that all terms have.
Shape folded(const std::vector<const Tensor*>& terms) {
  const Shape& shape = terms.front()->shape;
  size_t from = 0;
  for (const Tensor* term : terms) from = std::max(from, dense_from(*term));
  from = std::min(from, shape.size() - std::min<size_t>(shape.size(), 1));
  const auto product = [&](size_t begin, size_t end) {
    uint64_t all = 1;
    for (size_t d = begin; d < end; ++d) all *= shape[d];
    return all;
  };
  if (from == 0) return {1, 1, product(0, shape.size())};
  return {product(0, from - 1), shape[from - 1], product(from, shape.size())};
}

Tensor fold(const Tensor& tensor, const Shape& shape, uint32_t files) {
  Tensor term = tensor;
  View::of(tensor).reshape(shape).into(term, kSpare);
  if (!term.grid.empty())
    throw unfaithful_error({{}, tensor.name},
                           "the order of its rows is not known")
        .with_hint("`ckpt convert SRC DST --to safetensors` first");
  std::vector<Piece>& pieces = term.pieces;
  for (size_t i = 0; i < pieces.size(); ++i)
    for (size_t j = pieces.size(); j-- > i + 1;)
      if (pieces[j].box == pieces[i].box)
        pieces.erase(pieces.begin() + static_cast<ptrdiff_t>(j));
  for (Piece& piece : pieces) piece.extent.file += files;
  return term;
}

// `ckpt merge BASE DELTA` adds. What is a difference already has no difference
// from a base, and no mean with a model.
MergeOptions with_base_of_deltas(const std::vector<Catalog>& sources,
                                 MergeOptions options) {
  for (const Catalog& source : sources)
    if (library::is_lossless_delta(source))
      throw usage_error({source.path, {}}, "is {}", library::delta_text(source))
          .with_hint(
              "`ckpt convert BASE DST --delta DELTA` gives the files back");
  std::vector<size_t> models;
  for (size_t i = 0; i < sources.size(); ++i)
    if (!library::is_delta(sources[i])) models.push_back(i);
  if (models.size() == sources.size() || !options.method) return options;
  const size_t first_delta = static_cast<size_t>(
      std::ranges::find_if(sources, library::is_delta) - sources.begin());
  const bool linear = options.method == MergeMethod::kLinear;
  const bool sum = linear && options.normalize == false;
  if (sum || (linear && models.empty())) return options;
  const auto refuse = [&](const std::string& what) {
    throw unfaithful_error({sources[first_delta].path, {}},
                           "is a difference of two checkpoints: {}", what)
        .with_hint(
            "`ckpt merge BASE DELTA DST` adds it to the model that it was "
            "taken from");
  };
  if (linear && (options.decay || options.normalize))
    refuse("it has no average with a model");
  if (!linear && options.method != MergeMethod::kTaskArithmetic)
    refuse("this method takes models");
  if (options.base && library::is_delta(sources[*options.base]))
    refuse("it is not a base");
  if (!options.base && models.size() != 1)
    refuse("it is added to one model, and these are " +
           text::counted(models.size(), "model"));
  if (!options.base) options.base = models.front();
  options.method = MergeMethod::kTaskArithmetic;
  return options;
}

class Merging {
 public:
  Merging(std::vector<Catalog> sources, const MergeOptions& options)
      : sources_(std::move(sources)),
        options_(with_base_of_deltas(sources_, options)),
        recipe_(sources_.size(), options_),
        frame_(library::is_delta(sources_[0]) && options_.base
                   ? *options_.base
                   : recipe_.frame()) {}

  Catalog merge();

 private:
  void leave_optimizer();
  void check_stored() const;
  void join_files();
  size_t taken_from(const std::string& name);
  void check_takes() const;
  const Tensor& tensor_of(size_t source, const std::string& name) const;
  std::vector<const Tensor*> terms_of(const Tensor& tensor) const;
  const Recipe& recipe_of(const std::string& name);
  void count_layers();
  MergeNumbers tuned(const std::string& name) const;
  DType made_as(const Tensor& tensor) const;
  void combine(Tensor& tensor, const Recipe& recipe);
  void check_equal(const Tensor& tensor) const;
  void take(Tensor& tensor, size_t source) const;
  void finish();

  std::vector<Catalog> sources_;
  const MergeOptions options_;
  const Recipe recipe_;
  const size_t frame_;
  std::vector<std::unordered_map<std::string_view, const Tensor*>> by_name_;
  std::vector<uint32_t> first_file_;  // of each source, in the result
  std::shared_ptr<std::vector<File>> files_ =
      std::make_shared<std::vector<File>>();
  Catalog result_;
  std::vector<uint64_t> taken_;  // by each of options_.takes
  // What is computed, and the file of tensors that are made of the same terms.
  std::vector<Decoding> made_;
  std::vector<const Recipe*> made_by_;
  std::vector<uint64_t> sizes_;
  std::map<std::string, uint32_t> file_of_;
  // Of tensors with numbers of their own, by their text.
  std::map<std::string, Recipe> recipes_;
  std::optional<library::LayerCount> layers_;
  uint64_t most_layers_ = 0;
};

void Merging::leave_optimizer() {
  for (Catalog& source : sources_)
    std::erase_if(source.tensors, [](const Tensor& tensor) {
      return tensor.kind == Kind::optim;
    });
}

// The elements of a merged tensor pass no checksum on their way.
void Merging::check_stored() const {
  if (options_.only_planned || options_.ignore_checksums) return;
  const library::Engine engine{.threads = options_.threads,
                               .max_mem = options_.max_mem};
  for (const Catalog& source : sources_) library::need_crcs(source, engine);
}

void Merging::join_files() {
  // What else refers to files, objects and a writer's carried bytes, knows the
  // frame's by their own numbers.
  *files_ = sources_[frame_].files;
  for (size_t i = 0; i < sources_.size(); ++i) {
    const Catalog& source = sources_[i];
    first_file_.push_back(i == frame_ ? 0
                                      : static_cast<uint32_t>(files_->size()));
    if (i != frame_)
      for (File file : source.files) {
        mark_foreign(file);
        files_->push_back(std::move(file));
      }
    auto& names = by_name_.emplace_back();
    for (const Tensor& tensor : source.tensors)
      names.emplace(tensor.name, &tensor);
  }
}

size_t Merging::taken_from(const std::string& name) {
  std::optional<size_t> source;
  taken_.resize(options_.takes.size());
  for (size_t i = 0; i < options_.takes.size(); ++i) {
    const MergeTake& take = options_.takes[i];
    if (!text::Glob(take.glob).matches(name)) continue;
    ++taken_[i];
    source = take.source;  // the last one that matches
  }
  return source.value_or(sources_.size());
}

void Merging::check_takes() const {
  for (size_t i = 0; i < options_.takes.size(); ++i)
    if (taken_.empty() || taken_[i] == 0)
      throw unfaithful_error({sources_[frame_].path, {}},
                             "--take '{}': no tensor has such a name; the "
                             "first is called {}",
                             options_.takes[i].glob,
                             result_.tensors.empty()
                                 ? "nothing"
                                 : text::printable(result_.tensors[0].name))
          .with_hint(
              "sources of several dialects have transformers' names here; a "
              "glob matches whole names: 'lm_head.*'");
}

const Tensor& Merging::tensor_of(size_t source, const std::string& name) const {
  const auto found = by_name_[source].find(name);
  if (found == by_name_[source].end())
    throw unfaithful_error({sources_[source].path, text::printable(name)},
                           "is not here, and is in {}", sources_[frame_].path);
  return *found->second;
}

std::vector<const Tensor*> Merging::terms_of(const Tensor& tensor) const {
  std::vector<const Tensor*> terms;
  for (const size_t source : recipe_.order()) {
    const Tensor& term = tensor_of(source, tensor.name);
    if (term.shape != tensor.shape)
      throw unfaithful_error(
          {sources_[source].path, text::printable(tensor.name)},
          "is {}; in {} it is {}", shown(term), sources_[frame_].path,
          shown(tensor))
          .with_hint("tensors are merged if they have one shape");
    terms.push_back(&term);
  }
  return terms;
}

// Integers have no mean.
void Merging::check_equal(const Tensor& tensor) const {
  reshard::RunOptions run;
  run.threads = 1;
  run.digest = false;
  constexpr uint64_t kTile = uint64_t{4} << 20;
  for (const size_t source : recipe_.order()) {
    const Tensor& other = tensor_of(source, tensor.name);
    if (source == frame_) continue;
    const auto differ = [&](const std::string& how) {
      throw unfaithful_error(
          {sources_[source].path, text::printable(tensor.name)},
          "is {}, {}; in {} it is {}", shown(other), how, sources_[frame_].path,
          shown(tensor))
          .with_hint(
              "numbers that are not floating-point are not merged: "
              "--take 'GLOB=SRC' takes them from one source");
    };
    if (other.shape != tensor.shape || other.dtype != tensor.dtype)
      differ("which can't be merged");
    for (const Box& tile : reshard::tiles(tensor, kTile))
      if (reshard::read_box(sources_[frame_], tensor, tile, run) !=
          reshard::read_box(sources_[source], other, tile, run))
        differ("with other values");
  }
}

void Merging::take(Tensor& tensor, size_t source) const {
  const Tensor& other = tensor_of(source, tensor.name);
  if (other.shape != tensor.shape)
    throw unfaithful_error(
        {sources_[source].path, text::printable(tensor.name)},
        "is {}; in {} it is {}", shown(other), sources_[frame_].path,
        shown(tensor))
        .with_hint(
            "a tensor is taken if it has the shape of the one that it "
            "replaces");
  const uint32_t tie = tensor.tie;
  const Kind kind = tensor.kind;
  tensor = other;
  tensor.kind = kind;
  tensor.tie = source == frame_ ? tie : 0;
  for (Piece& piece : tensor.pieces) piece.extent.file += first_file_[source];
}

// Gradients go by layers, filters by transformers' names.
void Merging::count_layers() {
  if (!options_.tune) return;
  const Catalog& first = sources_[frame_];
  const std::string_view dialect = families::dialect_of(first);
  if (!dialect.empty() && dialect != "hf")
    throw unfaithful_error({first.path, {}},
                           "numbers for each tensor go by transformers' names, "
                           "and these are names of {}",
                           dialect)
        .with_hint("`ckpt convert SRC DST --to safetensors` gives it those");
  layers_.emplace(first, std::vector<bool>(first.tensors.size(), false));
  for (const Tensor& tensor : first.tensors) {
    if (layers_->aside(tensor.name))
      throw unfaithful_error({first.path, text::printable(tensor.name)},
                             "is of a tower with layers of its own, of which "
                             "no gradient or slice says anything");
    if (const auto layer = layers_->layer_of(tensor.name))
      most_layers_ = std::max<uint64_t>(most_layers_, *layer + uint64_t{1});
  }
}

MergeNumbers Merging::tuned(const std::string& name) const {
  return options_.tune(name, layers_->layer_of(name), most_layers_);
}

const Recipe& Merging::recipe_of(const std::string& name) {
  if (!options_.tune) return recipe_;
  MergeNumbers numbers = tuned(name);
  MergeOptions own = options_;
  own.weights = std::move(numbers.weights);
  own.densities = std::move(numbers.densities);
  own.lambda = numbers.lambda;
  own.t = numbers.t;
  own.normalize = numbers.normalize;
  own.rescale = numbers.rescale;
  own.tune = nullptr;
  Recipe recipe(sources_.size(), own);
  std::string text = recipe.text();
  return recipes_.try_emplace(std::move(text), std::move(recipe)).first->second;
}

// The sum is rounded once, to what is written: a write would round it again.
DType Merging::made_as(const Tensor& tensor) const {
  if (tensor.kind == Kind::optim || tensor.pinned || !options_.dtype)
    return tensor.dtype;
  switch (*options_.dtype) {
    case DType::f64:
    case DType::f32:
    case DType::f16:
    case DType::bf16:
      return *options_.dtype;
    default:  // its codes are made of numbers
      return options_.exact ? DType::f64 : DType::f32;
  }
}

void Merging::combine(Tensor& tensor, const Recipe& recipe) {
  const std::vector<const Tensor*> terms = terms_of(tensor);
  const Shape shape = folded(terms);
  Combination all = recipe.combination(tensor.name);
  tensor.dtype = made_as(tensor);
  if (tensor.dtype == DType::f64) all.exact = true;
  std::string key = std::string(name(tensor.dtype)) + to_string(tensor.shape);
  for (size_t t = 0; t < terms.size(); ++t) {
    const size_t source = recipe_.order()[t];
    all.terms[t].tensor = fold(*terms[t], shape, first_file_[source]);
    all.terms[t].is_delta = all.how == Combination::How::kDeltas &&
                            library::is_delta(sources_[source]);
    for (const Piece& piece : all.terms[t].tensor.pieces)
      key += fmt::format(" {}:{}", piece.extent.file, piece.extent.offset);
  }
  // Tied tensors stay one.
  if (tensor.tie == 0) key += " " + tensor.name;
  if (options_.tune) key += " " + recipe.text();
  const auto [at, is_new] =
      file_of_.emplace(key, static_cast<uint32_t>(made_.size()));
  if (is_new) {
    Decoding made;
    made.coding = Coding::kCombined;
    made.dtype = tensor.dtype;
    made.batch = shape[0];
    made.rows = shape[1];
    made.columns = shape[2];
    made.combined = std::make_shared<const Combination>(std::move(all));
    made.name = tensor.name;
    made.files = files_;
    made_.push_back(std::move(made));
    made_by_.push_back(&recipe);
    sizes_.push_back(byte_size(tensor));
  }
  tensor.grid = {};
  tensor.pieces = {
      {.box = Box::whole(tensor.shape),
       .flat = {},
       .extent = {.offset = 0,
                  .strides = {},
                  .file = static_cast<uint32_t>(files_->size()) + at->second}}};
}

void Merging::finish() {
  std::map<const Recipe*, std::vector<Decoding*>> measured;
  for (size_t i = 0; i < made_.size(); ++i)
    if (!options_.only_planned && made_by_[i]->is_measured())
      measured[made_by_[i]].push_back(&made_[i]);
  for (const auto& [recipe, all] : measured)
    reshard::measure(all, recipe->measure());
  result_.files = *files_;
  for (size_t i = 0; i < made_.size(); ++i) {
    std::string path =
        fmt::format("made:{} {}", made_[i].name, made_by_[i]->text());
    result_.files.push_back(
        decoded_file(std::move(path), sizes_[i], std::move(made_[i])));
  }
  result_.redundant.clear();
  if (!recipe_.any()) return;
  std::string line = fmt::format("made of {}:", recipe_.name());
  for (const size_t source : recipe_.order())
    line += " " + sources_[source].path;
  result_.assumptions.push_back(std::move(line));
}

Catalog Merging::merge() {
  if (!options_.with_optimizer) leave_optimizer();
  library::Meeting(sources_, frame_, options_).meet(recipe_.any());
  check_stored();
  join_files();
  count_layers();
  result_ = sources_[frame_];
  for (Tensor& tensor : result_.tensors) {
    if (const size_t source = taken_from(tensor.name);
        source < sources_.size()) {
      take(tensor, source);
      continue;
    }
    if (!recipe_.any()) {
      if (options_.tune)
        if (const auto source = tuned(tensor.name).take) take(tensor, *source);
      continue;
    }
    // Steps are the frame's, the last source's.
    if (tensor.kind == Kind::optim && is_count(tensor)) {
      take(tensor, frame_);
      continue;
    }
    const std::vector<const Tensor*> terms = terms_of(tensor);
    if (element_count(tensor.shape).value_or(0) == 0) continue;
    if (std::ranges::all_of(terms, [](const Tensor* term) {
          return reshard::is_float(term->dtype);
        }))
      combine(tensor, recipe_of(tensor.name));
    else
      check_equal(tensor);
  }
  check_takes();
  finish();
  return std::move(result_);
}

}  // namespace

std::optional<MergeMethod> merge_method(const std::string& name) {
  using enum MergeMethod;
  static const std::map<std::string, MergeMethod, std::less<>> methods = {
      {"linear", kLinear},
      {"slerp", kSlerp},
      {"ties", kTies},
      {"task_arithmetic", kTaskArithmetic},
      {"dare_linear", kDareLinear},
      {"dare_ties", kDareTies},
      {"model_stock", kModelStock}};
  const auto found = methods.find(name);
  if (found == methods.end()) return std::nullopt;
  return found->second;
}

Catalog merge_models(std::vector<Catalog> sources,
                     const MergeOptions& options) {
  if (sources.empty()) throw usage_error({}, "there is nothing to merge");
  for (const MergeTake& take : options.takes)
    if (take.source >= sources.size())
      throw usage_error({}, "--take '{}': source {} of {}", take.glob,
                        take.source + 1, sources.size());
  if (options.base && *options.base >= sources.size())
    throw usage_error({}, "the base is source {} of {}", *options.base + 1,
                      sources.size());
  if (sources.size() < 2)
    throw usage_error({sources.front().path, {}},
                      "is the only source: there is nothing to merge it with");
  return Merging(std::move(sources), options).merge();
}

}  // namespace ckpt
