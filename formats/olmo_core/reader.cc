// SPDX-License-Identifier: Apache-2.0
// Reads a checkpoint of OLMo-core since 1.0.0 (olmo_core.h).
#include <algorithm>
#include <set>

#include "ckpt/error.h"
#include "ckpt/note.h"
#include "containers/hf/numbered.h"
#include "formats/dcp/directory.h"
#include "formats/dcp/metadata.h"
#include "formats/dcp/nest.h"
#include "formats/olmo_core/config.h"
#include "formats/olmo_core/locate.h"
#include "formats/olmo_core/names.h"
#include "formats/olmo_core/olmo_core.h"
#include "formats/olmo_core/shards.h"
#include "formats/olmo_core/sidecars.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::olmo_core {
namespace {

using formats::ReadOptions;
using formats::Support;
using text::printable;
using Severity = Problem::Severity;

[[noreturn]] void throw_unfinished(const Found& found) {
  throw input_error({found.data, {}},
                    "has no .metadata, which is written after all data files: "
                    "incomplete save")
      .with_hint(
          "use an earlier step; if this one was copied, look whether names "
          "that begin with a dot were left out");
}

// The number of ranks that stored something, by the names of the files.
uint32_t count_ranks(const dcp::Metadata& metadata) {
  std::set<uint32_t> ranks;
  for (const std::string& name : metadata.files)
    if (const auto rank = dcp::rank_of(name)) ranks.insert(*rank);
  return std::max<uint32_t>(1, static_cast<uint32_t>(ranks.size()));
}

// Files of an earlier, larger run remain when a save goes to the same place.
void note_strays(const std::string& directory, const dcp::Metadata& metadata,
                 Catalog& catalog) {
  std::vector<std::string> named = metadata.files;
  std::ranges::sort(named);
  std::vector<std::string> strays;
  for (const std::string& name : io::list_directory(directory)) {
    if (name == kIndex || !is_part_name(name) ||
        std::ranges::binary_search(named, name))
      continue;
    // A rank with nothing to save leaves an empty file.
    if (io::file_size(io::join(directory, name)).value_or(0) > 0)
      strays.push_back(name);
  }
  if (!strays.empty())
    catalog.problems.push_back(
        remark("unnamed_file", {directory, {}},
               "the index does not name {}: of an earlier save, maybe; "
               "ignored",
               formats::list_some(strays)));
}

void note_names(std::string_view dialect, const dcp::Metadata& metadata,
                Catalog& catalog) {
  if (dialect == kDirectDialect)
    catalog.problems.push_back(remark(
        "flat_parameters", {metadata.path, {}},
        "holds flat fp32 master weights (<parameter>.main): the shapes of "
        "the parameters, and the weights in use, are not stored"));
  else if (dialect.empty())
    catalog.problems.push_back(remark(
        "foreign_keys", {metadata.path, {}},
        "its keys are not the model.* and optim.* of OLMo-core's trainer; "
        "they are shown as they are"));
}

void note_followed(const Found& found, const std::string& path,
                   Catalog& catalog) {
  if (!found.chosen.empty())
    catalog.assumptions.push_back(
        fmt::format("{}: the newest complete checkpoint in {}",
                    printable(found.chosen), printable(path)));
  for (const std::string& name : found.unfinished)
    catalog.problems.push_back(
        warning("unfinished_save", {io::join(path, name), {}},
                "{} is newer, but an incomplete save; {} is read",
                printable(name), printable(found.chosen)));
  if (found.home.ends_with("-tmp"))
    catalog.problems.push_back(
        warning("unfinished_save", {found.home, {}},
                "named as an incomplete save; its tensors are complete, "
                "what lies beside them may not be"));
}

class OlmoReader final : public formats::Reader {
 public:
  std::string_view name() const override { return kFormat; }

  Support supports(const std::string& path) const override {
    const Found found = locate(path);
    return {!found.home.empty(), found.why};
  }

  Catalog read_catalog(const std::string& path,
                       const ReadOptions& options) const override {
    Found found = locate(path);
    if (found.home.empty()) found = forced(path, found);
    if (!found.finished) throw_unfinished(found);
    dcp::Metadata metadata =
        dcp::read_metadata(io::join(found.data, kIndex), options);
    dcp::check_cover(metadata);
    const Names names = shorten(metadata);
    Catalog catalog;
    catalog.format = kFormat;
    catalog.path = found.home;
    if (found.home != path) catalog.root = path;
    catalog.version = note_version(found.home).value_or("");
    catalog.family = options.family;
    dcp::add_to_catalog(metadata, catalog, options);
    dcp::add_nest(metadata, catalog, options);
    set_kinds(catalog, names);
    if (names.dialect == kDialect) set_rules(catalog);
    catalog.topology = topology_of(catalog, count_ranks(metadata));
    note_followed(found, path, catalog);
    note_names(names.dialect, metadata, catalog);
    note_strays(found.data, metadata, catalog);
    add_sidecars(found.home, catalog);
    check_train_files(found.home, catalog, options);
    read_family(io::join(found.home, "config.json"), catalog);
    return catalog;
  }

 private:
  // --from olmo_core: any directory with an index.
  static Found forced(const std::string& path, const Found& found) {
    const std::string home = io::is_directory(path) ? path : io::parent(path);
    if (!io::is_file(io::join(home, kIndex)))
      throw missing_error({path, {}}, "is not a checkpoint of OLMo-core: {}",
                          found.why);
    return {.why = {}, .home = home, .data = home, .finished = true};
  }
};

}  // namespace

std::unique_ptr<formats::Reader> make_reader() {
  return std::make_unique<OlmoReader>();
}

}  // namespace ckpt::olmo_core
