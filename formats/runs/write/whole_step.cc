// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/write/whole_step.h"

#include <fmt/format.h>

#include <algorithm>

#include "ckpt/error.h"
#include "formats/format.h"
#include "formats/runs/find/trainer.h"
#include "formats/runs/write/forms.h"
#include "formats/runs/write/same_file.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::runs {
namespace {

using text::printable;

bool holds(const Catalog& catalog, bool states) {
  return std::ranges::any_of(catalog.tensors, [&](const Tensor& tensor) {
    return (tensor.kind == Kind::optim) == states;
  });
}

// A trainer's loader asks for both.
std::string hint_of_parts(const Catalog& given, const Catalog& whole) {
  if (!holds(given, true) && holds(whole, true))
    return "leave --model-only out: its loader asks for the optimizer, too. "
           "The model for everyone else: ckpt convert SRC DST --to safetensors "
           "--model-only";
  if (!holds(given, false) && holds(whole, false))
    return "leave --optim-only out: its loader asks for the model, too. The "
           "optimizer by name: ckpt convert SRC DST --to dcp --optim-only";
  return "leave --keys, --rename and --dtype out, or write another format "
         "(--to)";
}

}  // namespace

void check_whole_step(const Catalog& given, const Catalog& whole,
                      const std::vector<bool>& inside,
                      const std::string& trainer) {
  const auto refuse = [&](const std::string& tensor) {
    throw unfaithful_error({given.path, printable(tensor)},
                           "a step of {} is written whole and by its own names",
                           trainer)
        .with_hint(hint_of_parts(given, whole));
  };
  size_t at = 0;
  for (size_t t = 0; t < whole.tensors.size(); ++t) {
    if (!inside[t]) continue;
    const Tensor& mine = whole.tensors[t];
    if (at == given.tensors.size()) refuse(mine.name);
    const Tensor& its = given.tensors[at++];
    if (its.dtype != mine.dtype || its.shape != mine.shape ||
        (its.name != mine.name && its.kind != Kind::optim))
      refuse(mine.name);
  }
  if (at != given.tensors.size()) refuse(given.tensors[at].name);
}

Target lay_out_own_file(const Catalog& source, const Layout& layout) {
  const Trainer& trainer = find_trainer(source.run->trainer);
  const std::string& ending = trainer.pickled.ending;
  if (!has_one_file(trainer.name))
    throw unfaithful_error({source.path, {}},
                           "is one file of {}: it has no ranks", trainer.name)
        .with_hint("--to torch writes such a file");
  if (layout.topology != Topology{} || !layout.name.ends_with(ending))
    throw unfaithful_error({source.path, {}},
                           "is one file of {}: it has no ranks", trainer.name)
        .with_hint(fmt::format("a DST that ends in {0} is such a file, of --dp "
                               "1; `ckpt convert SRC "
                               "DST --to run --trainer {1} --dp N` makes a "
                               "folder of it, which any "
                               "number of ranks loads",
                               ending, trainer.name));
  Catalog whole = formats::open(source.path, {}, {});
  check_whole_step(source, whole, have_places(whole), trainer.name);
  Target target =
      lay_out_same(whole, io::parent(source.path), has_computed(source));
  for (TargetFile& file : target.files) file.path.clear();
  for (File& file : target.catalog.files) file.path.clear();
  target.catalog.format = kRunFormat;  // who reads it back takes it for one
  target.catalog.run = source.run;
  return target;
}

}  // namespace ckpt::runs
