// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <set>
#include <unordered_map>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/hf/hf.h"
#include "containers/torch/many.h"
#include "formats/megatron/legacy.h"
#include "formats/megatron/legacy/assemble.h"
#include "formats/megatron/legacy/names.h"
#include "formats/megatron/legacy/objects.h"
#include "formats/megatron/legacy/scan.h"
#include "formats/megatron/locate.h"
#include "formats/megatron/model/old_names.h"
#include "formats/megatron/model/rules.h"
#include "formats/nemo/nemo.h"
#include "lib/io/file.h"
#include "lib/pickle/json.h"
#include "lib/text/format.h"
#include "lib/text/number.h"

namespace ckpt::megatron {
namespace {

using formats::ReadOptions;
using formats::Support;
using pickle::Document;
using pickle::Id;
using pickle::kNoId;

Support supports_legacy(const std::string& path) {
  const LegacyFound found = locate_legacy(path);
  return {found.place.has_value(), found.why};
}

LegacyPlace locate_or_throw(const std::string& path) {
  LegacyFound found = locate_legacy(path);
  if (found.place) return *found.place;
  throw missing_error({path, {}}, "is not a legacy Megatron checkpoint: {}",
                      found.why);
}

// Files written at different times don't make one checkpoint.
void check_same(const LegacyRank& first, const LegacyRank& rank) {
  const auto refuse = [&](const char* what, const auto& a, const auto& b) {
    throw input_error({rank.file.path, {}}, "{} is {}, in {} it is {}", what, b,
                      first.dir.name, a)
        .with_hint("the ranks' files are not of one checkpoint");
  };
  if (first.iteration.value_or(-1) != rank.iteration.value_or(-1))
    refuse("iteration", first.iteration.value_or(-1),
           rank.iteration.value_or(-1));
  if (first.version != rank.version)
    refuse("checkpoint_version", first.version, rank.version);
  const auto check = [&](const char* what, const std::optional<uint64_t>& a,
                         const std::optional<uint64_t>& b) {
    if (a != b) refuse(what, a.value_or(0), b.value_or(0));
  };
  check("args.tensor_model_parallel_size", first.facts.tp, rank.facts.tp);
  check("args.pipeline_model_parallel_size", first.facts.pp, rank.facts.pp);
  check("args.expert_model_parallel_size", first.facts.ep, rank.facts.ep);
  check("args.expert_tensor_parallel_size", first.facts.etp, rank.facts.etp);
  check("args.num_layers", first.facts.num_layers, rank.facts.num_layers);
}

using Place = std::array<uint64_t, 3>;  // tensor, expert, pipeline

Place place_of(const LegacyDir& dir) { return {dir.tp, dir.ep, dir.pp}; }

// Where args.rank says that the file was written. Megatron counts its ranks by
// tensor, data and pipeline, the first fastest, or by tensor, pipeline and data
// (--use-tp-pp-dp-mapping); experts are spread over the ranks of data.
std::optional<Place> place_by_args(const LegacyRank& rank) {
  const Document& document = rank.document();
  const Id args = args_dict(document, rank.find("args"));
  const Facts& facts = rank.facts;
  const auto mine = document.as_int(document.find(args, "rank"));
  const uint64_t tp = facts.tp.value_or(1), pp = facts.pp.value_or(1);
  const uint64_t experts = facts.etp.value_or(tp), cp = facts.cp.value_or(1);
  const uint64_t world = facts.world_size.value_or(0);
  const uint64_t ep = facts.ep.value_or(1);
  if (args == kNoId || !mine || *mine < 0 || tp * pp * cp * experts * ep == 0 ||
      world % (tp * pp * cp) != 0 || static_cast<uint64_t>(*mine) >= world)
    return std::nullopt;
  const auto number = static_cast<uint64_t>(*mine);
  const Id mapping = document.find(args, "use_tp_pp_dp_mapping");
  const bool last = mapping == kNoId || document.as_int(mapping) != 1;
  return Place{number % tp, number / experts % ep,
               last ? number / (world / pp) : number / (tp * cp) % pp};
}

// Refuses files that lie in each other's places. One that says nothing else
// than the others was not written by its rank: a converter's.
void check_places(const std::vector<LegacyRank>& ranks) {
  std::set<Place> places, said;
  const LegacyRank* moved = nullptr;
  for (const LegacyRank& rank : ranks) {
    const auto by_args = place_by_args(rank);
    if (!by_args) return;
    places.insert(place_of(rank.dir));
    said.insert(*by_args);
    if (!moved && *by_args != place_of(rank.dir)) moved = &rank;
  }
  if (!moved || said != places) return;
  const Place its = *place_by_args(*moved);
  const auto other = std::ranges::find_if(
      ranks, [&](const LegacyRank& rank) { return place_of(rank.dir) == its; });
  throw input_error(
      {moved->file.path, {}},
      "was written by the rank whose folder is {} (args.rank "
      "{}): ranks' files lie in each other's places",
      other->dir.name,
      *moved->document().as_int(moved->document().find(
          args_dict(moved->document(), moved->find("args")), "rank")))
      .with_hint("move each file back to its own folder");
}

uint64_t numbers_in(const LegacyDir& dir) {
  return uint64_t{1} + dir.second.has_value() + dir.third.has_value();
}

bool is_final_norm(std::string_view name) {
  return name.ends_with("final_layernorm.weight") ||
         name.ends_with("final_norm.weight");
}

// Which ends of a model a rank's file has.
struct Ends {
  bool embedding = false;
  bool final_norm = false;
};

Ends ends_of(const LegacyDir& dir, const ReadOptions& options) {
  Catalog aside;
  Ends ends;
  for (const LegacyChunk& chunk : read_legacy_rank(dir, aside, options).chunks)
    for (const LegacyEntry& entry : chunk) {
      ends.embedding = ends.embedding || is_word_embedding(entry.name);
      // Layers of multi-token prediction have norms of their own.
      ends.final_norm =
          ends.final_norm || (is_final_norm(entry.name) &&
                              entry.name.find("mtp.") == std::string::npos);
    }
  return ends;
}

// Pipeline ranks have one end each, expert ranks both. (With layers of
// multi-token prediction the last stage has an embedding, too.)
bool is_pipeline(const LegacyDir& first, const LegacyDir& later,
                 const ReadOptions& options) {
  return !ends_of(later, options).embedding ||
         !ends_of(first, options).final_norm;
}

// Without args the names of directories give the sizes. If there is one more
// number than tp's, the first two files that differ in it show what it counts.
void infer_sizes(const std::vector<LegacyDir>& dirs, Facts& facts,
                 Catalog& catalog, const ReadOptions& options) {
  uint64_t tp = 1, second = 1, third = 1;
  for (const LegacyDir& dir : dirs) {
    tp = std::max<uint64_t>(tp, dir.tp + uint64_t{1});
    second = std::max<uint64_t>(second, dir.second.value_or(0) + uint64_t{1});
    third = std::max<uint64_t>(third, dir.third.value_or(0) + uint64_t{1});
  }
  facts.tp = tp;
  facts.ep = third;
  facts.pp = second;
  if (third == 1 && second > 1) {
    const auto later = std::ranges::find_if(
        dirs, [](const LegacyDir& dir) { return dir.second == 1; });
    const auto first = std::ranges::find_if(
        dirs, [](const LegacyDir& dir) { return dir.second == 0; });
    if (later != dirs.end() && first != dirs.end() && numbers_in(*later) == 2 &&
        !is_pipeline(*first, *later, options))
      std::swap(facts.pp, facts.ep);
  }
  catalog.assumptions.push_back(
      fmt::format("no args in the files: tp={} pp={} ep={} from the names of "
                  "the directories",
                  *facts.tp, *facts.pp, *facts.ep));
}

// Whether fc1 is gated, by the shapes of one rank's tensors.
std::optional<bool> gated_by_shapes(const LegacyRank& rank) {
  std::vector<Tensor> tensors;
  for (const LegacyChunk& chunk : rank.chunks)
    for (const LegacyEntry& entry : chunk) {
      if (!entry.tensor) continue;
      Tensor& tensor = tensors.emplace_back();
      tensor.name = core_name(entry.name);
      tensor.shape = entry.tensor->shape;
      for (const auto& [old, now] :
           {std::pair("dense_h_to_4h.", "linear_fc1."),
            std::pair("dense_4h_to_h.", "linear_fc2.")})
        if (const size_t at = tensor.name.find(old); at != std::string::npos)
          tensor.name.replace(at, std::string_view(old).size(), now);
    }
  Facts found;
  infer_facts(tensors, found);
  return found.gated;
}

// The halves of a gated fc1 are joined separately. An activation's inputs and
// outputs can't be mistaken, so shapes take precedence over args.
void find_gated(const LegacyRank& rank, Facts& facts, Catalog& catalog) {
  const auto found = gated_by_shapes(rank);
  if (!found || facts.gated == found) return;
  if (facts.gated)
    catalog.problems.push_back(
        warning("args", {rank.file.path, {}},
                "args say that linear_fc1 is {}gated (swiglu), the "
                "shapes say that it is{}: shapes are believed",
                *found ? "not " : "", *found ? "" : " not"));
  facts.gated = found;
}

// NeMo's archives have a file instead of args; names give the sizes.
Facts nemo_facts(const std::vector<LegacyDir>& dirs, const std::string& path) {
  const auto args = nemo::read_args(path);
  if (!args) return {};
  pickle::Document document;
  Facts facts = read_facts(document, pickle::from_json(document, *args), path);
  facts.tp = 1;
  facts.pp = 1;
  for (const LegacyDir& dir : dirs) {
    facts.tp = std::max<uint64_t>(*facts.tp, uint64_t{dir.tp} + 1);
    facts.pp = std::max<uint64_t>(*facts.pp, dir.second.value_or(0) + 1);
  }
  return facts;
}

// The args of any file are those of all: some writers put them into only one.
Facts find_facts(const std::vector<LegacyDir>& dirs, const std::string& path,
                 Catalog& catalog, const ReadOptions& options) {
  Facts facts;
  for (const LegacyDir& dir : dirs) {
    if (facts.any) break;
    Catalog aside;
    const LegacyRank rank = read_legacy_rank(dir, aside, options);
    Facts found = rank.facts;
    find_gated(rank, found, catalog);
    if (found.any || !facts.gated) facts = found;
  }
  const std::string nemo = io::join(path, nemo::kConfig);
  if (!facts.any && io::is_file(nemo)) {
    const auto gated = facts.gated;
    facts = nemo_facts(dirs, nemo);
    if (gated) facts.gated = gated;
  }
  if (!facts.any) infer_sizes(dirs, facts, catalog, options);
  if (const auto heads = options.set.find("nh"); heads != options.set.end())
    facts.num_attention_heads = text::number(heads->second);
  return facts;
}

void add_claims(Catalog& catalog, LegacyStates::Form form) {
  std::unordered_map<std::string_view, const Tensor*> models;
  for (const Tensor& tensor : catalog.tensors)
    if (tensor.kind == Kind::model) models.emplace(tensor.name, &tensor);
  for (const Tensor& tensor : catalog.tensors) {
    if (tensor.state != "fp32_param" || tensor.dtype != DType::f32) continue;
    const auto model = models.find(tensor.param);
    if (model == models.end()) continue;
    const DType dtype = model->second->dtype;
    if (dtype != DType::bf16 && dtype != DType::f16 && dtype != DType::f32)
      continue;
    catalog.claims.push_back(
        {tensor.name, tensor.param,
         form == LegacyStates::Form::kFlat
             ? "where it lies in the flat buffer follows from the model's "
               "order"
             : "its number follows from the model's order"});
  }
}

void tell_strays(const LegacyScan& scan, Catalog& catalog) {
  constexpr size_t kMost = 32;
  for (size_t i = 0; i < std::min(scan.strays.size(), kMost); ++i) {
    const std::string base = io::base_name(scan.strays[i]);
    const bool state = base.starts_with("layer_wise_optimizer") ||
                       base == "optim.pt" || base.starts_with("mp_rank_");
    catalog.problems.push_back(
        {state ? Problem::Severity::kWarning : Problem::Severity::kNote,
         state ? "optimizer_unread" : "stray_file", scan.strays[i], "",
         state ? "optimizer state in a form that is not read; weights are"
               : "is not read"});
  }
  if (scan.strays.size() > kMost)
    catalog.problems.push_back(remark("stray_file", {catalog.path, {}},
                                      "{} more files are not read",
                                      scan.strays.size() - kMost));
}

// The distributed optimizer writes a file beside every model file. If one is
// missing, it was lost: a pipeline stage without its optimizer would resume
// from nothing.
void check_optimizers(const std::vector<LegacyDir>& dirs) {
  const auto lost = std::ranges::find_if(
      dirs, [](const LegacyDir& dir) { return dir.optimizer_file.empty(); });
  const auto count = static_cast<size_t>(std::ranges::count_if(
      dirs, [](const LegacyDir& dir) { return !dir.optimizer_file.empty(); }));
  if (lost == dirs.end() || count == 0) return;
  throw missing_error({io::join(lost->path, "distrib_optim.pt"), {}},
                      "is missing: {} of {} ranks have theirs", count,
                      dirs.size())
      .with_hint("fetch it again; for the weights alone move the others away");
}

// The width of an expert's hidden layer, if args give it.
std::optional<uint64_t> expert_ffn(const LegacyRank& rank) {
  const pickle::Document& document = rank.document();
  const auto width = document.as_int(document.find(
      args_dict(document, rank.find("args")), "moe_ffn_hidden_size"));
  if (width && *width > 0) return static_cast<uint64_t>(*width);
  return rank.facts.ffn_hidden_size;
}

// The states of one kind of optimizer, from all files.
struct AllStates {
  LegacyStates::Form form = LegacyStates::Form::kNone;
  std::vector<std::pair<DType, DType>> dtypes;

  void merge(const LegacyStates& states, const LegacyRank& rank) {
    if (states.form == LegacyStates::Form::kNone) return;
    if (form != LegacyStates::Form::kNone && form != states.form)
      throw input_error({rank.dir.path, {}},
                        "has its optimizer's state in another form than the "
                        "directories before it");
    form = states.form;
    for (const auto& pair : states.dtypes)
      if (!std::ranges::count(dtypes, pair)) dtypes.push_back(pair);
  }
};

Catalog begin_catalog(const std::string& path, const LegacyPlace& place) {
  Catalog catalog;
  catalog.format = "megatron_legacy";
  catalog.path = place.path;
  if (place.root) catalog.root = path;
  catalog.dialect = "mcore";
  if (!place.chosen.empty()) catalog.assumptions.push_back(place.chosen);
  if (!place.warning.empty())
    catalog.problems.push_back(
        warning("tracker", {path, {}}, "{}", place.warning));
  return catalog;
}

// Adds a config.json, and what goes with it, among the ranks' directories or
// beside the step's.
void add_model_files(Catalog& catalog) {
  const auto has_config = [](const std::string& directory) {
    return io::is_file(io::join(directory, "config.json"));
  };
  if (has_config(catalog.path))
    return formats::add_sidecars(catalog.path, catalog);
  const std::string step = io::base_name(catalog.path);
  const std::string root = io::parent(catalog.path);
  if ((step == "release" || iteration_number(step)) && has_config(root))
    formats::add_sidecars(root, catalog);
}

Catalog read_catalog_legacy(const std::string& path,
                            const ReadOptions& options) {
  const LegacyPlace place = locate_or_throw(path);
  Catalog catalog = begin_catalog(path, place);
  LegacyScan scan = scan_legacy(place.path);
  const Facts facts = find_facts(scan.dirs, place.path, catalog, options);
  resolve_legacy(scan.dirs, facts, place.path);
  check_optimizers(scan.dirs);
  LegacySizes sizes = legacy_sizes(facts, place.path);

  std::vector<LegacyRank> ranks;
  std::vector<std::string> files;
  for (const LegacyDir& dir : scan.dirs) files.push_back(dir.model_file);
  torch::open_each(files, catalog, options, [&](size_t i, auto file) {
    LegacyRank& rank =
        ranks.emplace_back(read_legacy_rank(scan.dirs[i], std::move(file)));
    if (!rank.facts.any) rank.facts = facts;
    check_same(ranks.front(), rank);
  });
  check_places(ranks);
  sizes.expert_ffn = expert_ffn(ranks.front());
  catalog.version = fmt::format("{:.1f}", ranks.front().version);
  catalog.topology = topology_of(facts);
  const LegacyNumbering numbering(ranks, facts, place.path);
  const auto order = global_order(ranks, numbering, sizes.ep);

  LegacyAssembler assembler(
      catalog, facts, sizes, numbering,
      options.shard_dims_file.empty()
          ? families::Rules()
          : families::Rules::from_file(options.shard_dims_file));
  assembler.add_order(order);
  for (const LegacyRank& rank : ranks) assembler.add_model(rank);
  AllStates all;
  for (const LegacyRank& rank : ranks) {
    const LegacyStates states =
        read_legacy_states(rank, sizes.tied, catalog, options);
    all.merge(states, rank);
    assembler.add_states(rank, states);
  }
  assembler.finish();
  add_claims(catalog, all.form);
  add_legacy_objects(ranks, order, numbering, all.dtypes, catalog);
  tell_strays(scan, catalog);
  add_model_files(catalog);
  return catalog;
}

}  // namespace

std::unique_ptr<formats::Reader> make_legacy_reader() {
  return formats::reader_of("megatron_legacy", supports_legacy,
                            read_catalog_legacy);
}

}  // namespace ckpt::megatron
