// SPDX-License-Identifier: Apache-2.0
#include "formats/runs/run_format.h"

#include <set>

#include "ckpt/error.h"
#include "formats/options.h"
#include "formats/runs/find/trainer.h"
#include "formats/runs/ranks/grid.h"
#include "formats/runs/read/run.h"
#include "formats/runs/write/compose.h"
#include "formats/runs/write/forms.h"
#include "formats/runs/write/rewrite.h"
#include "formats/runs/write/same_file.h"
#include "formats/runs/write/whole_step.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::runs {
namespace {

// nanotron's, over tensor-parallel ranks and pipeline stages.
bool is_cut_in_layers(const Trainer& trainer) {
  return !trainer.models.empty() && trainer.models[0].read == "nanotron";
}

void check_topology(const Catalog& source, const Topology& asked) {
  const Topology& now = source.topology;
  const bool layers = is_cut_in_layers(find_trainer(trainer_of(source)));
  if (asked.ep == now.ep &&
      (layers || (asked.pp == now.pp && asked.tp == now.tp)))
    return;
  if (layers)
    throw unfaithful_error({source.path, {}},
                           "steps of {} are not written for expert-parallel "
                           "ranks: {} is impossible",
                           trainer_of(source), to_string(asked))
        .with_hint("--tp, --pp and --dp set the numbers of ranks");
  throw unfaithful_error({source.path, {}},
                         "steps of {} are sharded over data-parallel ranks "
                         "alone: {} is impossible",
                         trainer_of(source), to_string(asked))
      .with_hint("--dp N sets the number of ranks");
}

// A trainer's file holds all of a step, or it is a rank's.
bool is_one_file(const Catalog& source) {
  trainer_of(source);
  return io::is_file(source.path);
}

// Leaves those of `whole` that are `inside`.
void erase_others(Catalog& source, const Catalog& whole,
                  const std::vector<bool>& inside) {
  std::set<std::string_view> carried;
  for (size_t t = 0; t < inside.size(); ++t)
    if (!inside[t]) carried.insert(whole.tensors[t].name);
  std::erase_if(source.tensors, [&](const Tensor& tensor) {
    return carried.contains(tensor.name);
  });
}

// Runs are tried before any format (formats::open).
formats::Support supports(const std::string&) {
  return {false, "not a step of a trainer"};
}

Catalog read_catalog(const std::string& path,
                     const formats::ReadOptions& options) {
  // torchtitan's is recognized by its container's contents.
  Catalog catalog = formats::open(path, {}, options);
  if (catalog.run) return catalog;
  throw missing_error({path, {}}, "is not a step of a known trainer");
}

Catalog review(Catalog source, const Layout& layout) {
  if (is_composed(source, layout))
    return review_composed(std::move(source), layout);
  if (is_one_file(source)) {
    Catalog whole = formats::open(source.path, {}, {});
    erase_others(source, whole, have_places(whole));
    return source;
  }
  check_topology(source, layout.topology);
  Whole whole = read_again(source);
  const std::vector<bool> inside = in_containers(whole);
  erase_others(source, whole.catalog, inside);
  return source;
}

Target lay_out(const Catalog& source, const Layout& layout) {
  if (is_composed(source, layout)) return compose(source, layout);
  if (is_one_file(source)) return lay_out_own_file(source, layout);
  return rewrite(source, layout);
}

void check_trainer(const FormatOption&, const std::string& text) {
  find_trainer(text);
}

void check_truth(const FormatOption& option, const std::string& text) {
  if (text != "true" && text != "false")
    throw usage_error({}, "--{} '{}': expected true or false", option.name,
                      text::printable(text));
}

}  // namespace

std::vector<FormatOption> options() {
  return {{.name = std::string(kTrainer),
           .type = "NAME",
           .help = "",
           .check = check_trainer},
          {.name = std::string(kFsdpSize),
           .type = "N",
           .help = "fsdp_size of the verl job that will resume: the ranks that "
                   "hold one copy of model and optimizer. Fewer than --dp: "
                   "HYBRID_SHARD",
           .check = formats::check_count},
          {.name = std::string(kFuseQkv),
           .type = "WHAT",
           .help = "fuse_qkv of the torchtitan job that will resume, which "
                   "trains queries, keys and values as one: true (default) or "
                   "false, as its "
                   "configuration's fuse_qkv",
           .check = check_truth}};
}

void settle_options(const Catalog& source, const formats::Asked& asked,
                    Layout& layout) {
  if (layout.option(kTrainer).empty() || !is_composed(source, layout)) return;
  const uint32_t ranks = layout.topology.dp;
  layout.topology = asked.alone();
  layout.topology.dp = ranks;
  layout.single_file = wants_one_file(layout);
}

std::unique_ptr<formats::Reader> make_run_reader() {
  return formats::reader_of(kRunFormat, supports, read_catalog);
}
std::unique_ptr<formats::Writer> make_run_writer() {
  return formats::writer_of(kRunFormat, review, lay_out);
}

}  // namespace ckpt::runs
