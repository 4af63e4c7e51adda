// SPDX-License-Identifier: Apache-2.0
#include "formats/megatron/dist/target.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "formats/megatron/canonical/review.h"
#include "formats/megatron/locate.h"
#include "formats/megatron/model/keys.h"
#include "formats/megatron/model/rules.h"
#include "formats/megatron/model/stage_split.h"
#include "formats/megatron/model/vocab.h"
#include "formats/megatron/options.h"
#include "formats/megatron/state/common.h"
#include "formats/megatron/state/run_config.h"
#include "formats/target.h"
#include "lib/io/file.h"

namespace ckpt::megatron {
namespace {

using Severity = Problem::Severity;

constexpr std::string_view kZarr = "megatron_zarr";
constexpr uint64_t kMostConfig = uint64_t{16} << 20;

// The catalog's files are the target's first ones: it lists another file only
// if it lists all before it.
TargetFile& add_file(const std::string& path, uint64_t size, Target& target) {
  if (target.catalog.files.size() == target.files.size())
    target.catalog.files.push_back({.path = path, .size = size});
  TargetFile& file = target.files.emplace_back();
  file.path = path;
  file.size = size;
  return file;
}

void add_copy(const std::string& path, const std::string& from,
              Target& target) {
  const uint64_t size = io::Handle::open_read(from).size();
  add_file(path, size, target).copy_of = from;
}

// 0 if the number in the args need not change.
uint64_t padded_vocabulary(const Catalog& source, const Facts& facts) {
  const uint64_t rows = vocabulary_rows(source);
  return facts.padded_vocab_size && *facts.padded_vocab_size != rows ? rows : 0;
}

// What the command line says about the job, for args that have a place for it.
void add_wanted(const Catalog& source, const Layout& layout,
                std::vector<ArgChange>& changes) {
  const Wanted wanted = wanted_of(layout);
  if (wanted.etp != 0)
    changes.push_back({"expert_tensor_parallel_size", wanted.etp});
  if (wanted.vocab_multiple != 0)
    changes.push_back({"make_vocab_size_divisible_by", wanted.vocab_multiple});
  if (wanted.stage_layers.empty()) return;
  uint64_t prediction = 0;
  for (const Tensor& tensor : source.tensors)
    if (const Key key = parse_key(tensor.name);
        key.name.starts_with("mtp.layers.") && key.layer)
      prediction = std::max(prediction, *key.layer + 1);
  StageSplit split{.layers = wanted.stage_layers};
  describe_stages(split, prediction);
  changes.push_back({"decoder_first_pipeline_num_layers", split.first_stage});
  changes.push_back({"decoder_last_pipeline_num_layers", split.last_stage});
  changes.push_back(
      {"pipeline_model_parallel_layout", std::nullopt, split.notation});
}

}  // namespace

std::string directory_for(const Catalog& source) {
  if (const auto directory = canonical_directory(source)) return *directory;
  if (!source.format.starts_with("megatron_") || source.root.empty()) return {};
  const std::string prefix = source.root + "/";
  const std::string inside = source.path.starts_with(prefix)
                                 ? source.path.substr(prefix.size())
                                 : io::base_name(source.path);
  // From another trainer's folder only the container is written.
  if (source.run && !iteration_number(inside.substr(0, inside.find('/'))))
    return {};
  return inside;
}

Facts facts_with_shapes(const Catalog& source, const KeyList& keys) {
  Facts facts = facts_of(source);
  infer_facts(source.tensors, keys, facts);
  return facts;
}

Facts facts_with_shapes(const Catalog& source) {
  Facts facts = facts_of(source);
  infer_facts(source.tensors, facts);
  return facts;
}

DistSplit split_for(const Facts& facts, const Layout& layout) {
  const uint64_t tp = std::max<uint32_t>(1, layout.topology.tp);
  const bool apart = facts.etp && facts.etp != facts.tp;
  uint64_t etp = apart ? *facts.etp : tp;
  if (const uint32_t asked = wanted_of(layout).etp; asked != 0) etp = asked;
  return {
      .tp = tp, .etp = etp, .ep = std::max<uint32_t>(1, layout.topology.ep)};
}

void add_text(const std::string& path, std::string bytes, Target& target) {
  TargetFile& file = add_file(path, bytes.size(), target);
  if (!bytes.empty()) file.literals.push_back({0, std::move(bytes)});
}

void add_common(const Catalog& source, const Facts& facts, const Layout& layout,
                const std::string& directory, Target& target) {
  std::vector<ArgChange> changes = topology_changes(
      facts, target.catalog.topology, padded_vocabulary(source, facts));
  add_wanted(source, layout, changes);
  const bool old_core =
      layout.format == kZarr && source.format != layout.format;
  CommonTarget common = plan_common(source, changes, old_core);
  const std::string path = io::join(directory, kCommonFile);
  if (common.copy_of.empty())
    add_text(path, std::move(common.bytes), target);
  else
    add_copy(path, common.copy_of, target);
  for (const Problem& problem : common.problems)
    target.problems.push_back(problem);
  for (const Object& object : source.objects)
    if (is_common(source, object)) target.catalog.objects.push_back(object);
  if (!common.plain.empty())
    target.problems.push_back(
        remark("plain_values", {{}, std::string(kArgs)},
               "members of {} are written as their values: "
               "megatron-core 0.9, which loads zarr, has no such class",
               fmt::join(common.plain, ", ")));
  if (!common.changed.empty())
    target.assumptions.push_back(fmt::format("changed in the args: {}",
                                             fmt::join(common.changed, ", ")));
}

namespace {

// Megatron-Bridge reads ranks from it, so it must have the target's.
void add_run_config(const Catalog& source, const Layout& layout,
                    const std::string& directory, Target& target) {
  const auto path = run_config_path(source);
  if (!path) return;
  const families::Config config = run_config(source);
  std::vector<ArgChange> wanted;
  add_wanted(source, layout, wanted);
  const std::string text = io::read_file(*path, kMostConfig);
  std::string edited =
      edit_yaml(*path, text,
                run_config_changes(config, target.catalog, std::move(wanted)));
  if (edited == text) return;
  target.files.push_back(formats::literal_file(
      io::join(directory, kRunConfigFile), std::move(edited)));
  for (const SourceFile& one : source.file_list)
    if (io::join(source.file_root, one.path) == *path)
      target.fates.push_back({one.path, Fate::kConverted, {}});
  target.assumptions.push_back(
      fmt::format("{} says the target's ranks", kRunConfigFile));
}

}  // namespace

void add_sidecars(const Catalog& source, const Layout& layout,
                  const std::string& directory, Target& target) {
  // With its config.json a model can go back to transformers.
  const bool keep =
      source.format.starts_with("megatron_") || source.dialect == "mcore";
  target.beside = directory;
  add_run_config(source, layout, directory, target);
  const std::string run_config = io::join(directory, kRunConfigFile);
  const bool edited = std::ranges::any_of(
      target.files,
      [&](const TargetFile& file) { return file.path == run_config; });
  for (const Sidecar& sidecar : source.sidecars)
    if (edited && sidecar.name == kRunConfigFile && !sidecar.text)
      continue;
    else if (keep || sidecar.text)
      target.files.push_back(
          formats::copied_file(io::join(directory, sidecar.name), sidecar));
}

void add_tracker(const std::string& directory, Target& target) {
  const std::string first = directory.substr(0, directory.find('/'));
  std::string word = first;
  if (const auto iteration = iteration_number(first))
    word = std::to_string(*iteration);
  else if (first != "release")
    return;
  add_text(kTracker, std::move(word), target);
}

}  // namespace ckpt::megatron
