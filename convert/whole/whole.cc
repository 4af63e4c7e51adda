// SPDX-License-Identifier: Apache-2.0
#include "convert/whole/whole.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/hf/hf.h"
#include "containers/hf/weight_names.h"
#include "convert/adapters/inside.h"
#include "convert/check_source.h"
#include "convert/config/dialects.h"
#include "convert/config/facts.h"
#include "convert/config/values.h"
#include "convert/quantized/codes.h"
#include "convert/quantized/quantized.h"
#include "convert/rules/backbone.h"
#include "convert/sizes.h"
#include "convert/whole/dialect.h"
#include "convert/whole/structure.h"
#include "formats/peft/adapter.h"
#include "formats/peft/settings.h"
#include "formats/traits.h"
#include "lib/text/format.h"
#include "lib/text/number.h"
#include "lib/text/suggest.h"
#include "lib/text/words.h"
#include "models/hf_names.h"
#include "models/wrapper.h"

namespace ckpt::families {
namespace {

// Names are compared with each other only if there are few.
constexpr size_t kFew = 500;

bool is_float(DType dtype) {
  return dtype == DType::f64 || dtype == DType::f32 || dtype == DType::f16 ||
         dtype == DType::bf16 || is_small_float(dtype);
}

constexpr std::string_view kSecondCopies =
    "lm_head.weight embed_out.weight shared_head.head.weight "
    "cls.predictions.decoder.weight cls.predictions.decoder.bias "
    ".embed_tokens.weight";

// T5's first files have a table of positions that no module reads
// (_keys_to_ignore_on_load_unexpected).
constexpr std::string_view kUnusedTable =
    ".EncDecAttention.relative_attention_bias.weight";

// A second copy of what the model shares.
bool is_second_copy(std::string_view name) {
  return text::ends_with_any(name, kSecondCopies);
}

// torch's are bytes in a row, numpy's are words.
bool is_random_state(const Tensor& tensor) {
  return tensor.shape.size() == 1 && !tensor.name.ends_with(".weight") &&
         (tensor.dtype == DType::u8 ||
          (!is_float(tensor.dtype) &&
           tensor.name.find("rng") != tensor.name.npos));
}

class Question {
 public:
  Question(const Catalog& source, const TranslateOptions& options)
      : names_(names_of(source)),
        codes_(source),
        by_name_(formats::is_named_for_library(source)),
        options_(options),
        allow_(options.allow_missing) {}

  Whole run() {
    if (names_.tensors.empty()) {
      answer_.basis = Whole::Basis::kStructure;  // no model was to be here
      return std::move(answer_);
    }
    if (is_one_of_several(names_.path))
      return unknown("it is one file of several");
    if (adapter()) return std::move(answer_);
    config_ = options_.config_from.empty()
                  ? values_of(names_, "hf")
                  : values_of_file(options_.config_from, "hf");
    for (const Tensor& tensor : names_.tensors)
      if (is_random_state(tensor)) states_.insert(tensor.name);
    answer_.open = codes_.open();
    by_configuration();
    if (answer_.basis != Whole::Basis::kRules && !of_own_sizes())
      by_structure();
    empty();
    // --dtype would be refused for it: numbers can't be made of the codes.
    if (const auto& broken = codes_.broken();
        broken && !allow_.match(broken->where().tensor))
      add(damage(broken->problem().starts_with("is missing") ? "missing_tensor"
                                                             : "shape",
                 {names_.path, broken->where().tensor}, "{}",
                 broken->problem()));
    // What is not a model folder has a list of its own: an index of items, the
    // ranks' files, the parts of a step. A step whose model is a folder's files
    // and has a configuration is judged like the folder.
    const bool judged = folder() || traits().unlisted ||
                        (traits().is_container && !config_.source.empty());
    if (!judged) answer_.open = std::move(elsewhere_);
    return std::move(answer_);
  }

 private:
  // Files of Hugging Face's kind, which a model's loader takes as they are.
  const formats::Traits& traits() const {
    return formats::traits_of(names_.format);
  }
  bool folder() const { return !names_.run && traits().is_container; }

  // config.json of a model whose tensors have other names here: no reader takes
  // it for theirs (api/write/config_name.h).
  bool is_set_aside() const {
    return config_.source.starts_with("hf_config.json");
  }

  // What a trainer's dict puts before another dialect's names.
  void take_off(const std::string& prefix) {
    for (Tensor& tensor : names_.tensors)
      if (tensor.kind == Kind::model && !prefix.empty())
        tensor.name.erase(0, prefix.size());
  }

  void by_configuration() {
    // What reads safetensors takes names as they are. Without a likely family,
    // all of them would be read.
    const auto likely = Family::for_config(config_.values);
    const std::string first = names_.tensors.front().name;
    const bool found = likely && folder() && by_name_ &&
                       has_layers_of(*likely, names_.tensors);
    if (likely && !found && !formats::traits_of(names_.format).unwraps_names)
      unwrap(names_, likely.get(), Words::kKnown);
    if (dialect_of(names_).empty()) take_off(foreign_prefix(names_));
    if (names_.tensors.front().name != first) wrapped(first);
    if (!likely && !class_of(config_.values).empty()) all_wrapped();
    if (likely && !found && is_other_class(config_.values, *likely)) by_words();
    const std::string from(dialect_of(names_));
    const auto family = find_family(names_, options_);
    if (!family && from == "mcore" && !values_of(names_, from).source.empty())
      return by_dialect(from, ask_all_families(names_, options_));
    if (!family) return;
    const bool other = !from.empty() && from != "hf";
    if (other && family->dialect(from) &&
        !values_of(names_, from).source.empty())
      return by_dialect(from, ask_dialect(names_, options_));
    if (is_set_aside()) {
      answer_.open = fmt::format(
          "{} is kept for the way back to transformers' names, and these are "
          "others",
          config_.source);
      return;
    }
    if (other && !folder()) return;
    if (!config_.source.empty() && !of_own_sizes()) by_rules(family);
  }

  // ModelOpt's state says of which sizes the layers are, and which are there.
  bool of_own_sizes() const {
    return !names_.run && !formats::traits_of(names_.format).any_tensors &&
           dialect_of(names_) == "hf";
  }

  // A library that looks for the file asks for the names without a wrapper's
  // words before them, and makes a model of random numbers.
  void wrapped(const std::string& first,
               std::string_view asked = kAskedWithout) {
    const std::string& name = names_.tensors.front().name;
    if (!folder() || !by_name_ || !first.ends_with(name) || allow_.match(first))
      return;
    add(damage("wrapped_names", {names_.path, {}},
               "the names begin with \"{}\", and {}",
               text::printable(first.substr(0, first.size() - name.size())),
               asked));
  }

  // The same of a class without rules, whose first words are known.
  void all_wrapped() {
    const std::string first = names_.tensors.front().name;
    take_off(wrapper_of(names_.tensors));
    if (names_.tensors.front().name != first) return wrapped(first);
    by_words();
  }

  // What a class's names begin with is known, whatever is before them.
  void by_words() {
    if (!folder() || !by_name_) return;
    const std::string first = names_.tensors.front().name;
    const auto words = first_words(config_.values);
    const auto before = words_before(names_.tensors, words);
    const std::string asked =
        fmt::format("{} asks for names that begin with {}",
                    class_of(config_.values), fmt::join(words, ", "));
    take_off(before.value_or(""));
    if (before && !before->empty()) wrapped(first, asked);
    if (!before && !allow_.match(first))
      add(damage("unknown_tensor", {names_.path, first},
                 "{}, and most of these don't", asked));
  }

  Whole unknown(std::string why) {
    answer_.open = std::move(why);
    return std::move(answer_);
  }

  void add(Problem problem) { answer_.problems.push_back(std::move(problem)); }

  // An adapter has what its maker trained: any modules of any layers.
  bool adapter() {
    const auto config = peft::config_of(names_);
    if (!config) return is_broken_adapter();
    // Megatron's names say what else the model has.
    if (config->dialect != "peft" && has_adapter_inside(names_)) return false;
    // Of another kind than LoRA it is not known what has to be there.
    if (!peft::is_sum(config->type)) return false;
    answer_.basis = Whole::Basis::kStructure;
    empty();
    if (answer_.problems.empty())
      for (Problem& problem : peft::check_parts(names_, *config))
        add(std::move(problem));
    if (folder() && by_name_ && config->dialect == "peft")
      if (auto other = peft::other_names(names_)) add(*std::move(other));
    return true;
  }

  // PEFT fails on its configuration.
  bool is_broken_adapter() {
    try {
      peft::read_settings(names_);
    } catch (const Error& error) {
      if (error.code() != ExitCode::kDamaged) return false;
      add(damage("configuration", {names_.path, {}}, "{}", error.problem()));
      return true;
    }
    return false;
  }

  // Tensors without elements are what a rank of ZeRO 3 has of its peers', and
  // the last ranks of FSDP2: both have no rows. A class that has none of
  // something (DINOv3's register tokens, [1, 0, 384]) has. In what no
  // configuration describes, they may be anything.
  void empty() {
    if (answer_.basis == Whole::Basis::kNothing && config_.source.empty())
      return;
    for (const Tensor& tensor : names_.tensors)
      if (is_float(tensor.dtype) && !tensor.shape.empty() && !tensor.shape[0])
        add(damage("empty_tensor", {names_.path, tensor.name},
                   "has no elements ({}): ZeRO 3 leaves such, the values are "
                   "in the ranks' files",
                   to_string(tensor.shape)));
  }

  families::Shapes shapes(const Family& family) {
    families::Shapes shapes;
    for (const auto& [name, shape] : codes_.weights())
      shapes.emplace(name, shape);
    for (const Tensor& tensor : names_.tensors)
      if (!codes_.is_part(tensor.name))
        shapes.emplace(tensor.name, tensor.shape);
    backbone_alone_ = is_other_class(config_.values, family);
    for (const Dialect& dialect : family.dialects())
      for (const Rule& rule : dialect.rules)
        if (rule.to.starts_with("embedding."))
          embeddings_.insert(rule.hf.begin(), rule.hf.end());
    backbone_ = find_backbone(config_.values, family, names_.tensors);
    if (!backbone_) return shapes;
    families::Shapes within;
    for (const auto& [name, shape] : shapes)
      within.emplace(backbone_.to_model(name), shape);
    return within;
  }

  // For a class of its own, what is around its backbone is not known.
  bool around(std::string_view name) const {
    return backbone_alone_ && !is_of_layer(name) &&
           !embeddings_.contains(backbone_.to_model(name)) &&
           (name == "embed_out.weight" || (name.find("embed") == name.npos &&
                                           !name.ends_with("norm.weight")));
  }

  // "encoder.block.1.layer.0.SelfAttention.q.weight"
  static bool is_of_layer(std::string_view name) {
    while (!name.empty()) {
      const size_t dot = std::min(name.find('.'), name.size());
      if (text::number(name.substr(0, dot))) return true;
      name.remove_prefix(std::min(dot + 1, name.size()));
    }
    return false;
  }

  void by_rules(const std::shared_ptr<const Family>& family) {
    const families::Shapes there = shapes(*family);
    std::string contradiction;
    for (const Dialect* dialect : strictest_first(*family)) {
      const Numbers numbers(family, *dialect, "hf", config_.values,
                            config_.source, options_.set);
      if (!says_sizes(numbers)) continue;
      const DialectCheck check = check_dialect(numbers, there, true);
      const auto number =
          std::ranges::find(check.findings, "number", &Finding::kind);
      if (number != check.findings.end()) {
        answer_.open = number->message;
        if (is_contradiction(number->message)) contradiction = number->message;
        continue;
      }
      // A step of several models, or of modules that are none.
      if (check.used == 0 && !folder()) return;
      answer_.open.clear();
      answer_.basis = Whole::Basis::kRules;
      judge(check.findings, numbers);
      head();
      together(numbers);
      break;
    }
    if (answer_.basis != Whole::Basis::kRules) {
      // No model has such numbers, whatever its tensors are.
      if (!contradiction.empty())
        add(damage("configuration", {names_.path, {}}, "{}: {}", config_.source,
                   contradiction));
      return;
    }
    sizes(family);
    dtypes(*family);
  }

  // A classifier's head, whatever it is called: transformers makes one of
  // random numbers where a file has none.
  void head() {
    const auto head = task_head(config_.values);
    if (!head) return;
    const std::string name = fmt::format("{}.weight", head->module);
    if (has(name)) {
      const std::string bias = fmt::format("{}.bias", head->module);
      if (head->bias && !has(bias) && !allow_.match(bias)) lacks_head(bias);
      return;
    }
    if (std::ranges::any_of(names_.tensors, [&](const Tensor& tensor) {
          return tensor.name != "lm_head.weight" &&
                 !tensor.name.ends_with("inv_freq") && around(tensor.name);
        }))
      return;
    if (!allow_.match(name)) lacks_head(name);
  }

  void lacks_head(const std::string& name) {
    add(damage("missing_tensor", {names_.path, name},
               "{} asks for it (architectures), or for another head",
               config_.source));
  }

  bool has(std::string_view name) const { return find(name) != nullptr; }
  const Tensor* find(std::string_view name) const {
    const auto found = std::ranges::find(names_.tensors, name, &Tensor::name);
    return found == names_.tensors.end() ? nullptr : &*found;
  }

  // A tensor of the head that the class is known to have. OPT's may have other
  // columns than the hidden size, so of those it can't be told.
  bool is_of_head(const std::string& name, const Numbers& numbers) {
    const auto head = task_head(config_.values);
    if (!head) return false;
    const bool weight = name == fmt::format("{}.weight", head->module);
    const bool bias =
        head->bias && name == fmt::format("{}.bias", head->module);
    if (!weight && !bias) return false;
    const Shape& dims = find(name)->shape;
    if (dims.size() != (weight ? 2 : 1) || dims[0] != head->rows)
      shape(name, fmt::format("has shape {}, and {} asks for {} labels",
                              to_string(dims), config_.source, head->rows));
    return bias || dims.size() != 2 || numbers.eval("$H") == Json(dims[1]);
  }

  // An encoder that was saved by itself (T5EncoderModel, of diffusers'
  // pipelines) has the configuration of both.
  bool is_of_decoder(std::string_view name) const {
    const std::string_view of = class_of(config_.values);
    const std::string at = backbone_.to_model(name);
    return (at.starts_with("decoder.") || at == "lm_head.weight") &&
           (of.ends_with("EncoderModel") ||
            of.ends_with("T5ForTokenClassification"));
  }

  // transformers ties T5's head wherever a file lacks it; the family's rules
  // are for those that have one.
  bool is_filled(const Numbers& numbers) const {
    const auto said = config_.values.find("tie_word_embeddings");
    return numbers.family().name() == "t5" &&
           (said == config_.values.end() || *said != Json(false));
  }

  // Numbers that say one thing twice, and not the same.
  void together(const Numbers& numbers) {
    for (const auto& [condition, reason] : numbers.family().hf().requirements)
      if (!numbers.holds(condition))
        add(damage("configuration", {names_.path, {}}, "{}: {} ({})",
                   config_.source, reason, condition));
  }

  // Megatron fuses what others copy, so its rules compare more shapes.
  static std::vector<const Dialect*> strictest_first(const Family& family) {
    std::vector<const Dialect*> all;
    for (const Dialect& dialect : family.dialects())
      if (!dialect.rules.empty()) all.push_back(&dialect);
    std::stable_partition(all.begin(), all.end(), [](const Dialect* one) {
      return one->name == "mcore";
    });
    return all;
  }

  // False for a config.json that is a note and no model's: it has no heads.
  bool says_sizes(const Numbers& numbers) {
    for (const auto& [number, what] : {std::pair("$L", "how many layers"),
                                       {"$H", "the hidden size"},
                                       {"$nh", "how many heads"}}) {
      if (!numbers.dialect().vars.contains(number)) continue;
      try {
        if (!numbers.eval(number).is_null()) continue;
        answer_.open = fmt::format("{} does not say {}", config_.source, what);
      } catch (const Error& error) {
        answer_.open = error.problem();
      }
      return false;
    }
    return true;
  }

  bool ties(const Numbers& numbers) const {
    try {
      return numbers.dialect().vars.contains("$tie") && numbers.holds("$tie");
    } catch (const Error&) {
      return false;
    }
  }

  void judge(const std::vector<Finding>& findings, const Numbers& numbers) {
    std::set<std::string, std::less<>> modules;  // that have any tensor
    if (codes_)
      for (const Tensor& tensor : names_.tensors)
        for (std::string_view at = parent_module(tensor.name); !at.empty();
             at = parent_module(at))
          modules.emplace(numbers.family().normal_name(at));
    const bool tied = ties(numbers);
    // T5's encoder and decoder have the one embedding, tied head or not.
    const bool shared =
        std::ranges::find(names_.tensors, backbone_.to_here("shared.weight"),
                          &Tensor::name) != names_.tensors.end();
    std::vector<std::string> missing;
    for (const Finding& finding : findings)
      if (finding.kind == "missing") missing.push_back(finding.tensor);
    for (Finding finding : findings) {
      finding.tensor = backbone_.to_here(finding.tensor);
      if (finding.kind != "misshapen" && around(finding.tensor)) {
        if (finding.kind == "unknown" && !is_of_head(finding.tensor, numbers))
          answer_.open = fmt::format(
              "no rule knows {}, which is beside the "
              "model's layers",
              finding.tensor);
        continue;
      }
      if (finding.kind == "missing") {
        if (allow_.match(finding.tensor) || is_of_decoder(finding.tensor) ||
            (finding.tensor == "lm_head.weight" && is_filled(numbers)))
          continue;
        if (codes_ && modules.contains(parent_module(finding.tensor)) &&
            !codes_.has_like(finding.tensor))
          answer_.open =
              fmt::format("no rule reads the codes of {}", finding.tensor);
        else
          add(damage("missing_tensor", {names_.path, finding.tensor},
                     "{} asks for it ({})", config_.source,
                     numbers.family().name()));
      } else if (finding.kind == "unknown" &&
                 is_left_aside(config_.values, finding.tensor)) {
        answer_.open =
            fmt::format("no rule knows {}, which transformers leaves aside",
                        finding.tensor);
      } else if (finding.kind == "unknown") {
        if (states_.contains(finding.tensor) ||
            finding.tensor.ends_with(kUnusedTable) ||
            Globs(options_.drop).match(finding.tensor) ||
            (codes_ &&
             (codes_.belongs(finding.tensor) ||
              is_cache_scale(finding.tensor) || !answer_.open.empty())) ||
            (tied && is_second_copy(finding.tensor)) ||
            (shared && finding.tensor.ends_with(".embed_tokens.weight")))
          continue;
        std::string near = missing.size() < kFew && findings.size() < 2 * kFew
                               ? text::nearest_ending(finding.tensor, missing)
                               : "";
        if (!near.empty()) near = fmt::format(", {}{}", kNearestMissing, near);
        add(damage("unknown_tensor", {names_.path, finding.tensor},
                   "{} has no place for it ({}){}", config_.source,
                   numbers.family().name(), near));
      } else if (finding.kind == "misshapen") {
        misshapen(finding);
      } else {
        add(damage("unknown_tensor", {names_.path, finding.tensor}, "{}",
                   finding.message));
      }
    }
  }

  // The shape of codes that no rule reads is not that of their weight.
  void misshapen(const Finding& finding) {
    const auto strange =
        std::ranges::find_if(names_.tensors, [&](const Tensor& tensor) {
          return !is_float(tensor.dtype) && !codes_.is_part(tensor.name);
        });
    if (!codes_ || strange == names_.tensors.end())
      shape(finding.tensor, finding.message);
    else if (answer_.open.empty())
      answer_.open =
          fmt::format("no rule reads the codes of {}", strange->name);
  }

  void shape(const std::string& tensor, const std::string& message) {
    if (shaped_.insert(tensor).second)
      add(damage("shape", {names_.path, tensor}, "{}", message));
  }

  void sizes(const std::shared_ptr<const Family>& family) {
    std::vector<Tensor> named;
    for (const Tensor& tensor : names_.tensors) {
      const auto weight = codes_.weights().find(tensor.name);
      const bool is_weight = weight != codes_.weights().end();
      if (!is_weight && codes_.is_part(tensor.name)) continue;
      Tensor& one = named.emplace_back(tensor);
      one.name = family->normal_name(tensor.name);
      if (is_weight) one.shape = weight->second;
    }
    const Facts facts = read_facts(family, "hf", config_, options_.set);
    for (const Error& error :
         find_sizes(NamedTensors(std::move(named)), facts, Globs(options_.drop),
                    options_.set.contains("V"), names_.path))
      shape(error.where().tensor, error.problem());
  }

  // Whole numbers where floats belong: in whatever the model has, but for
  // buffers (masks, positions), which the family's file names.
  void whole_numbers(const Family* family) {
    if (codes_) return;
    for (const Tensor& tensor : names_.tensors)
      if (!is_float(tensor.dtype) && !states_.contains(tensor.name) &&
          may_be_parameter(tensor, family))
        add(damage("dtype", {names_.path, tensor.name},
                   "is {}, and nothing says that it is quantized",
                   ckpt::name(tensor.dtype)));
  }

  static bool may_be_parameter(const Tensor& tensor, const Family* family) {
    if (family)
      return !Family::ignored(family->normal_name(tensor.name),
                              family->hf().ignore);
    return tensor.name.ends_with("weight") || tensor.name.ends_with("bias") ||
           tensor.name.ends_with("_proj");
  }

  // Floats of another size than config.json says.
  void dtypes(const Family& family) {
    whole_numbers(&family);
    uint64_t floats = 0, other = 0;
    std::string_view found;
    const std::string said = said_dtype();
    for (const Tensor& tensor : names_.tensors) {
      if (codes_.is_part(tensor.name)) continue;
      if (!is_float(tensor.dtype)) continue;
      const uint64_t elements = element_count(tensor.shape).value_or(0);
      floats += elements;
      if (is_small_float(tensor.dtype) || ckpt::name(tensor.dtype) == said)
        continue;
      other += elements;
      found = ckpt::name(tensor.dtype);
    }
    if (folder() && !said.empty() && !codes_ && other > floats / 2)
      add(warning("dtype", {names_.path, {}},
                  "{} says {}, most of the weights are {}", config_.source,
                  said, found));
  }

  // "bf16"; "" if config.json says none.
  std::string said_dtype() const {
    for (const char* key : {"dtype", "torch_dtype"}) {
      const auto found = config_.values.find(key);
      if (found == config_.values.end() || !found->is_string()) continue;
      const auto dtype = dtype_from_torch(found->get<std::string>());
      if (dtype) return std::string(ckpt::name(*dtype));
    }
    return {};
  }

  void by_dialect(std::string_view from, const DialectAnswer& answer) {
    elsewhere_ = answer.open;
    for (const Finding& finding : answer.findings)
      if (finding.kind == "missing")
        add(damage("missing_tensor", {names_.path, finding.tensor},
                   "the model's configuration asks for it"));
      else if (finding.kind == "misshapen")
        shape(finding.tensor, finding.message);
      else
        add(damage("unknown_tensor", {names_.path, finding.tensor},
                   "the model has no place for it in the names of {}",
                   owner_of(from)));
    if (answer.open.empty()) answer_.basis = Whole::Basis::kRules;
    whole_numbers(nullptr);
  }

  void by_structure() {
    std::vector<const Tensor*> tensors;
    for (const Tensor& tensor : names_.tensors) tensors.push_back(&tensor);
    if (has_uneven_layers(config_.values)) {
      if (answer_.open.empty())
        answer_.open =
            "its layers differ by design; no rules say what each "
            "of them has";
      return;
    }
    Structure found = check_structure(tensors, config_.values, names_.path);
    if (options_.allow_missing.empty())
      std::ranges::move(found.problems, std::back_inserter(answer_.problems));
    if (found.compared) answer_.basis = Whole::Basis::kStructure;
    if (answer_.open.empty())
      answer_.open = !found.compared ? "no rules say what the whole model is"
                     : found.uneven
                         ? "the layers are as many as config.json says, but "
                           "they differ; no rules say what each of them has"
                         : "the layers are all there; no rules say what else "
                           "the model has";
  }

  Catalog names_;
  const Codes codes_;
  const bool by_name_;  // of a library's files
  const TranslateOptions& options_;
  const Globs allow_;
  Values config_;
  bool backbone_alone_ = false;
  std::set<std::string, std::less<>> embeddings_;  // as Megatron has them
  Backbone backbone_;
  std::set<std::string, std::less<>> shaped_;  // told
  // Random states beside the model, in a file of everything.
  std::set<std::string, std::less<>> states_;
  std::string elsewhere_;  // what can't be told of another dialect's names
  Whole answer_;
};

}  // namespace

bool Whole::sound() const {
  return std::ranges::none_of(problems, [](const Problem& problem) {
    return problem.severity == Problem::Severity::kDamage;
  });
}

Whole check_model(const Catalog& source, const TranslateOptions& options) {
  Whole whole = Question(source, options).run();
  if (whole.sound() || dialect_of(source) != "hf") return whole;
  // The rules know the Hub's names; transformers loads its modules', too.
  const auto config = formats::config_json_of(source);
  if (!has_module_names(source, config)) return whole;
  Catalog names = names_of(source);
  try {
    take_hf_names(names, config, HfNames::kHub);
  } catch (const Error&) {
    return whole;
  }
  Whole renamed = Question(names, options).run();
  return renamed.sound() ? renamed : whole;
}

std::vector<DialectCheck> check_family(
    const std::shared_ptr<const Family>& family, const Catalog& source,
    const Overrides& overrides) {
  const Values config = values_of(source, "hf");
  families::Shapes tensors;
  for (const Tensor& tensor : source.tensors)
    if (tensor.kind == Kind::model) tensors.emplace(tensor.name, tensor.shape);
  std::vector<DialectCheck> checks;
  for (const Dialect& dialect : family->dialects()) {
    if (!covers_family(dialect)) continue;
    const Numbers numbers(family, dialect, "hf", config.values, config.source,
                          overrides);
    checks.push_back(check_dialect(numbers, tensors));
  }
  return checks;
}

}  // namespace ckpt::families
