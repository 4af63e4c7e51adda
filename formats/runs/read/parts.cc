// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/read/parts.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include "ckpt/error.h"
#include "formats/megatron/model/facts.h"
#include "formats/rank_cut.h"
#include "formats/rank_share.h"
#include "formats/runs/find/file_names.h"
#include "formats/runs/find/pattern.h"
#include "formats/runs/merge.h"
#include "formats/runs/objects.h"
#include "formats/torch/torch.h"
#include "lib/in_order.h"
#include "lib/io/file.h"
#include "lib/pickle/config.h"
#include "lib/text/format.h"
#include "lib/text/other_json.h"
#include "models/family.h"
#include "models/numbers.h"
#include "models/rules.h"

namespace ckpt::runs {
namespace {

using families::Json;
using text::printable;

constexpr uint64_t kMostPartsConfig = uint64_t{4} << 20;
constexpr std::string_view kOfOnePartFile[] = {"missing_parts"};

// The files, by stage, and by rank in it.
struct PartGrid {
  uint64_t ranks = 0, stages = 0;
  std::vector<std::string> names;  // stage * ranks + rank
};

PartGrid part_grid_of(const std::string& folder, const std::string& pattern) {
  constexpr uint64_t kMost = 1 << 16;
  std::map<std::pair<uint64_t, uint64_t>, std::string> found;
  PartGrid grid;
  for (const Name& name : names_like(folder, pattern)) {
    const auto number = [&](const char* what) {
      const auto at = name.numbers.find(what);
      return at == name.numbers.end() ? uint64_t{0} : at->second;
    };
    const uint64_t rank = number("t"), stage = number("p");
    if (rank >= kMost || stage >= kMost)
      throw input_error({io::join(folder, name.path), {}},
                        "is of a rank beyond {}", kMost);
    grid.ranks = std::max(grid.ranks, rank + 1);
    grid.stages = std::max(grid.stages, stage + 1);
    found.emplace(std::pair(stage, rank), name.path);
  }
  for (uint64_t stage = 0; stage < grid.stages; ++stage)
    for (uint64_t rank = 0; rank < grid.ranks; ++rank) {
      const auto at = found.find({stage, rank});
      if (at == found.end())
        throw input_error(
            {io::join(folder, fill(pattern, {{"t", rank}, {"p", stage}})), {}},
            "is missing: {} of {} ranks' files are there", found.size(),
            grid.ranks * grid.stages)
            .with_hint("fetch the files of all ranks");
      grid.names.push_back(at->second);
    }
  return grid;
}

// A tensor in the files of one stage.
struct TensorParts {
  Tensor whole;               // as the first rank has it, without pieces
  std::vector<size_t> ranks;  // of each piece
  std::vector<Piece> pieces;  // all of a rank's part
  std::string file;           // of the first rank that has it
};

struct PartStage {
  std::map<std::string, TensorParts> parts;
  std::vector<std::string> order;  // names, as they come
};

// How a dialect's rules share a name, and which layer it is of.
struct PartRule {
  const families::Rule* rule = nullptr;
  std::string prefix;
  std::optional<uint64_t> layer;
  std::string pattern;  // of the name
  // Of what the rule joins, the name is one part.
  bool alone = false;
};

class PartsReader {
 public:
  PartsReader(const std::string& folder, const Source& source,
              const formats::ReadOptions& options)
      : folder_(folder), source_(source), options_(options) {
    if (const size_t dot = source.rules.find('.'); dot != std::string::npos) {
      family_ = families::Family::by_name(source.rules.substr(0, dot));
      dialect_ = family_->dialect(source.rules.substr(dot + 1));
    } else {
      find_family();
    }
    if (!options.shard_dims_file.empty())
      user_ = families::Rules::from_file(options.shard_dims_file);
  }

  Catalog read() {
    grid_ = part_grid_of(folder_, source_.file);
    catalog_.path = folder_;
    read_files();
    check_world();
    if (grid_.ranks > 1) read_numbers();
    uint64_t first = 0;  // layer of the stage
    for (uint64_t stage = 0; stage < grid_.stages; ++stage)
      first += add_stage(stage, first);
    catalog_.topology.tp = static_cast<uint32_t>(grid_.ranks);
    catalog_.topology.pp = static_cast<uint32_t>(grid_.stages);
    return std::move(catalog_);
  }

 private:
  void read_files() {
    const auto reader = torch::make_reader();
    formats::ReadOptions options = options_;
    options.rank_files = true;
    const auto paths = io::join_each(folder_, grid_.names);
    stages_.resize(grid_.stages);
    in_order<Catalog>(
        paths.size(),
        [&](size_t f) { return reader->read_catalog(paths[f], options); },
        [&](size_t f, Catalog one) { take(f, paths[f], std::move(one)); });
  }

  void take(size_t f, const std::string& path, Catalog one) {
    const uint64_t rank = f % grid_.ranks;
    catalog_.format = one.format;
    catalog_.version = one.version;
    std::vector<Tensor> tensors = std::move(one.tensors);
    one.tensors.clear();
    if (f > 0) one.objects.clear();  // each file has them
    const auto files = static_cast<uint32_t>(catalog_.files.size());
    Merger(catalog_).add(std::move(one), kOfOnePartFile);
    for (Tensor& tensor : tensors) {
      if (tensor.name.find("flat_param") != tensor.name.npos)
        refuse(path, "holds flat parameters of FSDP");
      if (tensor.pieces.size() != 1)
        throw input_error({path, printable(tensor.name)},
                          "is a part of a distributed tensor");
      Piece piece = std::move(tensor.pieces[0]);
      piece.extent.file += files;
      tensor.pieces.clear();
      tensor.tie = 0;
      PartStage& stage = stages_[f / grid_.ranks];
      const auto [at, is_new] = stage.parts.try_emplace(tensor.name);
      TensorParts& part = at->second;
      if (is_new) {
        stage.order.push_back(tensor.name);
        part.whole = std::move(tensor);
        part.file = path;
      } else if (part.whole.dtype != tensor.dtype ||
                 part.whole.shape != tensor.shape) {
        throw input_error({path, printable(tensor.name)},
                          "is {} {}, in {} {} {}", name(tensor.dtype),
                          to_string(tensor.shape),
                          printable(io::base_name(part.file)),
                          name(part.whole.dtype), to_string(part.whole.shape));
      }
      part.ranks.push_back(rank);
      part.pieces.push_back(std::move(piece));
    }
  }

  // The last ranks' files may be missing without a gap.
  void check_world() const {
    const size_t dot = source_.world.find('.');
    for (const Object& object : catalog_.objects) {
      if (dot == std::string::npos || !object.document ||
          object.name != source_.world.substr(0, dot))
        continue;
      const pickle::Document& document = *object.document;
      pickle::Id at = object.node;
      for (size_t begin = dot;
           begin != std::string::npos && at != pickle::kNoId;) {
        const size_t end = source_.world.find('.', begin + 1);
        const pickle::Id dict = megatron::args_dict(document, at);
        at = dict == pickle::kNoId
                 ? dict
                 : document.find(
                       dict, source_.world.substr(begin + 1, end - begin - 1));
        begin = end;
      }
      if (at == pickle::kNoId) continue;
      const auto ranks = document.as_int(at);
      if (ranks && *ranks != static_cast<int64_t>(grid_.ranks))
        throw input_error({folder_, {}},
                          "holds the files of {} ranks, {} says {}",
                          grid_.ranks, source_.world, *ranks)
            .with_hint("fetch the files of all ranks");
    }
  }

  // Transformers' names, whose ranks share what Megatron's do: config.json says
  // of which family they are. Without it, nothing does.
  void find_family() {
    transformers_ = true;
    const std::string path = io::join(folder_, "config.json");
    const auto bytes = io::is_file(path) ? io::file_size(path) : std::nullopt;
    if (!bytes || *bytes > kMostPartsConfig) return;
    config_ =
        text::parse_or_discard<Json>(io::read_file(path, kMostPartsConfig));
    if (!config_.is_object()) return;
    family_ = families::Family::for_config(config_);
    if (family_) dialect_ = family_->dialect("mcore");
  }

  [[noreturn]] void refuse(const std::string& path,
                           const std::string& what) const {
    throw unfaithful_error({path, {}}, "{}", what).with_hint(source_.hint);
  }

  // What the dialect's cuts depend on: the configuration, and the shapes of the
  // first rank's parts.
  void read_numbers() {
    Json values = Json::object();
    std::string said;
    if (!source_.config.empty()) {
      const std::string path = io::join(folder_, source_.config);
      if (!io::is_file(path))
        throw missing_error({path, {}},
                            "is not there: how {} ranks share the tensors "
                            "depends on it",
                            grid_.ranks);
      Values read;
      Catalog one;
      add_object(path, "config", options_, read, one);
      for (const Object& object : one.objects) {
        if (!object.document) continue;
        const pickle::Document& document = *object.document;
        const pickle::Id dict = megatron::args_dict(document, object.node);
        values = pickle::to_config(document,
                                   dict == pickle::kNoId ? object.node : dict);
      }
      if (!values.is_object() || pickle::is_foreign(values))
        throw input_error({path, {}}, "expected a dict of the model's numbers");
      said = source_.config;
    }
    Json shapes = Json::object();
    for (const PartStage& stage : stages_)
      for (const auto& [full, part] : stage.parts)
        shapes.emplace(full, part.whole.shape);
    if (transformers_) {
      if (dialect_ != nullptr)
        numbers_.emplace(family_, *dialect_, "hf", config_, "config.json");
      return;
    }
    values["shapes"] = std::move(shapes);
    numbers_.emplace(family_, *dialect_, dialect_->name, std::move(values),
                     said);
  }

  PartRule transformers_rule_of(const std::string& full) const {
    if (dialect_ == nullptr) return {};
    const std::string name = family_->normal_name(full);
    for (const families::Rule& rule : dialect_->rules)
      for (const std::string& pattern : rule.hf) {
        if (pattern.find('$') != pattern.npos) continue;
        const auto numbers = match(pattern, name);
        if (!numbers) continue;
        PartRule one{.rule = &rule,
                     .prefix = {},
                     .layer = {},
                     .pattern = pattern,
                     .alone = rule.hf.size() > 1};
        if (const auto l = numbers->find("l"); l != numbers->end())
          one.layer = l->second;
        return one;
      }
    return {};
  }

  // The first rule of that name: others of the same name cut it alike.
  PartRule rule_of(const std::string& full) const {
    if (transformers_) return transformers_rule_of(full);
    for (const std::string& prefix : source_.prefixes) {
      if (!full.starts_with(prefix)) continue;
      const std::string_view name =
          std::string_view(full).substr(prefix.size());
      for (const families::Rule& rule : dialect_->rules)
        if (const auto numbers = match(rule.to, name)) {
          PartRule one{
              .rule = &rule, .prefix = prefix, .layer = {}, .pattern = rule.to};
          if (const auto l = numbers->find("l"); l != numbers->end())
            one.layer = l->second;
          return one;
        }
    }
    return {};
  }

  // True if the names of all stages are different: layers have the numbers of
  // the whole model.
  bool counts_on() {
    if (!transformers_) return false;
    if (!counts_on_) {
      std::set<std::string> names;
      counts_on_ = std::ranges::all_of(stages_, [&](const PartStage& stage) {
        return std::ranges::all_of(stage.order, [&](const std::string& name) {
          return names.insert(name).second;
        });
      });
    }
    return *counts_on_;
  }

  // Returns how many layers the stage has.
  uint64_t add_stage(uint64_t stage, uint64_t first) {
    std::set<uint64_t> layers;
    for (const std::string& full : stages_[stage].order) {
      TensorParts& part = stages_[stage].parts.at(full);
      const PartRule found = rule_of(full);
      if (found.layer) layers.insert(*found.layer);
      join(part, found);
      if (grid_.stages > 1 && !counts_on()) renumber(part, found, stage, first);
      catalog_.tensors.push_back(std::move(part.whole));
    }
    if (grid_.stages > 1 && !counts_on() && !layers.empty() &&
        (*layers.begin() != 0 || *layers.rbegin() + 1 != layers.size()))
      throw input_error({folder_, {}},
                        "stage {} has {} layers, numbered from {} to {}: each "
                        "stage counts its own from 0",
                        stage, layers.size(), *layers.begin(),
                        *layers.rbegin());
    return layers.size();
  }

  void renumber(TensorParts& part, const PartRule& found, uint64_t stage,
                uint64_t first) {
    Tensor& tensor = part.whole;
    if (found.layer)
      tensor.name =
          found.prefix + fill(found.pattern, {{"l", first + *found.layer}});
    else if (found.rule == nullptr)
      throw unfaithful_error({part.file, printable(tensor.name)},
                             "has no rule under that name, and stage {} counts "
                             "its layers by itself",
                             stage)
          .with_hint(source_.hint);
    if (!names_.insert(tensor.name).second)
      throw input_error({part.file, printable(tensor.name)},
                        "is in the files of two stages");
  }

  void join(TensorParts& part, const PartRule& found) {
    Tensor& tensor = part.whole;
    const bool mine = user_.tp(tensor.name).state != TpRule::State::kUnknown;
    if (found.rule == nullptr || mine || grid_.ranks == 1) {
      check_ranks(part, false);
      tensor.pieces = std::move(part.pieces);
      if (grid_.ranks > 1)
        formats::share_by_rule(tensor, part.ranks, grid_.ranks, user_,
                               catalog_);
      return;
    }
    check_ranks(part, !found.rule->tp);
    const auto ranks = static_cast<uint32_t>(grid_.ranks);
    const formats::Cut cut = cut_of(part, *found.rule, found.alone);
    if (!formats::join_parts(cut, ranks, tensor))
      throw input_error({part.file, printable(tensor.name)},
                        "{} {} can't be made of {} ranks' parts",
                        name(tensor.dtype), to_string(tensor.shape), ranks);
    for (size_t i = 0; i < part.pieces.size(); ++i)
      formats::add_pieces(cut, ranks, static_cast<uint32_t>(part.ranks[i]),
                          part.pieces[i].extent, part.pieces[i].transform,
                          tensor);
    tensor.tp = cut.whole()
                    ? TpRule::replicated()
                    : TpRule::split(cut.dim,
                                    static_cast<uint32_t>(cut.segments.size()));
  }

  // `alone`: the first rank may be the only one that has it, as a bias that is
  // added behind the sum of the ranks' products.
  void check_ranks(const TensorParts& part, bool alone) const {
    if (part.ranks.size() == grid_.ranks) return;
    if (alone && part.ranks.size() == 1 && part.ranks[0] == 0) return;
    throw input_error({part.file, printable(part.whole.name)},
                      "is in the files of {} of {} ranks", part.ranks.size(),
                      grid_.ranks)
        .with_hint("the files are of different saves; fetch them again");
  }

  formats::Cut cut_of(const TensorParts& part, const families::Rule& rule,
                      bool alone) const {
    if (!rule.tp) return {};
    const Tensor& tensor = part.whole;
    const uint64_t dim = numbers_->whole(rule.tp->dim, {}, "its dimension");
    const uint32_t groups = alone ? 1 : rule.tp->parts;
    const auto size =
        dim < tensor.shape.size()
            ? formats::whole_size(tensor.shape[dim],
                                  static_cast<uint32_t>(grid_.ranks))
            : std::nullopt;
    if (!size || tensor.shape[dim] % groups != 0)
      throw input_error({part.file, printable(tensor.name)},
                        "has shape {}, and ranks share {} parts of dimension "
                        "{}",
                        to_string(tensor.shape), groups, dim);
    return formats::Cut::even(static_cast<uint32_t>(dim), *size, groups);
  }

  const std::string& folder_;
  const Source& source_;
  const formats::ReadOptions& options_;
  std::shared_ptr<const families::Family> family_;
  const families::Dialect* dialect_ = nullptr;
  families::Rules user_;
  bool transformers_ = false;  // the names are
  Json config_;                // then: config.json
  std::optional<bool> counts_on_;
  std::optional<families::Numbers> numbers_;
  PartGrid grid_;
  std::vector<PartStage> stages_;
  std::set<std::string> names_;  // of the stages so far
  Catalog catalog_;
};

}  // namespace

Catalog read_parts(const std::string& folder, const Source& source,
                   const formats::ReadOptions& options) {
  return PartsReader(folder, source, options).read();
}

}  // namespace ckpt::runs
