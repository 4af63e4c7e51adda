// SPDX-License-Identifier: Apache-2.0

#include <unordered_map>

#include "ckpt/error.h"
#include "containers/torch/file_plan.h"
#include "formats/runs/nanotron/write.h"
#include "formats/torch/torch.h"
#include "lib/io/file.h"
#include "lib/text/format.h"
#include "lib/text/number.h"

namespace ckpt::runs::nanotron {
namespace {

using pickle::Document;
using pickle::Id;
using pickle::kNoId;
using pickle::Type;
using text::printable;

// A stage's file of the source, of rank 0: no rank has parameters that it
// lacks.
struct Nesting {
  std::string path;
  Catalog catalog;
  std::map<uint64_t, std::string> names;

  const Document& document() const { return *catalog.skeleton->document; }
  Id root() const { return catalog.skeleton->root; }
};

// One file of the target. {"state": {0: …}, "param_groups": […],
// "names": {0: …}, "gradient_accumulator": {"model.…": …}}
class StateFile {
 public:
  StateFile(const std::vector<Nesting>& from, const Ranks& ranks,
            uint64_t stage, uint64_t tp, uint64_t dp, bool zero)
      : from_(from),
        ranks_(ranks),
        stage_(stage),
        tp_(tp),
        dp_(dp),
        zero_(zero) {}

  struct Place {
    std::string tensor;
    bool scalar = false;  // the same for all ranks
    Share share;
    MaybeFlat run;
  };

  torch::FilePlan plan(const std::string& name) {
    number();
    for (size_t i = 0; i < from_.size(); ++i) add_tensors(i);
    const Id root = document_.add_container(Type::kDict);
    const Nesting& first = from_[0];
    const auto pairs = first.document().as_pairs(first.root());
    for (size_t i = 0; pairs && i + 1 < pairs->size(); i += 2) {
      const Id key = (*pairs)[i], value = (*pairs)[i + 1];
      const std::string word = first.document().is(key, Type::kString)
                                   ? std::string(first.document().text(key))
                                   : "";
      Id made;
      if (word == "state" || word == "names" ||
          (word == "gradient_accumulator" && first.document().as_pairs(value)))
        made = kept(word);
      else if (word == "param_groups")
        made = groups();
      else
        made = import(0, value);
      document_.set(root, import(0, key), made);
    }
    return torch::plan_file(document_, root, slots_,
                            torch::archive_root_of(name));
  }

  const std::vector<Place>& places() const { return places_; }

 private:
  [[noreturn]] static void refuse(const Nesting& from,
                                  const std::string& name) {
    throw unfaithful_error({from.path, printable(name)},
                           "is not a parameter's: what it is on other ranks is "
                           "not known")
        .with_hint("--to safetensors or dcp keeps model and optimizer by name");
  }

  // What the rank's optimizer has of a parameter; nothing: it lacks it.
  std::optional<Place> held(const std::string& param) const {
    const Weight& weight = ranks_.weight(param);
    if (ranks_.moves() && ranks_.stage(weight) != stage_) return std::nullopt;
    const auto share = ranks_.share(weight, tp_);
    if (!share) return std::nullopt;
    Place place{.tensor = {}, .scalar = false, .share = *share, .run = {}};
    if (!zero_) return place;
    const uint64_t elements = element_count(share->shape).value_or(0);
    const FlatRange run = zero_run(elements, dp_, ranks_.dp());
    if (run.begin == run.end) return std::nullopt;
    place.run = run;
    return place;
  }

  std::span<const Id> list_of_groups(const Nesting& from) const {
    const Id groups = from.document().find(from.root(), "param_groups");
    if (!from.document().is(groups, Type::kList))
      throw unfaithful_error({from.path, {}}, "has no list of groups");
    return from.document().items(groups);
  }

  // The rank's own numbers: through its groups, each through the stages,
  // without what the rank lacks. A tied parameter of two stages has one.
  void number() {
    const size_t count = list_of_groups(from_[0]).size();
    for (const Nesting& from : from_)
      if (list_of_groups(from).size() != count)
        throw unfaithful_error(
            {from.path, {}},
            "has {} groups, {} has {}: they are not put into "
            "one",
            list_of_groups(from).size(), io::base_name(from_[0].path), count);
    numbers_.resize(from_.size());
    lists_.resize(count);
    std::map<std::string_view, int64_t> known;
    int64_t next = 0;
    for (size_t g = 0; g < count; ++g)
      for (size_t i = 0; i < from_.size(); ++i) {
        const Document& document = from_[i].document();
        const Id params = document.find(list_of_groups(from_[i])[g], "params");
        if (!document.is(params, Type::kList)) continue;
        for (const Id item : document.items(params)) {
          const auto old = document.as_int(item);
          if (!old) continue;
          const auto name = from_[i].names.find(static_cast<uint64_t>(*old));
          if (name == from_[i].names.end()) {
            // It never had a gradient, and nothing says what it is.
            if (ranks_.moves())
              throw unfaithful_error(
                  {from_[i].path, {}},
                  "parameter {} has no name: which stage has "
                  "it is not known",
                  *old);
          } else if (!held(name->second) ||
                     !known.emplace(name->second, next).second) {
            continue;
          }
          numbers_[i].emplace(*old, next);
          lists_[g].push_back(next++);
        }
      }
  }

  void add_tensors(size_t index) {
    const Nesting& from = from_[index];
    std::map<std::string_view, const Tensor*> stored;
    for (const Tensor& tensor : from.catalog.tensors)
      stored.emplace(tensor.name, &tensor);
    auto& substitutes = substitutes_.emplace_back();
    for (const auto& [node, name] : from.catalog.skeleton->tensors) {
      const Tensor& tensor = *stored.at(name);
      const auto state = state_of(tensor, from.names);
      if (!state) refuse(from, name);
      auto place = held(state->param);
      if (!place || !is_mine(index, tensor, state->param)) continue;
      place->tensor = state->param + "." + state->state;
      place->scalar = tensor.shape.empty();
      Shape shape;
      if (!place->scalar && place->run)
        shape = {place->run->end - place->run->begin};
      else if (!place->scalar)
        shape = place->share.shape;
      slots_.push_back({.dtype = tensor.dtype, .shape = shape});
      substitutes[node] = torch::add_placeholder(document_, slots_.size() - 1);
      places_.push_back(*std::move(place));
    }
    if (!from.catalog.skeleton->storages.empty()) refuse(from, "a value");
  }

  // Not that of a tied parameter which an earlier stage has, too.
  bool is_mine(size_t index, const Tensor& tensor, const std::string& param) {
    const auto number = text::number(tensor.param);
    if (number) return numbers_[index].contains(static_cast<int64_t>(*number));
    return masters_.emplace(param, index).first->second == index;
  }

  Id import(size_t index, Id id) {
    return document_.import(from_[index].document(), id, substitutes_[index]);
  }

  // A dict by number or by name, of all stages, without what the rank lacks.
  Id kept(const std::string& word) {
    const Id made = document_.add_container(Type::kDict);
    for (size_t s = 0; s < from_.size(); ++s) {
      const Document& from = from_[s].document();
      const auto pairs = from.as_pairs(from.find(from_[s].root(), word));
      for (size_t i = 0; pairs && i + 1 < pairs->size(); i += 2) {
        const Id key = (*pairs)[i];
        Id mine = kNoId;
        if (const auto number = from.as_int(key)) {
          const auto found = numbers_[s].find(*number);
          if (found != numbers_[s].end())
            mine = document_.add_int(found->second);
        } else if (from.is(key, Type::kString)) {
          const std::string name(from.text(key));
          const auto first = masters_.find(name);
          if (held(name) && (first == masters_.end() || first->second == s))
            mine = document_.add_string(name);
        }
        if (mine != kNoId)
          document_.set(made, mine, import(s, (*pairs)[i + 1]));
      }
    }
    return made;
  }

  Id groups() {
    const Document& from = from_[0].document();
    const Id made = document_.add_container(Type::kList);
    const auto list = list_of_groups(from_[0]);
    for (size_t g = 0; g < list.size(); ++g) {
      const Id dict = document_.add_container(Type::kDict);
      const auto pairs = from.as_pairs(list[g]);
      for (size_t i = 0; pairs && i + 1 < pairs->size(); i += 2) {
        const Id key = (*pairs)[i], value = (*pairs)[i + 1];
        Id mine = kNoId;
        if (from.is(key, Type::kString) && from.text(key) == "params") {
          mine = document_.add_container(Type::kList);
          for (const int64_t number : lists_[g])
            document_.append(mine, document_.add_int(number));
        } else {
          mine = import(0, value);
        }
        document_.set(dict, import(0, key), mine);
      }
      document_.append(made, dict);
    }
    return made;
  }

  const std::vector<Nesting>& from_;
  const Ranks& ranks_;
  const uint64_t stage_, tp_, dp_;
  const bool zero_;
  Document document_;
  std::vector<std::map<int64_t, int64_t>> numbers_;  // of each stage
  std::vector<std::vector<int64_t>> lists_;          // of each group
  std::vector<std::unordered_map<Id, Id>> substitutes_;
  std::map<std::string, size_t> masters_;  // the stage that they are taken of
  std::vector<torch::TensorSlot> slots_;
  std::vector<Place> places_;
};

Nesting nesting_of(const std::string& folder, const Step& step,
                   uint64_t stage) {
  Numbers numbers = step.ranks;
  numbers["p"] = stage;
  for (const char* rank : {"t", "d", "x"}) numbers[rank] = 0;
  Nesting one;
  one.path = io::join(folder, fill(step.pattern, numbers));
  one.catalog = torch::make_reader()->read_catalog(one.path, {});
  if (!one.catalog.skeleton || !one.catalog.skeleton->document)
    throw unfaithful_error({one.path, {}},
                           "has no nesting to be written again");
  one.names = names_of(one.catalog, one.path);
  return one;
}

}  // namespace

void add_states(const std::string& folder, const Step& step, const Ranks& ranks,
                const std::function<Tensor&(const std::string&)>& target_of,
                Target& target) {
  if (step.pattern.empty()) return;
  const bool zero = step.ranks.contains("D");
  Numbers numbers = step.ranks;
  numbers["x"] = 0;
  numbers["T"] = ranks.tp();
  numbers["P"] = ranks.pp();
  if (zero) numbers["D"] = ranks.dp();
  std::vector<Nesting> from;
  if (ranks.moves())
    for (uint64_t stage = 0; stage < step.ranks.at("P"); ++stage)
      from.push_back(nesting_of(folder, step, stage));
  for (uint64_t stage = 0; stage < ranks.pp(); ++stage) {
    if (!ranks.moves()) {
      from.clear();
      from.push_back(nesting_of(folder, step, stage));
    }
    for (uint64_t tp = 0; tp < ranks.tp(); ++tp)
      for (uint64_t dp = 0; dp < (zero ? ranks.dp() : 1); ++dp) {
        numbers["p"] = stage;
        numbers["t"] = tp;
        numbers["d"] = dp;
        StateFile one(from, ranks, stage, tp, dp, zero);
        const std::string path = fill(step.pattern, numbers);
        torch::FilePlan plan = one.plan(path);
        plan.file.path = path;
        const auto file = static_cast<uint32_t>(target.files.size());
        target.catalog.files.push_back(
            {.path = path, .size = plan.file.size, .fill = {}});
        target.files.push_back(std::move(plan.file));
        for (size_t i = 0; i < one.places().size(); ++i) {
          const StateFile::Place& place = one.places()[i];
          Tensor& tensor = target_of(place.tensor);
          const Piece piece{
              .box = Box::whole(tensor.shape),
              .flat = std::nullopt,
              .extent = {
                  .offset = plan.data_offsets[i], .strides = {}, .file = file}};
          if (place.scalar)
            tensor.pieces.push_back(piece);
          else if (place.run)
            add_run(place.share, *place.run, piece, tensor.dtype,
                    tensor.pieces);
          else
            add_pieces(place.share, piece, tensor.dtype, tensor.pieces);
        }
      }
  }
}

}  // namespace ckpt::runs::nanotron
