// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/read/containers.h"

#include <fmt/format.h>

#include "ckpt/error.h"
#include "formats/runs/find/find.h"
#include "formats/runs/find/trainer.h"
#include "formats/runs/read/adopt.h"
#include "formats/runs/read/step.h"
#include "lib/io/file.h"

namespace ckpt::runs {

std::optional<Whole> read_containers(const std::string& path,
                                     const std::string& trainer,
                                     const formats::ReadOptions& options) {
  if (!io::is_directory(path)) return std::nullopt;
  Whole whole;
  if (const Trainer& known = find_trainer(trainer); !known.sole.format.empty())
    throw unfaithful_error({path, {}},
                           "a step of {} is a checkpoint of {} for each role: "
                           "each is written by itself, as that",
                           known.what, known.sole.format)
        .with_hint(fmt::format("name a role's folder, and --to {}",
                               known.sole.format));
  if (find_trainer(trainer).objects.empty()) {
    const auto found = find_run(path, trainer);
    if (!found) return std::nullopt;
    whole.catalog = read_step(*found, options, &whole.containers);
    return whole;
  }
  // The whole step is one container, which only its contents distinguish.
  Container& one = whole.containers.emplace_back();
  one.read = "dcp";
  one.catalog = formats::find_format("dcp").reader->read_catalog(path, options);
  whole.catalog = one.catalog;
  adopt(whole.catalog, trainer, options);
  return whole;
}

}  // namespace ckpt::runs
