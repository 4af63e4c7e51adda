#include "formats/megatron/dist_target.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "ckpt/error.h"
#include "formats/megatron/common.h"
#include "formats/megatron/locate.h"
#include "formats/megatron/rules.h"
#include "formats/megatron/vocab.h"
#include "lib/io/file.h"

namespace ckpt::megatron {
namespace {

using Severity = Problem::Severity;

// The catalog's files are the first of the target's: it lists another one only
// if it lists all that come before.
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

// 0 if the args need not say another number.
uint64_t padded_vocabulary(const Catalog& source, const Facts& facts) {
  const uint64_t rows = vocabulary_rows(source);
  return facts.padded_vocab_size && *facts.padded_vocab_size != rows ? rows : 0;
}

}  // namespace

std::string directory_for(const Catalog& source) {
  if (!source.format.starts_with("megatron_") || source.root.empty()) return {};
  const std::string prefix = source.root + "/";
  if (source.path.starts_with(prefix)) return source.path.substr(prefix.size());
  return io::base_name(source.path);
}

Facts facts_with_shapes(const Catalog& source) {
  Facts facts = facts_of(source);
  infer_facts(source.tensors, facts);
  return facts;
}

DistSplit split_for(const Facts& facts, const Topology& topology) {
  const uint64_t tp = std::max<uint32_t>(1, topology.tp);
  const bool apart = facts.etp && facts.etp != facts.tp;
  return {.tp = tp,
          .etp = apart ? *facts.etp : tp,
          .ep = std::max<uint32_t>(1, topology.ep)};
}

void add_text(const std::string& path, std::string bytes, Target& target) {
  TargetFile& file = add_file(path, bytes.size(), target);
  if (!bytes.empty()) file.literals.push_back({0, std::move(bytes)});
}

void add_common(const Catalog& source, const Facts& facts,
                const std::string& directory, Target& target) {
  CommonTarget common =
      plan_common(source, topology_changes(facts, target.catalog.topology,
                                           padded_vocabulary(source, facts)));
  const std::string path = io::join(directory, kCommonFile);
  if (common.copy_of.empty())
    add_text(path, std::move(common.bytes), target);
  else
    add_copy(path, common.copy_of, target);
  for (const Problem& problem : common.problems)
    target.problems.push_back(problem);
  for (const Object& object : source.objects)
    if (is_common(source, object)) target.catalog.objects.push_back(object);
  if (!common.changed.empty())
    target.assumptions.push_back(fmt::format("changed in the args: {}",
                                             fmt::join(common.changed, ", ")));
}

void add_sidecars(const Catalog& source, const std::string& directory,
                  Target& target) {
  const bool keep = source.format.starts_with("megatron_");
  for (const Sidecar& sidecar : source.sidecars) {
    if (keep)
      add_copy(io::join(directory, sidecar.name), sidecar.path, target);
    else
      target.problems.push_back({Severity::kNote, "sidecar_left_out", "",
                                 sidecar.name, "is not copied"});
  }
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
