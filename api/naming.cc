// SPDX-License-Identifier: Apache-2.0
#include "api/naming.h"

#include <fmt/format.h>

#include <algorithm>

#include "api/buffers.h"
#include "api/edit/vocabulary.h"
#include "ckpt/error.h"
#include "containers/hf/hf.h"
#include "convert/check_source.h"
#include "convert/translate.h"
#include "convert/values.h"
#include "formats/run_state.h"
#include "formats/runs/run.h"
#include "formats/traits.h"
#include "lib/text/glob.h"
#include "models/buffers.h"
#include "models/wrapper.h"

namespace ckpt::library {
namespace {

constexpr std::string_view kKeep = "keep";
constexpr std::string_view kMegatron = "mcore";

// True if something says that another dialect is wanted, even if not which.
bool is_asked(const families::TranslateOptions& options) {
  return !options.family.empty() || !options.family_file.empty() ||
         !options.config_from.empty();
}

// Refuses what only a conversion between dialects uses.
void check_unused(const Naming& naming, const std::string& to_format,
                  std::string_view from) {
  const bool takes_size = formats::traits_of(to_format).pads_rows;
  for (const auto& [name, given] :
       {std::pair{"--config-from", !naming.config_from.empty()},
        std::pair{"--set", !naming.set.empty()},
        std::pair{"--drop", !naming.drop.empty()},
        std::pair{"--allow-missing", !naming.allow_missing.empty()},
        std::pair{"--allow-unsaid", !naming.allow_unsaid.empty()},
        std::pair{"--vocab-size", naming.vocab_size != 0 && !takes_size}}) {
    if (!given) continue;
    if (from.empty())
      throw usage_error({}, "{}: the tensors' names are of no known dialect",
                        name)
          .with_hint(
              "`ckpt inspect --tree` shows them; --rename RULES.json brings "
              "them to those of transformers");
    throw usage_error({}, "{}: the names are those of {} and stay so", name,
                      from)
        .with_hint(
            "leave it out; --dialect NAME asks for other names, --exclude "
            "leaves tensors out in any case");
  }
}

// Takes the files of --config-from in place of the source's own.
void take_config(Catalog& source, const std::string& directory) {
  Catalog beside;
  formats::add_sidecars(directory, beside);
  for (Sidecar& sidecar : beside.sidecars) {
    std::erase_if(source.sidecars, [&](const Sidecar& other) {
      return other.name == sidecar.name;
    });
    source.sidecars.push_back(std::move(sidecar));
  }
}

bool has_optimizer(const Catalog& source) {
  return std::ranges::any_of(source.tensors, [](const Tensor& tensor) {
    return tensor.kind == Kind::optim;
  });
}

// Why the names of a dialect can't become transformers'; "" if they can.
std::string hindrance(const Catalog& source, std::string_view from,
                      const families::TranslateOptions& options) {
  if (has_optimizer(source))
    return "optimizer state is named by them; --model-only leaves it out";
  const auto family = families::find_family(source, options);
  if (!family)
    return "the model's family is not known: --family NAME says it "
           "(`ckpt family list`)";
  if (!family->dialect(from))
    return fmt::format("family {} has no rules for them", family->name());
  if (families::values_of(source, from).source.empty() &&
      families::values_of(source, "hf").source.empty())
    return "nothing says the model's numbers: --config-from DIR does";
  return {};
}

void say(const Naming& naming, std::string line,
         Problem::Severity severity = Problem::Severity::kNote) {
  if (naming.note) naming.note({{severity, "naming", {}, {}, std::move(line)}});
}

void keep_names(const Naming& naming, std::string_view from,
                const std::string& why) {
  say(naming,
      fmt::format("names stay those of {}: {} (--dialect keep is silent)",
                  families::owner_of(from), why),
      Problem::Severity::kWarning);
}

Catalog translated(Catalog source, const families::TranslateOptions& options,
                   const Naming& naming) {
  const auto problems = static_cast<ptrdiff_t>(source.problems.size());
  const size_t assumptions = source.assumptions.size();
  const double theta = families::theta_of(source);
  source = families::translate(std::move(source), options);
  prove_buffers(source, theta);
  if (naming.note)
    naming.note({source.problems.begin() + problems, source.problems.end()});
  for (size_t i = assumptions; i < source.assumptions.size(); ++i)
    say(naming, source.assumptions[i]);
  return source;
}

// Gives a container of any dialect transformers' names if possible. `why`: the
// reason if the names stay.
Catalog try_hf(Catalog source, std::string_view from,
               families::TranslateOptions options, const Naming& naming,
               std::string& why) {
  const auto unfuse = formats::traits_of(source.format).unfuse;
  if (!unfuse) why = hindrance(source, from, options);
  if (why.empty()) {
    try {
      Catalog copy = source;
      if (unfuse) return unfuse(std::move(copy));
      options.to = "hf";
      return translated(std::move(copy), options, naming);
    } catch (const Error& error) {
      const bool given = !options.set.empty() || !options.drop.empty();
      if (given || options.strict_config ||
          error.code() != ExitCode::kUnfaithful)
        throw;
      why = error.problem();
    }
  }
  return source;
}

// A tied head that is stored a second time; elsewhere it is omitted. In a
// target that `repeats` it, both must be the same.
void settle_tied_head(Catalog& source, const Naming& naming, bool repeats) {
  const families::Values config = families::values_of(source, "hf");
  if (config.source.empty() || families::repeats_tied_head(source) == repeats)
    return;
  const auto tie = config.values.find("tie_word_embeddings");
  if (tie == config.values.end() || *tie != true) return;
  const Tensor* embedding = source.find("model.embed_tokens.weight");
  const auto head =
      std::ranges::find(source.tensors, "lm_head.weight", &Tensor::name);
  if (!embedding || head == source.tensors.end()) return;
  source.redundant.push_back(
      {*head, {}, *embedding, "config.json: tie_word_embeddings"});
  if (repeats) return;
  source.tensors.erase(head);
  say(naming,
      "lm_head.weight is model.embed_tokens.weight and left out: "
      "tie_word_embeddings");
}

// Rotary frequencies that the target's loader computes: those left out equal
// what it has.
Naming leave_frequencies(Catalog& source, std::string_view loader,
                         Naming naming) {
  const auto is_one = [](const Tensor& tensor) {
    return tensor.name.ends_with(".rotary_emb.inv_freq");
  };
  std::vector<text::Glob> drop;
  for (const std::string& pattern : naming.drop) drop.emplace_back(pattern);
  bool dropped = false;
  for (const Tensor& tensor : source.tensors) {
    if (!is_one(tensor)) continue;
    const bool wanted = std::ranges::none_of(drop, [&](const text::Glob& glob) {
      return glob.matches(tensor.name);
    });
    dropped = dropped || !wanted;
    if (wanted)
      source.redundant.push_back(
          {tensor, {}, {}, fmt::format("{} computes it", loader)});
  }
  prove_buffers(source, families::theta_of(source));
  std::erase_if(source.tensors, is_one);
  if (dropped) naming.drop.clear();
  return naming;
}

// Replaces a trainer's names for a model of transformers, in a directory of
// weights, by transformers' own. Without the model's numbers they stay, unless
// they `must` not.
void take_transformers_names(Catalog& source, const Naming& naming, bool must) {
  Catalog copy = source;
  if (!naming.config_from.empty()) take_config(copy, naming.config_from);
  locate(copy);
  try {
    runs::take_transformers_names(copy);
  } catch (const Error& error) {
    if (must || !naming.config_from.empty() ||
        error.code() != ExitCode::kUnfaithful)
      throw;
    say(naming,
        fmt::format("names stay those of {}: {}; --config-from DIR says it",
                    source.run->trainer, error.problem()),
        Problem::Severity::kWarning);
    return;
  }
  say(naming, copy.assumptions.back());
  source = std::move(copy);
}

// The dialect requested, or that of the target's format; "": any.
std::string wanted_dialect(const std::string& asked,
                           const std::string& to_format) {
  if (!asked.empty()) return asked;
  const formats::Traits& traits = formats::traits_of(to_format);
  return std::string(traits.takes.empty() ? traits.dialect : traits.takes);
}

}  // namespace

Catalog into_dialect(Catalog source, const Naming& naming,
                     const std::string& to_format) {
  if (naming.dialect == kKeep) return source;
  families::TranslateOptions translate{
      .to = naming.dialect,
      .family = naming.family,
      .family_file = naming.family_file,
      .config_from = naming.config_from,
      .set = {naming.set.begin(), naming.set.end()},
      .drop = naming.drop,
      .allow_missing = naming.allow_missing,
      .strict_config = naming.strict_config,
      .allow_unsaid = naming.allow_unsaid,
      .dtype = naming.dtype};
  if (naming.vocab_size) translate.set["V"] = std::to_string(naming.vocab_size);
  if (naming.partial) translate.allow_missing.emplace_back("*");
  translate.to = wanted_dialect(naming.dialect, to_format);
  const bool asked = !naming.dialect.empty() || is_asked(translate);
  const formats::Traits& target = formats::traits_of(to_format);
  if (!translate.to.empty() || target.unwraps_names ||
      (target.is_container && asked))
    if (families::unwrap(source)) say(naming, source.assumptions.back());
  if (source.run && runs::has_own_names(source) && naming.dialect.empty() &&
      (target.unwraps_names || translate.to == kMegatron)) {
    take_transformers_names(source, naming, !target.unwraps_names);
    if (target.unwraps_names) return source;
  }
  if (runs::has_foreign_optimizer(source, to_format)) {
    const size_t before = source.problems.size();
    source = runs::model_only(std::move(source));
    for (size_t p = before; p < source.problems.size(); ++p)
      say(naming, source.problems[p].message, source.problems[p].severity);
  }
  std::string from(families::dialect_of(source));
  const formats::Traits& origin = formats::traits_of(source.format);
  const bool fused = origin.unfuse && from == origin.dialect;
  if (fused && from != target.dialect && (!translate.to.empty() || asked)) {
    source = origin.unfuse(std::move(source));
    from = "hf";
  }
  if (translate.to.empty() || translate.to == from) {
    const auto problems = families::check_beside(source, translate);
    // A container gets transformers' names, or a note why not.
    if (naming.note && !problems.empty() && !target.is_container)
      naming.note(problems);
  }
  if (translate.to.empty() && target.is_container && !from.empty() &&
      from != "hf") {
    if (!asked && origin.keeps_names) {
      std::string why;
      source = try_hf(std::move(source), from, translate, naming, why);
      if (why.empty()) return source;
      check_unused(naming, to_format, from);
      keep_names(naming, from, why);
      return source;
    }
    translate.to = "hf";
  }
  if (from == "hf") settle_tied_head(source, naming, target.repeats_tied_head);
  // If the target pads rows, their number is its own business.
  if (naming.vocab_size && from == "hf" && !target.pads_rows &&
      (translate.to.empty() || translate.to == from)) {
    const NewVocabulary done = set_vocabulary(source, naming.vocab_size);
    if (!done.note.empty()) say(naming, done.note);
    for (const std::string& warning : done.warnings)
      say(naming, warning, Problem::Severity::kWarning);
    Naming rest = naming;
    rest.vocab_size = 0;
    return into_dialect(std::move(source), rest, to_format);
  }
  if (naming.vocab_size && from == kMegatron && translate.to == from)
    if (const std::string lost = follow_vocabulary(source, naming.vocab_size);
        !lost.empty())
      say(naming, lost, Problem::Severity::kWarning);
  // A trainer's step has the names of transformers, or of nobody.
  if (translate.to.empty() && from == kMegatron &&
      target.target_ranks == formats::Traits::Ranks::kSources)
    translate.to = "hf";
  // If a container does not say whose its names are, the names do. Megatron's
  // may be those of its files, with layers stacked: its writer checks them.
  if (source.dialect.empty() && translate.to == from && from != kMegatron)
    source.dialect = from;
  const bool copies_config = from == "hf" && !naming.config_from.empty() &&
                             (translate.to.empty() || translate.to == "hf");
  if (copies_config) {
    take_config(source, naming.config_from);
    Naming rest = naming;
    rest.config_from.clear();
    check_unused(rest, to_format, from);
    return source;
  }
  // Names that no dialect has: the format's writer decides what to do with
  // them.
  const bool foreign = from.empty() && naming.dialect.empty();
  // A trainer's folder keeps names or has its own: for those, the configuration
  // gives the model's numbers.
  if (translate.to.empty() && !naming.config_from.empty() &&
      target.target_ranks == formats::Traits::Ranks::kSources) {
    take_config(source, naming.config_from);
    return source;
  }
  if (target.unfuse && from == "hf") families::check_numbers(source, translate);
  if (translate.to.empty() || translate.to == from || foreign ||
      (fused && from == origin.dialect)) {
    check_unused(from == "hf" && !target.computes_rotary.empty()
                     ? leave_frequencies(source, target.computes_rotary, naming)
                     : naming,
                 to_format, from);
    return source;
  }
  return translated(std::move(source), translate, naming);
}

}  // namespace ckpt::library
