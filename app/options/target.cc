// SPDX-License-Identifier: Apache-2.0
#include "app/options/target.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <charconv>
#include <numeric>

#include "app/options/target_name.h"
#include "ckpt/error.h"
#include "formats/format.h"
#include "lib/io/file.h"

namespace ckpt::app {
namespace {

using Options = formats::Traits::Options;

// Lists of blocks stand for ranks; files of blocks have none.
void settle_blocks(const WriteRequest& request, const TargetOptions& options,
                   Layout& layout) {
  const std::optional<uint32_t> asked = options.topology.pp.to;
  const std::string& blocks = request.select.blocks;
  const auto ranks = static_cast<uint32_t>(
      options.block_files ? 1 : 1 + std::ranges::count(blocks, '/'));
  const bool fixed = options.block_files || !blocks.empty();
  if (fixed && asked && *asked != ranks)
    throw usage_error({}, "--pp {}: {} {}", *asked,
                      options.block_files ? "--block-files" : "--blocks",
                      options.block_files
                          ? "has no ranks"
                          : fmt::format("is for {} ranks", ranks))
        .with_hint("--blocks takes a list for each rank: 0-3,8/4-7");
  if (fixed) layout.topology.pp = ranks;
  layout.blocks = blocks;
  if (options.block_files)
    layout.form = "blocks";
  else if (asked || fixed)
    layout.form = "shards";
}

// "9,8,8,7"
std::vector<uint64_t> parse_stage_layers(const std::string& text) {
  constexpr uint64_t kMost = uint64_t{1} << 20;
  std::vector<uint64_t> layers;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (true) {
    uint64_t count = 0;
    const auto [next, failure] = std::from_chars(at, end, count);
    if (failure != std::errc{} || count == 0 || count > kMost ||
        (next != end && *next != ',') || layers.size() == kMost)
      throw usage_error({}, "--pp-layout {}: not a list of layers", text)
          .with_hint("the layers of each pipeline stage: 9,8,8,7");
    layers.push_back(count);
    if (next == end) return layers;
    at = next + 1;
  }
}

// How the pipeline is cut fits the number of its stages.
void settle_stages(const TargetOptions& options, Layout& layout) {
  Layout::Megatron& wanted = layout.megatron;
  if (options.stage_layers.empty()) return;
  wanted.stage_layers = parse_stage_layers(options.stage_layers);
  const uint64_t vpp = std::max<uint32_t>(1, wanted.vpp);
  const uint64_t chunks = wanted.stage_layers.size();
  if (chunks == layout.topology.pp * vpp) return;
  if (options.topology.pp.to || chunks % vpp != 0)
    throw usage_error({}, "--pp-layout {}: {} numbers for {} pipeline stages{}",
                      options.stage_layers, chunks, layout.topology.pp,
                      vpp > 1 ? fmt::format(" of {} virtual ones", vpp) : "")
        .with_hint("a number for each stage (with --vpp: for each chunk)");
  layout.topology.pp = static_cast<uint32_t>(chunks / vpp);
}

// Expert ranks are taken from the data-parallel ones: as many as they need,
// unless somebody says how many there are.
void settle_experts(const TargetOptions& options, Layout& layout) {
  Topology& grid = layout.topology;
  if (options.topology.dp.to || !options.topology.ep.to) return;
  const uint64_t etp = layout.megatron.etp ? layout.megatron.etp : grid.tp;
  const uint64_t wanted = grid.ep * etp;
  const uint64_t least = wanted / std::gcd(wanted, uint64_t{grid.tp});
  if (least != 0 && least <= UINT32_MAX && grid.dp % least != 0)
    grid.dp = static_cast<uint32_t>(least);
}

void settle_megatron(const TargetOptions& options, Layout& layout) {
  const Layout::Megatron& wanted = options.megatron;
  const formats::Traits& traits = formats::traits_of(layout.format);
  if (traits.options != Options::kMegatron) {
    for (const auto& [name, given] :
         {std::pair{"--make-vocab-size-divisible-by",
                    wanted.vocab_multiple != 0},
          std::pair{"--pp-layout", !options.stage_layers.empty()},
          std::pair{"--vpp", wanted.vpp != 0},
          std::pair{"--etp", wanted.etp != 0},
          std::pair{"--transformer-impl", !wanted.transformer_impl.empty()}})
      if (given)
        throw usage_error({}, "{} is for Megatron's formats, not for {}", name,
                          layout.format);
    return;
  }
  if (wanted.vpp > 1 && !traits.virtual_stages)
    throw usage_error({}, "--vpp {}: {} has no virtual stages", wanted.vpp,
                      layout.format)
        .with_hint("any job loads it, whatever its virtual stages are");
  layout.megatron = wanted;
  settle_experts(options, layout);
  settle_stages(options, layout);
}

void add_megatron_options(CLI::App& app, TargetOptions& options) {
  Layout::Megatron& wanted = options.megatron;
  const auto count = [&](const char* name, auto& value, const char* help) {
    app.add_option(name, value, help)
        ->type_name("N")
        ->check(CLI::Range(uint32_t{1}, uint32_t{1} << 30))
        ->group("Megatron");
  };
  count("--vocab-size", wanted.vocab_size, "Unpadded vocabulary size");
  count("--make-vocab-size-divisible-by", wanted.vocab_multiple,
        "Rows are padded to a multiple of N times tp (default: 128)");
  app.add_option("--pp-layout", options.stage_layers,
                 "Layers of each pipeline stage: 9,8,8,7")
      ->type_name("LIST")
      ->group("Megatron");
  count("--vpp", wanted.vpp,
        "megatron_legacy: virtual stages of each pipeline rank");
  count("--etp", wanted.etp, "Tensor-parallel ranks of experts (default: tp)");
  app.add_option(
         "--transformer-impl", wanted.transformer_impl,
         "Module implementation of the layers: transformer_engine, or local")
      ->type_name("NAME")
      ->check(CLI::IsMember({"transformer_engine", "local"}))
      ->group("Megatron");
}

// Another trainer's step has data-parallel ranks alone, as many as the source
// if nothing else is asked for.
void settle_trainer(const TargetOptions& options, const Catalog& source,
                    Layout& layout) {
  layout.form = options.trainer;
  if (source.run && source.run->trainer == options.trainer) return;
  const uint32_t ranks = layout.topology.dp;
  layout.topology = options.topology.alone();
  layout.topology.dp = ranks;
}

// A step of a trainer stays one, but for a single file and Megatron's
// directories, which have formats of their own.
std::string own_format(const WriteRequest& request, const Catalog& source) {
  const bool step = source.run && !source.format.starts_with("megatron") &&
                    io::is_directory(source.path) &&
                    file_format(request.target_path).empty();
  return step ? "run" : source.format;
}

}  // namespace

void add_target_options(CLI::App& app, TargetOptions& options) {
  app.add_option("--to", options.to,
                 "Format of the target (default: by the ending of DST, or the "
                 "source's)")
      ->type_name("FORMAT")
      ->group("Target");
  add_topology_options(app, options.topology);
  add_optim_option(app, options.optim);
  app.add_flag("--block-files", options.block_files,
               "modelopt: files of a block's parts, not of ranks")
      ->group("Target");
  add_megatron_options(app, options);
}

void check_target_options(const TargetOptions& options) {
  if (!options.to.empty()) formats::find_format(options.to);
}

Layout make_layout(const WriteRequest& request, const TargetOptions& options,
                   const Catalog& source) {
  Layout layout;
  layout.format = options.to.empty() ? own_format(request, source) : options.to;
  check_optim(options.optim, layout.format);
  layout.optimizer = options.optim;
  if (!options.to.empty()) {
    const std::string file = file_format(request.target_path);
    layout.single_file = !file.empty() && file == layout.format;
    // Lightning names a folder like a file: last.ckpt.
    if (!file.empty() && !layout.single_file && layout.format != "run")
      throw usage_error({request.target_path, {}},
                        "--to {} does not fit a name of {}", layout.format,
                        file);
  }
  // Refused if a left side is not what the source holds.
  layout.topology = options.topology.resolve(source.topology);
  if (!options.to.empty() && !same_grid(source.format, layout.format))
    layout.topology = options.topology.alone();
  if (!options.trainer.empty()) settle_trainer(options, source, layout);
  if (formats::traits_of(layout.format).options == Options::kBlocks)
    settle_blocks(request, options, layout);
  else if (options.block_files)
    throw usage_error({}, "--block-files is for modelopt, not for {}",
                      layout.format);
  settle_megatron(options, layout);
  return layout;
}

}  // namespace ckpt::app
