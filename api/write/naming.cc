// SPDX-License-Identifier: Apache-2.0
#include "api/write/naming.h"

#include <fmt/format.h>

#include <algorithm>

#include "api/buffers.h"
#include "api/edit/parts.h"
#include "api/edit/redundant.h"
#include "api/edit/tied.h"
#include "api/edit/vocabulary.h"
#include "api/write/config_name.h"
#include "api/write/hf_names.h"
#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/hf/hf.h"
#include "containers/hf/numbered.h"
#include "convert/check_source.h"
#include "convert/config/dialects.h"
#include "convert/config/trainer.h"
#include "convert/config/values.h"
#include "convert/rules/optimizer.h"
#include "convert/translate.h"
#include "convert/whole/whole.h"
#include "formats/options.h"
#include "formats/run_state.h"
#include "formats/runs/models/own_names.h"
#include "formats/traits.h"
#include "lib/text/format.h"
#include "lib/text/shell.h"
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
        std::pair{"--tokenizer-from", !naming.tokenizer_from.empty()},
        std::pair{"--vocab-size", naming.vocab_size != 0 && !takes_size}}) {
    if (!given) continue;
    if (from.empty())
      throw usage_error({}, "{}: the tensors' names are of no known dialect",
                        name)
          .with_hint(
              "`ckpt inspect --tree` shows them; --rename RULES.json brings "
              "them to those of transformers");
    throw usage_error(
        {}, "{} has no effect: names of {} are not being converted", name, from)
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
  if (options.to != "hf") take_hub_names(source);
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

// Replaces a trainer's names for a model of transformers, in a directory of
// weights, by transformers' own. Without the model's numbers they stay, unless
// they `must` not.
void take_transformers_names(Catalog& source, const Naming& naming,
                             const families::TranslateOptions& options,
                             bool must) {
  Catalog copy = source;
  if (!naming.config_from.empty()) take_config(copy, naming.config_from);
  locate(copy);
  try {
    runs::take_transformers_names(copy);
    families::check_numbers(copy, options);
  } catch (const Error& error) {
    if (must || !naming.config_from.empty() ||
        error.code() != ExitCode::kUnfaithful)
      throw;
    say(naming,
        fmt::format("names stay those of {}: {}; {}",
                    runs::owner_of_names(source), error.problem(),
                    error.hint()),
        Problem::Severity::kWarning);
    return;
  }
  say(naming, copy.assumptions.back());
  for (size_t p = source.problems.size(); p < copy.problems.size(); ++p)
    say(naming, copy.problems[p].message, copy.problems[p].severity);
  source = std::move(copy);
}

// The dialect requested, or that of the target's format; "": any.
std::string wanted_dialect(const std::string& asked,
                           const std::string& to_format) {
  if (!asked.empty()) return asked;
  const formats::Traits& traits = formats::traits_of(to_format);
  return std::string(traits.takes.empty() ? traits.dialect : traits.takes);
}

families::TranslateOptions options_of(const Naming& naming,
                                      const std::string& to_format) {
  // Its rules work both ways; its configuration is made of nothing.
  if (const auto* own = families::TrainerConfig::of(naming.dialect);
      own != nullptr && !own->is_written())
    throw usage_error({}, "{}'s names are read, and not written", own->owner());
  families::TranslateOptions options{
      .to = wanted_dialect(naming.dialect, to_format),
      .family = naming.family,
      .family_file = naming.family_file,
      .config_from = naming.config_from,
      .set = {naming.set.begin(), naming.set.end()},
      .drop = naming.drop,
      .allow_missing = naming.allow_missing,
      .strict_config = naming.strict_config,
      .allow_unsaid = naming.allow_unsaid,
      .tokenizer_from = naming.tokenizer_from,
      .dtype = naming.dtype};
  if (naming.vocab_size) options.set["V"] = std::to_string(naming.vocab_size);
  if (naming.partial) options.allow_missing.emplace_back("*");
  return options;
}

// A source on its way to the names of a target, step by step. Which step ends
// the way depends on what was asked for, on the target's traits, and on whose
// the names are by then.
class Renaming {
 public:
  Renaming(Catalog source, const Naming& naming, const std::string& to_format)
      : source_(std::move(source)),
        naming_(naming),
        to_format_(to_format),
        target_(formats::traits_of(to_format)),
        options_(options_of(naming, to_format)),
        asked_(!naming.dialect.empty() || is_asked(options_)) {}

  Catalog run() {
    check_one_model();
    take_only_part();
    unwrap();
    if (take_own_names()) return std::move(source_);
    leave_foreign_optimizer();
    unfuse();
    check_beside();
    if (name_container()) return std::move(source_);
    if (from_ == "hf")
      if (const std::string line =
              settle_tied_head(source_, target_.repeats_tied_head);
          !line.empty())
        say(naming_, line);
    if (sets_vocabulary()) return with_vocabulary();
    settle_dialects();
    if (take_given_config()) return std::move(source_);
    if (target_.unfuse && from_ == "hf")
      families::check_numbers(source_, options_);
    if (!stays()) return translated(std::move(source_), options_, naming_);
    Naming rest = kept();
    if (from_ == "hf" && !target_.computes_rotary.empty() &&
        leave_frequencies(source_, target_.computes_rotary, naming_.drop))
      rest.drop.clear();
    check_unused(rest, to_format_, from_);
    say_no_config();
    need_whole();
    return std::move(source_);
  }

 private:
  // Names alone, as a script's .pth has them: whose model it is stays unsaid.
  void say_no_config() const {
    if (naming_.dialect != "hf" || !target_.is_container || naming_.partial ||
        naming_.renamed || is_tree() ||
        !families::values_of(source_, "hf").source.empty())
      return;
    say(naming_,
        "nothing says which model it is, so the names stay as they are: "
        "config.json is missing, and transformers opens no directory without "
        "it (--config-from DIR brings one)",
        Problem::Severity::kWarning);
  }

  // A loader of one dialect finds none of its names where each begins with a
  // role. What holds tensors of any names keeps them, if nobody asks for names.
  void check_one_model() const {
    const bool any = target_.any_tensors || to_format_ == source_.format ||
                     has_sources_ranks();
    if (naming_.renamed || is_tree() || (naming_.dialect.empty() && any))
      return;
    std::vector<StateDict> models = choices_of(source_);
    std::erase_if(models, [](const StateDict& one) { return !one.tensors; });
    if (!source_.run || models.size() < 2) return;
    std::vector<std::string> words;
    words.reserve(models.size());
    for (const StateDict& one : models) words.push_back(part_word(one));
    throw unfaithful_error(
        {source_.path, {}}, "{} models are in it ({}), and {} holds one",
        models.size(), formats::list_some(words),
        naming_.dialect.empty()
            ? to_format_
            : "a checkpoint with names of " + naming_.dialect)
        .with_hint(fmt::format("--part {} takes one; --to dcp and --to torch "
                               "keep all, with their roles",
                               text::shell_word(words[0])));
  }

  // Models in folders of their own, each with names of its own.
  bool is_tree() const {
    return source_.run && !source_.run->components.empty() &&
           target_.is_container &&
           (naming_.dialect.empty() || naming_.dialect == "hf");
  }

  // Torch files and DCP keep the source's nesting.
  void take_only_part() {
    const bool nests = target_.any_tensors && !target_.unwraps_names;
    if (naming_.renamed || (nests && !asked_)) return;
    const OnlyPart found = keep_only_part(source_);
    if (found.place.empty()) return;
    source_.assumptions.push_back(found.place);
    say_place(found.place);
    if (!found.left_out.empty())
      say(naming_, found.left_out, Problem::Severity::kWarning);
  }

  // Where the model was found; said without -v, too.
  void say_place(const std::string& line) const {
    if (naming_.note)
      naming_.note(
          {{Problem::Severity::kNote, "model_at", source_.path, {}, line}});
  }

  void unwrap() {
    if (naming_.renamed) return;  // names that were asked for are the user's
    if (is_tree()) return;        // and these are the folders'
    if (!options_.to.empty() || target_.unwraps_names ||
        (target_.is_container && asked_))
      if (families::unwrap(source_, families::configured_family(source_).get()))
        say_place(source_.assumptions.back());
    const std::string prefix = families::foreign_prefix(source_);
    if (prefix.empty()) return;
    // A loader of one dialect finds none of such names.
    if (!target_.is_container &&
        target_.dialect == families::dialect_of(source_))
      throw unfaithful_error(
          {source_.path, {}},
          "names begin with \"{}\", and {}'s loader asks for them without; "
          "the optimizer's, beside them, are of yet another form",
          text::printable(prefix), families::owner_of(target_.dialect))
          .with_hint("--model-only converts the model alone");
    const auto* trainer = families::TrainerConfig::of_names(source_);
    const bool neox =
        naming_.dialect.empty() && trainer != nullptr && trainer->is_several();
    if (!target_.is_container || !(asked_ || neox)) return;
    apply_prefix_mapping(source_, {{prefix, ""}});
    say(naming_, fmt::format("the prefix '{}' is taken off", prefix));
  }

  // True if a trainer's own names became transformers', and that is all.
  bool take_own_names() {
    const bool hf = naming_.dialect == "hf";
    const std::string_view owner = runs::owner_of_names(source_);
    if (owner.empty() || (!naming_.dialect.empty() && !hf) ||
        (!target_.unwraps_names && !hf && options_.to != kMegatron))
      return false;
    // nanotron's names can stay in Megatron's format, with a warning.
    const bool must = hf || (!target_.unwraps_names && owner != "nanotron");
    take_transformers_names(source_, naming_, options_, must);
    if (!naming_.config_from.empty()) need_whole();
    return target_.unwraps_names || hf;
  }

  // A folder of transformers' weights has no place for the optimizer of
  // Megatron or of a trainer's step, whose groups then need not be known
  // either; nor has one that gets a config.json for that of a script's file.
  bool leaves_optimizer() const {
    const std::string_view dialect = families::dialect_of(source_);
    return to_format_ == formats::usual_container() &&
           !naming_.with_optimizer &&
           ((dialect == kMegatron && families::has_optimizer(source_)) ||
            (source_.run && dialect != "hf" &&
             std::ranges::any_of(source_.tensors, is_state)) ||
            (!naming_.config_from.empty() &&
             std::ranges::count(source_.tensors, Kind::optim, &Tensor::kind) !=
                 0));
  }

  static bool is_state(const Tensor& tensor) {
    return tensor.kind != Kind::model;
  }

  void leave_foreign_optimizer() {
    const bool to_hf = options_.to == "hf" || (options_.to.empty() && asked_);
    const bool alone = target_.model_alone && !naming_.with_optimizer;
    if (!(to_hf && leaves_optimizer()) && !alone &&
        !runs::has_foreign_optimizer(source_, to_format_))
      return;
    leave_optimizer();
  }

  void leave_optimizer() {
    const size_t before = source_.problems.size();
    source_ = runs::without_optimizer(std::move(source_));
    for (size_t p = before; p < source_.problems.size(); ++p)
      say(naming_, source_.problems[p].message, source_.problems[p].severity);
  }

  void unfuse() {
    from_ = families::dialect_of(source_);
    origin_ = &formats::traits_of(source_.format);
    fused_ = origin_->unfuse && from_ == origin_->dialect;
    if (!fused_ || from_ == target_.dialect || (options_.to.empty() && !asked_))
      return;
    source_ = origin_->unfuse(std::move(source_));
    from_ = "hf";
  }

  void check_beside() {
    if (!same_dialect()) return;
    const auto problems = families::check_beside(source_, options_);
    // A container gets transformers' names, or a note why not.
    if (naming_.note && !problems.empty() && !target_.is_container)
      naming_.note(problems);
  }

  // A container of any dialect gets transformers' names. True if that was
  // tried and there is nothing left to do.
  bool name_container() {
    if (!options_.to.empty() || !target_.is_container || from_.empty() ||
        from_ == "hf")
      return false;
    if (asked_ || !origin_->keeps_names) {
      options_.to = "hf";
      return false;
    }
    std::string why;
    if (leaves_optimizer()) {
      Catalog alone = try_hf(runs::without_optimizer(Catalog(source_)), from_,
                             options_, naming_, why);
      if (why.empty()) {
        leave_optimizer();
        source_ = std::move(alone);
        return true;
      }
    } else {
      source_ = try_hf(std::move(source_), from_, options_, naming_, why);
      if (why.empty()) return true;
    }
    check_unused(naming_, to_format_, from_);
    keep_names(naming_, from_, why);
    return true;
  }

  // If the target pads rows, their number is its own business. The others'
  // names are given to rows that are that many already.
  bool sets_vocabulary() const {
    return naming_.vocab_size && from_ == "hf" && !target_.pads_rows;
  }

  Catalog with_vocabulary() {
    const NewVocabulary done = set_vocabulary(source_, naming_.vocab_size);
    if (!done.note.empty()) say(naming_, done.note);
    for (const std::string& warning : done.warnings)
      say(naming_, warning, Problem::Severity::kWarning);
    Naming rest = naming_;
    rest.vocab_size = 0;
    return into_dialect(std::move(source_), rest, to_format_);
  }

  void settle_dialects() {
    if (naming_.vocab_size && from_ == kMegatron && options_.to == from_)
      if (const std::string lost =
              follow_vocabulary(source_, naming_.vocab_size);
          !lost.empty())
        say(naming_, lost, Problem::Severity::kWarning);
    // A trainer's step has the names of transformers, or of nobody.
    if (options_.to.empty() && from_ == kMegatron && has_sources_ranks())
      options_.to = "hf";
    // If a container does not say whose its names are, the names do. Megatron's
    // may be those of its files, with layers stacked: its writer checks them.
    if (source_.dialect.empty() && options_.to == from_ && from_ != kMegatron)
      source_.dialect = from_;
  }

  // True if --config-from gives the configuration and the names stay.
  bool take_given_config() {
    if (naming_.config_from.empty()) return false;
    if (from_ == "hf" && (options_.to.empty() || options_.to == "hf")) {
      take_config(source_, naming_.config_from);
      source_.dialect =
          from_;  // a file or a DCP doesn't say whose names it has
      families::check_numbers(source_, options_);
      need_whole();
      Naming rest = kept();
      rest.config_from.clear();
      check_unused(rest, to_format_, from_);
      return true;
    }
    // A trainer's folder keeps names or has its own: for those, the
    // configuration gives the model's numbers.
    if (!options_.to.empty() || !has_sources_ranks()) return false;
    take_config(source_, naming_.config_from);
    return true;
  }

  // Names that stay are read by the model that the configuration describes.
  void need_whole() {
    if (naming_.renamed && target_.is_container) {
      // Names that were asked for are the user's. name_config() sees to it that
      // no loader takes config.json for theirs.
      if (!is_found_there()) say_own_names("--rename gives names");
      return;
    }
    if (!naming_.partial) families::need_whole(source_, options_);
    // Several models with their roles, a base with an adapter inside.
    if (source_.run && target_.is_container && !is_found_there())
      say_own_names("the trainer has names");
    if (naming_.partial) return;
    const auto beside =
        std::ranges::count(source_.tensors, Kind::other, &Tensor::kind);
    if (naming_.config_from.empty() || !target_.unwraps_names || beside == 0)
      return;
    const auto first =
        std::ranges::find(source_.tensors, Kind::other, &Tensor::kind);
    throw unfaithful_error({source_.path, first->name},
                           "and {} others are beside the model that {} "
                           "describes",
                           beside - 1, naming_.config_from)
        .with_hint("--model-only leaves them out");
  }

  void say_own_names(std::string_view who) {
    source_.problems.push_back(
        note(Problem::Severity::kNote, kOwnNames, {source_.path, {}},
             "{} that its configuration has no place for", who));
  }

  // What the target's reader will say: it has neither the step that the source
  // is, nor its format's own lists.
  bool is_found_there() {
    const std::string format = std::exchange(source_.format, to_format_);
    const auto run = std::exchange(source_.run, {});
    const families::Whole whole = families::check_whole(source_, options_);
    source_.format = format;
    source_.run = run;
    return std::ranges::none_of(whole.problems, [&](const Problem& problem) {
      return problem.severity == Problem::Severity::kDamage &&
             (!naming_.partial || problem.kind == "unknown_tensor");
    });
  }

  Naming kept() const {
    Naming rest = naming_;
    rest.allow_missing.clear();
    return rest;
  }

  bool stays() const {
    // Names that no dialect has: the format's writer decides what to do with
    // them.
    const bool foreign = from_.empty() && naming_.dialect.empty();
    return same_dialect() || is_tree() || foreign ||
           (fused_ && from_ == origin_->dialect);
  }

  bool same_dialect() const {
    return options_.to.empty() || options_.to == from_;
  }
  bool has_sources_ranks() const {
    return target_.target_ranks == formats::Traits::Ranks::kSources;
  }

  Catalog source_;
  const Naming& naming_;
  const std::string& to_format_;
  const formats::Traits& target_;
  const formats::Traits* origin_ = nullptr;  // the source's
  families::TranslateOptions options_;
  const bool asked_;
  bool fused_ = false;  // it came in its format's own dialect
  std::string from_;    // whose the names are by now
};

}  // namespace

Catalog into_dialect(Catalog source, const Naming& naming,
                     const std::string& to_format) {
  // What a configuration says is settled before it is translated; the one of
  // another dialect becomes transformers' by being translated.
  const bool now = naming.tied && naming.config_from.empty() &&
                   families::dialect_of(source) == "hf" &&
                   !families::values_of(source, "hf").source.empty();
  if (now) say(naming, set_tied(source, *naming.tied));
  if (naming.dialect != kKeep)
    source = Renaming(std::move(source), naming, to_format).run();
  else if (!naming.partial)
    families::need_whole(source, options_of(naming, to_format));
  if (!naming.names.empty()) take_names(source, naming, to_format);
  if (naming.tied && !now) {
    if (families::dialect_of(source) != "hf")
      throw unfaithful_error({source.path, {}},
                             "{}: the target's names are not transformers'",
                             *naming.tied ? "--tie" : "--untie")
          .with_hint(
              "`ckpt convert SRC DST --to hf` with it, and then to the "
              "target");
    say(naming, set_tied(source, *naming.tied));
  }
  return source;
}

}  // namespace ckpt::library
