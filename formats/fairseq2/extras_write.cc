// SPDX-License-Identifier: Apache-2.0
#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "ckpt/note.h"
#include "formats/beside.h"
#include "formats/fairseq2/extras.h"
#include "formats/target.h"
#include "lib/io/file.h"

namespace ckpt::fairseq2 {
namespace {

using io::join;

std::vector<const Sidecar*> below(const Catalog& source,
                                  const std::string& directory) {
  std::vector<const Sidecar*> found;
  for (const Sidecar& sidecar : source.sidecars)
    if (sidecar.name.starts_with(directory + "/")) found.push_back(&sidecar);
  return found;
}

const Sidecar* named(const Catalog& source, std::string_view name) {
  const auto found = std::ranges::find(source.sidecars, name, &Sidecar::name);
  return found == source.sidecars.end() ? nullptr : &*found;
}

void add_copy(Target& target, std::string path, const Sidecar& from) {
  target.files.push_back(formats::copied_file(std::move(path), from));
}

void warn(Target& target, const char* kind, std::string message) {
  target.problems.push_back(warning(kind, {}, "{}", std::move(message)));
}

// One file per process: the source's own if the grid is the same, else copies
// of the first one.
void write_trainer(const Catalog& source, const Topology& grid,
                   uint64_t replicas, const std::string& step, Target& target) {
  const auto files = below(source, "trainer");
  if (files.empty()) return;
  const Topology& old = source.topology;
  if (old.tp == grid.tp && old.pp == grid.pp && old.dp == grid.dp) {
    for (const Sidecar* file : files)
      add_copy(target, join(step, file->name), *file);
    return;
  }
  const Sidecar* first = named(source, "trainer/rank_00.pt");
  for (const Sidecar* file : files)
    if (file != first)
      formats::leave_out(*file, source,
                         "each rank of the other topology has a copy of the "
                         "first one's",
                         target);
  if (first == nullptr)
    return warn(target, "trainer", "trainer state: no rank_00.pt to copy");
  const uint64_t processes = replicas * grid.tp * grid.pp * grid.dp;
  for (uint64_t rank = 0; rank < processes; ++rank)
    add_copy(target,
             join(step, fmt::format("trainer/{}.pt", numbered("rank_", rank))),
             *first);
  target.assumptions.push_back(fmt::format(
      "trainer state of {} processes: copies of the first one's, random "
      "states included",
      processes));
}

void write_data_readers(const Catalog& source, bool same_readers,
                        const std::string& step, Target& target) {
  const auto files = below(source, "data_reader");
  if (files.empty()) return;
  if (!same_readers) {
    for (const Sidecar* file : files)
      formats::leave_out(*file, source,
                         "the position of one of another number of readers",
                         target);
    return warn(target, "data_reader",
                fmt::format("the positions of {} data readers are left out: "
                            "they are of another number of data-parallel "
                            "ranks, so a resume reads its data from the start",
                            files.size()));
  }
  for (const Sidecar* file : files)
    add_copy(target, join(step, file->name), *file);
}

}  // namespace

void write_extras(const Catalog& source, const Topology& topology,
                  const std::string& step, Target& target) {
  const Topology& old = source.topology;
  const bool ours = source.format == "fairseq2";
  // Keeps replicas of the data-parallel shards (HSDP, DDP) if the shards stay.
  const uint64_t readers = below(source, "data_reader").size();
  const bool same_dp = old.dp == topology.dp;
  const uint64_t replicas = same_dp && readers % old.dp == 0
                                ? std::max<uint64_t>(readers / old.dp, 1)
                                : 1;
  if (ours) {
    write_trainer(source, topology, replicas, step, target);
    write_data_readers(source, readers == replicas * topology.dp, step, target);
  }
  for (const Sidecar& sidecar : source.sidecars) {
    const bool carried = sidecar.name == "model.yaml" ||
                         (ours && sidecar.name.starts_with("scores/"));
    if (carried || sidecar.text) add_copy(target, sidecar.name, sidecar);
  }
}

}  // namespace ckpt::fairseq2
