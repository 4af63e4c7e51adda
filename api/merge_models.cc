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
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <memory>
#include <numeric>
#include <set>
#include <unordered_map>

#include "api/check/facts.h"
#include "api/check/meet.h"
#include "api/edit/towers.h"
#include "api/manifests.h"
#include "api/unproven.h"
#include "ckpt/ckpt.h"
#include "ckpt/error.h"
#include "ckpt/merge.h"
#include "convert/dialects.h"
#include "convert/quantized.h"
#include "formats/options.h"
#include "formats/peft/settings.h"
#include "lib/decoding.h"
#include "lib/text/format.h"
#include "lib/text/glob.h"
#include "models/view.h"
#include "reshard/cast_kernel.h"
#include "reshard/combine.h"
#include "reshard/crc_check.h"
#include "reshard/prove.h"
#include "reshard/read.h"

namespace ckpt {
namespace {

using families::View;

bool has_deltas(MergeMethod method) {
  using enum MergeMethod;
  return method == kTaskArithmetic || method == kTies ||
         method == kDareLinear || method == kDareTies;
}
bool is_by_chance(MergeMethod method) {
  return method == MergeMethod::kDareLinear || method == MergeMethod::kDareTies;
}
bool is_agreeing(MergeMethod method) {
  return method == MergeMethod::kTies || method == MergeMethod::kDareTies;
}

// What the options say, in the order in which terms are taken.
class Recipe {
 public:
  Recipe(size_t sources, const MergeOptions& options);

  bool any() const { return options_.method.has_value(); }
  // The sources, the base of deltas first.
  const std::vector<size_t>& order() const { return order_; }
  // Of a tensor with that name.
  Combination combination(const std::string& tensor) const;
  reshard::Measure measure() const;
  bool is_measured() const {
    const reshard::Measure wanted = measure();
    return wanted.what != reshard::Measure::What::kNothing || wanted.rescale;
  }
  std::string text() const;
  // "the mean of 3 sources", "ties"
  std::string name() const;

 private:
  void check_weights(size_t models) const;
  void check_densities(size_t models) const;
  void set_decay(double decay, size_t models);
  MergeMethod method() const { return *options_.method; }
  bool deltas() const { return any() && has_deltas(method()); }
  bool normal() const {
    return options_.normalize.value_or(method() == MergeMethod::kLinear ||
                                       method() == MergeMethod::kTies);
  }

  const MergeOptions options_;
  std::vector<size_t> order_;
  std::vector<double> weights_;  // of the models, without a base
  double divisor_ = 1;
};

Recipe::Recipe(size_t sources, const MergeOptions& options)
    : options_(options) {
  if (!any()) return;
  const bool with_base = deltas() || method() == MergeMethod::kModelStock;
  if (with_base && !options.base)
    throw usage_error({}, "this method compares models with their base")
        .with_hint("--base PATH names the model that all were trained from");
  if (!with_base && options.base)
    throw usage_error({},
                      "a base goes with the methods that take deltas from "
                      "it, and with model_stock")
        .with_hint(
            "--method task_arithmetic, ties, dare_linear, dare_ties or "
            "model_stock; or leave --base out");
  if (with_base) order_.push_back(*options.base);
  for (size_t i = 0; i < sources; ++i)
    if (!with_base || i != *options.base) order_.push_back(i);
  const size_t models = order_.size() - (with_base ? 1 : 0);
  if (method() == MergeMethod::kSlerp && models != 2)
    throw usage_error({}, "slerp is between two models, and these are {}",
                      models);
  if (method() == MergeMethod::kModelStock && models < 2)
    throw usage_error({},
                      "model_stock takes two models or more beside the "
                      "base, and this is {}",
                      models);
  const bool weighted = deltas() || method() == MergeMethod::kLinear;
  if (!weighted && !options.weights.empty())
    throw usage_error({},
                      "weights go with linear and the methods with deltas; "
                      "slerp has its own number, and model_stock finds its");
  if (options.decay && (method() != MergeMethod::kLinear ||
                        !options.weights.empty() || options.normalize))
    throw usage_error({},
                      "the average over steps has weights of its own: it "
                      "goes with no others, and with no method");
  check_weights(models);
  check_densities(models);
  weights_ = options.weights;
  if (weights_.empty()) weights_.assign(models, 1);
  if (options.decay) set_decay(*options.decay, models);
  if (options.decay || !weighted || !normal()) return;
  divisor_ = std::accumulate(weights_.begin(), weights_.end(), 0.0);
  if (deltas()) {
    if (std::fabs(divisor_) < 1e-8) divisor_ = 1;
  } else if (divisor_ == 0 || !std::isfinite(divisor_)) {
    throw usage_error({},
                      "the weights add up to {}, by which the sum would be "
                      "divided",
                      divisor_)
        .with_hint("--no-normalize takes the weighted sum as it is");
  }
}

void Recipe::check_weights(size_t models) const {
  const std::vector<double>& weights = options_.weights;
  if (!weights.empty() && weights.size() != models)
    throw usage_error({}, "{} for {}", text::counted(weights.size(), "weight"),
                      text::counted(models, "model"))
        .with_hint(
            "name one for each source, in their order: --weights "
            "0.25,0.75; the base has none");
  for (size_t i = 0; i < weights.size(); ++i)
    if (!std::isfinite(weights[i]))
      throw usage_error({}, "weight {} is {}", i + 1, weights[i]);
  for (size_t i = 0; i < weights.size(); ++i)
    if (!deltas() && weights[i] < 0 && options_.normalize.value_or(true))
      throw usage_error({}, "weight {} is {}: a mean has no negative weights",
                        i + 1, weights[i])
          .with_hint(
              "--no-normalize takes the weighted sum as it is; "
              "--method task_arithmetic subtracts what a model learned");
}

void Recipe::check_densities(size_t models) const {
  const std::vector<double>& densities = options_.densities;
  if (densities.empty()) return;
  if (!deltas() || method() == MergeMethod::kTaskArithmetic)
    throw usage_error({},
                      "a density goes with ties, dare_linear and dare_ties");
  if (densities.size() != 1 && densities.size() != models)
    throw usage_error({}, "{} densities for {}", densities.size(),
                      text::counted(models, "model"))
        .with_hint("name one for all, or one for each model in their order");
  for (const double density : densities)
    if (!(density >= 0 && density <= 1))
      throw usage_error({}, "a density of {}: it is a share, from 0 to 1",
                        density);
}

// e = d e + (1 - d) x, beginning with the first.
void Recipe::set_decay(double decay, size_t models) {
  if (!(decay >= 0 && decay <= 1))
    throw usage_error({}, "a decay of {}: it is a share, from 0 to 1", decay);
  for (size_t i = 0; i < models; ++i)
    weights_[i] = (i == 0 ? 1 : 1 - decay) *
                  std::pow(decay, static_cast<double>(models - 1 - i));
}

// FNV-1a, 64 bits.
uint64_t hash_of(std::string_view text) {
  uint64_t hash = 0xCBF29CE484222325;
  for (const char c : text)
    hash = (hash ^ static_cast<uint8_t>(c)) * 0x100000001B3;
  return hash;
}

Combination Recipe::combination(const std::string& tensor) const {
  Combination all{.terms = {}, .divisor = divisor_, .exact = options_.exact};
  all.terms.resize(order_.size());
  const size_t first = order_.size() - weights_.size();
  for (size_t i = 0; i < weights_.size(); ++i)
    all.terms[first + i].weight = weights_[i];
  if (!deltas()) return all;
  all.how = Combination::How::kDeltas;
  all.agreeing = is_agreeing(method());
  all.normal = normal();
  all.lambda = options_.lambda;
  if (all.agreeing) all.divisor = 1;  // each element has its own
  if (!is_by_chance(method())) return all;
  for (size_t i = 0; i < weights_.size(); ++i) {
    const std::vector<double>& given = options_.densities;
    const double density = given.empty() ? 1 : given[given.size() == 1 ? 0 : i];
    if (density >= 1) continue;
    all.terms[first + i].kept.emplace();
    all.terms[first + i].kept->share = density;
    all.terms[first + i].kept->seed =
        reshard::number_of(options_.seed, hash_of(tensor) + i);
  }
  return all;
}

reshard::Measure Recipe::measure() const {
  using What = reshard::Measure::What;
  reshard::Measure wanted;
  if (!any()) return wanted;
  wanted.t = options_.t;
  if (method() == MergeMethod::kSlerp) wanted.what = What::kSlerp;
  if (method() == MergeMethod::kModelStock) wanted.what = What::kStock;
  const std::vector<double>& given = options_.densities;
  const bool some = std::ranges::any_of(given, [](double d) { return d < 1; });
  if (!deltas() || !some) return wanted;
  if (method() == MergeMethod::kTies) wanted.what = What::kLargest;
  for (size_t i = 0; i < weights_.size(); ++i)
    wanted.densities.push_back(given[given.size() == 1 ? 0 : i]);
  wanted.rescale = options_.rescale.value_or(is_by_chance(method()));
  return wanted;
}

std::string Recipe::name() const {
  static constexpr const char* kNames[] = {
      "linear",      "slerp",     "task_arithmetic", "ties",
      "dare_linear", "dare_ties", "model_stock"};
  return fmt::format("{} sources by {}", order_.size(),
                     kNames[static_cast<size_t>(method())]);
}

// All that the elements depend on: a journal tells by it whether the work is
// the same.
std::string Recipe::text() const {
  return fmt::format(
      "method {} order {} weights {} divisor {} lambda {} t {} "
      "densities {} {}{}{} seed {} {}",
      static_cast<int>(method()), fmt::join(order_, ","),
      fmt::join(weights_, ","), divisor_, options_.lambda, options_.t,
      fmt::join(options_.densities, ","), normal() ? "n" : "",
      options_.rescale ? "r" : "", options_.rescale.value_or(false) ? "r" : "",
      options_.seed, options_.exact ? "f64" : "f32");
}

// --- sources of one model ---

// A number of steps, which has no mean.
bool is_count(const Tensor& tensor) {
  return tensor.state == "step" || !reshard::is_float(tensor.dtype);
}

std::set<std::string_view> model_names(const Catalog& catalog) {
  std::set<std::string_view> names;
  for (const Tensor& tensor : catalog.tensors) names.insert(tensor.name);
  return names;
}

bool have_same_names(const std::vector<Catalog>& sources) {
  const auto first = model_names(sources.front());
  return std::ranges::all_of(sources, [&](const Catalog& other) {
    return model_names(other) == first;
  });
}

class Meeting {
 public:
  Meeting(std::vector<Catalog>& sources, const MergeOptions& options)
      : sources_(sources), options_(options) {
    engine_.threads = options.threads;
    engine_.max_mem = options.max_mem;
    engine_.note = options.note;
  }

  void meet(bool all_names) {
    // Of the first one's manifest a write asks like any other.
    if (!options_.only_planned && !options_.ignore_checksums)
      for (size_t i = 1; i < sources_.size(); ++i)
        library::check_against_manifest(sources_[i], run_options());
    for (Catalog& source : sources_) prepare(source);
    check_facts();
    warn_of_factors();
    if (!have_same_names(sources_)) bring_names();
    if (!all_names) return;
    for (size_t i = 1; i < sources_.size(); ++i) check_names(i);
  }

 private:
  reshard::RunOptions run_options() const {
    reshard::RunOptions run;
    run.threads = options_.threads;
    run.max_mem = options_.max_mem / 2;
    return run;
  }

  void prepare(Catalog& source) {
    if (const auto codes = families::quantized_weights(source); !codes.empty())
      throw unfaithful_error({source.path, {}},
                             "{}: codes of quantized weights, which are no "
                             "numbers",
                             families::describe(codes))
          .with_hint("--dtype bf16 makes numbers of them first");
    locate(source);
    if (options_.with_optimizer) reshard::prove_claims(source, run_options());
    source.claims.clear();
  }

  void check_facts() const {
    for (size_t i = 1; i < sources_.size(); ++i) {
      const auto apart =
          library::differing_facts(sources_[0], sources_[i], engine_);
      if (apart.empty()) continue;
      throw unfaithful_error(
          {sources_[i].path, {}}, "is another model than {}: {} is {}{}",
          sources_[0].path, apart.front().name,
          library::fact_text(apart.front()),
          apart.size() == 1 ? ""
                            : fmt::format("; {} facts differ", apart.size()))
          .with_hint("`ckpt diff A B` lists what differs");
    }
  }

  // The product of mean factors is not the mean of their products.
  void warn_of_factors() const {
    const auto adapter = peft::config_of(sources_[0]);
    if (!adapter || !options_.note || !options_.method) return;
    options_.note(
        "an adapter's factors are combined one by one, and their product is "
        "not the combination of the products: merge each into its base with "
        "--adapter for that");
  }

  // Formats of other dialects get transformers' names, as on their way to a
  // folder of transformers.
  void bring_names() {
    std::set<std::string_view> dialects;
    for (const Catalog& source : sources_)
      dialects.insert(families::dialect_of(source));
    if (dialects.size() > 1)
      for (Catalog& source : sources_) {
        const std::string_view own = families::dialect_of(source);
        if (own.empty() || own == "hf") continue;
        Naming naming;
        naming.dialect = "hf";
        naming.family = options_.family;
        naming.partial = true;
        source = into_dialect(std::move(source),
                              std::string(formats::usual_container()), naming);
      }
    // Others may have become different from the first after they had met.
    for (int pass = 0; pass < 2 && !have_same_names(sources_); ++pass)
      for (size_t i = 1; i < sources_.size(); ++i)
        library::meet(sources_[0], sources_[i], options_.family, engine_);
  }

  void check_names(size_t i) const {
    const auto first = model_names(sources_[0]);
    const auto other = model_names(sources_[i]);
    std::vector<std::string_view> lacks, more;
    std::ranges::set_difference(first, other, std::back_inserter(lacks));
    std::ranges::set_difference(other, first, std::back_inserter(more));
    if (lacks.empty() && more.empty()) return;
    const bool lost = !lacks.empty();
    throw unfaithful_error(
        {sources_[i].path,
         text::printable(std::string(lost ? lacks.front() : more.front()))},
        "{}; of {} and {} tensors, {} are in one of the two alone",
        lost ? "is not here, and is in " + sources_[0].path
             : "is here, and is not in " + sources_[0].path,
        first.size(), other.size(), lacks.size() + more.size())
        .with_hint(
            "--exclude GLOB leaves tensors out of all; `ckpt diff A B` lists "
            "them");
  }

  std::vector<Catalog>& sources_;
  const MergeOptions& options_;
  library::Engine engine_;
};

// --- tensors ---

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

class Merging {
 public:
  Merging(std::vector<Catalog> sources, const MergeOptions& options)
      : sources_(std::move(sources)),
        options_(options),
        recipe_(sources_.size(), options) {}

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
  void combine(Tensor& tensor, const Recipe& recipe);
  void check_equal(const Tensor& tensor) const;
  void take(Tensor& tensor, size_t source) const;
  size_t last_model() const { return recipe_.order().back(); }
  void take_progress();
  void finish();

  std::vector<Catalog> sources_;
  const MergeOptions& options_;
  const Recipe recipe_;
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
  for (Catalog& source : sources_) {
    first_file_.push_back(static_cast<uint32_t>(files_->size()));
    files_->insert(files_->end(), source.files.begin(), source.files.end());
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
      throw unfaithful_error({sources_[0].path, {}},
                             "--take '{}': no tensor has such a name",
                             options_.takes[i].glob)
          .with_hint("`ckpt inspect` lists the names");
}

const Tensor& Merging::tensor_of(size_t source, const std::string& name) const {
  const auto found = by_name_[source].find(name);
  if (found == by_name_[source].end())
    throw unfaithful_error({sources_[source].path, text::printable(name)},
                           "is not here, and is in {}", sources_[0].path);
  return *found->second;
}

std::vector<const Tensor*> Merging::terms_of(const Tensor& tensor) const {
  std::vector<const Tensor*> terms;
  for (const size_t source : recipe_.order()) {
    const Tensor& term = tensor_of(source, tensor.name);
    if (term.shape != tensor.shape)
      throw unfaithful_error(
          {sources_[source].path, text::printable(tensor.name)},
          "is {}; in {} it is {}", shown(term), sources_[0].path, shown(tensor))
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
    if (source == 0) continue;
    const auto differ = [&](const std::string& how) {
      throw unfaithful_error(
          {sources_[source].path, text::printable(tensor.name)},
          "is {}, {}; in {} it is {}", shown(other), how, sources_[0].path,
          shown(tensor))
          .with_hint(
              "numbers that are not floating-point are not merged: "
              "--take 'GLOB=SRC' takes them from one source");
    };
    if (other.shape != tensor.shape || other.dtype != tensor.dtype)
      differ("which can't be merged");
    for (const Box& tile : reshard::tiles(tensor, kTile))
      if (reshard::read_box(sources_[0], tensor, tile, run) !=
          reshard::read_box(sources_[source], other, tile, run))
        differ("with other values");
  }
}

void Merging::take(Tensor& tensor, size_t source) const {
  const Tensor& other = tensor_of(source, tensor.name);
  if (other.shape != tensor.shape)
    throw unfaithful_error(
        {sources_[source].path, text::printable(tensor.name)},
        "is {}; in {} it is {}", shown(other), sources_[0].path, shown(tensor))
        .with_hint(
            "a tensor is taken if it has the shape of the one that it "
            "replaces");
  const uint32_t tie = tensor.tie;
  const Kind kind = tensor.kind;
  tensor = other;
  tensor.kind = kind;
  tensor.tie = source == 0 ? tie : 0;
  for (Piece& piece : tensor.pieces) piece.extent.file += first_file_[source];
}

// Gradients go by layers, filters by transformers' names.
void Merging::count_layers() {
  if (!options_.tune) return;
  const Catalog& first = sources_[0];
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

void Merging::combine(Tensor& tensor, const Recipe& recipe) {
  const std::vector<const Tensor*> terms = terms_of(tensor);
  const Shape shape = folded(terms);
  Combination all = recipe.combination(tensor.name);
  if (tensor.dtype == DType::f64) all.exact = true;
  std::string key = std::string(name(tensor.dtype)) + to_string(tensor.shape);
  for (size_t t = 0; t < terms.size(); ++t) {
    const size_t source = recipe_.order()[t];
    all.terms[t].tensor = fold(*terms[t], shape, first_file_[source]);
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

// Where training stood: of the last source.
void Merging::take_progress() {
  const size_t last = last_model();
  if (last == 0) return;
  result_.objects = std::move(sources_[last].objects);
  for (Object& object : result_.objects) object.file += first_file_[last];
  result_.object_opener.reset();
  result_.skeleton.reset();
  if (result_.run && sources_[last].run) result_.run = sources_[last].run;
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
  Meeting(sources_, options_).meet(recipe_.any());
  check_stored();
  join_files();
  count_layers();
  result_ = sources_[0];
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
    if (tensor.kind == Kind::optim && is_count(tensor)) {
      take(tensor, last_model());
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
  if (options_.with_optimizer && recipe_.any()) take_progress();
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
