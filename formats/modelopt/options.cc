// SPDX-License-Identifier: Apache-2.0
#include "formats/modelopt/options.h"

#include <algorithm>

#include "ckpt/error.h"
#include "formats/modelopt/modelopt.h"
#include "formats/modelopt/owners.h"
#include "formats/options.h"
#include "lib/text/format.h"

namespace ckpt::modelopt {
namespace {

void check_ranks(const FormatOption&, const std::string& text) {
  parse_ranks(text);
}

void check_form(const FormatOption& option, const std::string& text) {
  if (text != kShards && text != kBlocks)
    throw usage_error({}, "--{} '{}': expected {} or {}", option.name,
                      text::printable(text), kShards, kBlocks);
}

}  // namespace

std::vector<FormatOption> options() {
  return {{.name = "blocks", .type = "LIST", .help = "", .check = check_ranks},
          {.name = "block-files",
           .type = "",
           .help = "modelopt: files of a block's parts, not of ranks",
           .check = formats::check_flag},
          {.name = "form", .type = "FORM", .help = "", .check = check_form}};
}

std::string form_of(const Layout& layout) {
  if (!layout.option("block-files").empty()) return std::string(kBlocks);
  return layout.option("form");
}

void settle_options(const Catalog&, const formats::Asked& asked,
                    Layout& layout) {
  const bool files = form_of(layout) == kBlocks;
  const std::string blocks = layout.option("blocks");
  const auto ranks =
      static_cast<uint32_t>(files ? 1 : 1 + std::ranges::count(blocks, '/'));
  const bool fixed = files || !blocks.empty();
  if (fixed && asked.pp && *asked.pp != ranks)
    throw usage_error(
        {}, "--pp {}: {} {}", *asked.pp, files ? "--block-files" : "--blocks",
        files ? "has no ranks" : fmt::format("is for {} ranks", ranks))
        .with_hint("--blocks takes a list for each rank: 0-3,8/4-7");
  if (fixed) layout.topology.pp = ranks;
  if (!files && (asked.pp || fixed)) layout.options["form"] = kShards;
}

}  // namespace ckpt::modelopt
