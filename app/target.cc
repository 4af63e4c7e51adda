#include "app/target.h"

#include <CLI/CLI.hpp>
#include <algorithm>

#include "app/target_name.h"
#include "ckpt/error.h"
#include "formats/format.h"

namespace ckpt::app {
namespace {

constexpr std::string_view kModelopt = "modelopt";

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

}  // namespace

void add_target_options(CLI::App& app, TargetOptions& options,
                        bool format_required) {
  CLI::Option* to =
      app.add_option("--to", options.to,
                     format_required
                         ? "Format of the target"
                         : "Format of the target (default: the source's)")
          ->type_name("FORMAT");
  if (format_required)
    to->required()->group("Arguments");
  else
    to->group("Target");
  add_topology_options(app, options.topology);
  add_optim_option(app, options.optim);
  app.add_flag("--block-files", options.block_files,
               "modelopt: files of a block's parts, not of ranks")
      ->group("Target");
}

void check_target_options(const TargetOptions& options) {
  if (!options.to.empty()) formats::find_format(options.to);
}

Layout make_layout(const WriteRequest& request, const TargetOptions& options,
                   const Catalog& source) {
  Layout layout;
  layout.format = options.to.empty() ? source.format : options.to;
  check_optim(options.optim, layout.format);
  layout.optimizer = options.optim;
  if (!options.to.empty()) {
    const std::string file = file_format(request.target_path);
    layout.single_file = !file.empty() && file == layout.format;
    if (!file.empty() && !layout.single_file)
      throw usage_error({request.target_path, {}},
                        "--to {} does not fit a name of {}", layout.format,
                        file);
  }
  // Refused if a left side is not what the source holds.
  layout.topology = options.topology.resolve(source.topology);
  if (!options.to.empty() && !same_grid(source.format, layout.format))
    layout.topology = options.topology.alone();
  if (layout.format == kModelopt)
    settle_blocks(request, options, layout);
  else if (options.block_files)
    throw usage_error({}, "--block-files is for modelopt, not for {}",
                      layout.format);
  return layout;
}

}  // namespace ckpt::app
