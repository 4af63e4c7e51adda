// SPDX-License-Identifier: Apache-2.0
#include "app/print/html_flow.h"

#include <fmt/format.h>

#include <algorithm>

#include "app/print/html_page.h"
#include "app/print/table.h"
#include "app/print/view.h"
#include "lib/io/file.h"
#include "lib/text/format.h"

namespace ckpt::app {
namespace {

constexpr size_t kMostNodes = 64;  // per side
constexpr size_t kMostLines = 500;

void write_side(JsonWriter& json, std::string_view key,
                const std::vector<std::string>& names,
                const Topology& topology) {
  json.key(key).begin_object().key("files").begin_array();
  for (const std::string& name : names) json.value(page_name(name));
  json.end_array().key("topology").begin_object();
  json.member("tp", topology.tp).member("pp", topology.pp);
  json.member("dp", topology.dp).member("ep", topology.ep);
  json.end_object().end_object();
}

std::string frames_html() {
  return "<section><div class=\"head\"><h2>Ranks</h2><span>tp across, pp down"
         "</span></div><div class=\"grids\" id=\"grids\"></div></section>\n"
         "<section><div class=\"head\"><h2>Which bytes go where</h2><span>"
         "heights are to scale<span class=\"keys\">; point at a block, or "
         "<kbd>Tab</kbd> to it</span></span><div class=\"tabs\" "
         "id=\"flow-by\"></div></div>\n"
         "<svg id=\"flow\" role=\"group\" aria-label=\"bytes from files to "
         "files\"></svg><p class=\"soft\" id=\"flow-say\" role=\"status\">"
         "</p></section>\n" +
         table_html("From and to", {{"from", ""}, {"to", ""}, {"bytes", "n"}});
}

std::string files_html(const WriteReport& report) {
  std::string out =
      "<section class=\"long\"><div class=\"head\"><h2>Files to be written"
      "</h2></div><div class=\"scroll\"><table><tbody>\n";
  size_t lines = 0;
  for (const TargetFile& file : report.target->files) {
    if (++lines > kMostLines) break;
    out += fmt::format(
        "<tr><td class=\"c\">{}</td><td class=\"n\">{}</td></tr>\n",
        breakable(escaped(cut_middle(
            file.path.empty() ? io::base_name(report.target_path) : file.path,
            kLongestName))),
        text::iec_size(file.size));
  }
  out += "</tbody></table></div>";
  if (report.target->files.size() > kMostLines)
    out += fmt::format("<p class=\"soft\">the first {} of {}</p>", kMostLines,
                       grouped(report.target->files.size()));
  return out += "</section>\n";
}

std::string notes_html(const WriteReport& report) {
  std::string out;
  size_t lines = 0;
  const auto add = [&](std::string_view line, std::string_view style) {
    if (++lines <= kMostLines)
      out += fmt::format("<p class=\"{}\">{}</p>\n", style, escaped(line));
  };
  for (const Problem& problem : report.target->problems)
    add(problem.message, "warn");
  for (const std::string& line : report.source->assumptions)
    add("assumed: " + line, "soft");
  for (const std::string& line : report.target->assumptions)
    if (!std::ranges::count(report.source->assumptions, line))
      add("assumed: " + line, "soft");
  return out;
}

std::string place(const Catalog& catalog, const std::string& path) {
  return fmt::format("{}, {}", path, to_string(catalog.topology));
}

}  // namespace

// Files with payload, in order; if more than kMostNodes, runs of neighbours.
FlowSums::Side FlowSums::side_of(const Catalog& catalog,
                                 const std::string& single) {
  Side side;
  side.group.assign(catalog.files.size(), 0);
  std::vector<bool> used(catalog.files.size(), false);
  for (const Tensor& tensor : catalog.tensors)
    for (const Piece& piece : tensor.pieces) used[piece.extent.file] = true;
  const auto count = static_cast<size_t>(std::ranges::count(used, true));
  const size_t each =
      std::max<size_t>(1, (count + kMostNodes - 1) / kMostNodes);
  size_t at = 0, in_last = 0;
  std::string last;
  const auto finish = [&] {
    if (in_last > 1)
      side.names.back() +=
          fmt::format(" to {} ({} files)", last, grouped(in_last));
  };
  for (size_t i = 0; i < used.size(); ++i) {
    if (!used[i]) continue;
    const File& file = catalog.files[i];
    std::string name = file.codec == Codec::kFill ? "padding"
                       : file.path.empty()        ? single
                                           : short_path(catalog, file.path);
    if (at++ % each == 0) {
      finish();
      side.names.push_back(name);
      in_last = 0;
    }
    ++in_last;
    last = std::move(name);
    side.group[i] = static_cast<uint32_t>(side.names.size() - 1);
  }
  finish();
  return side;
}

void FlowSums::add(const reshard::Plan& plan, const Catalog& source,
                   const Catalog& target) {
  const std::lock_guard lock(mutex_);
  if (source_.group.empty()) {
    source_ = side_of(source, io::base_name(source.path));
    target_ = side_of(target, io::base_name(target.path));
  }
  for (const reshard::Job& job : plan.jobs)
    for (uint32_t m = 0; m < job.moves; ++m) {
      const reshard::Move& move = plan.moves[job.first_move + m];
      if (move.target == reshard::kNone) continue;
      const uint32_t from = plan.lanes[job.first_source + move.source].file;
      const uint32_t to = plan.lanes[job.first_target + move.target].file;
      bytes_[{source_.group[from], target_.group[to]}] += move.bytes * job.rows;
    }
  for (const reshard::Gather& gather : plan.gathers) {
    if (gather.target_file == reshard::kNone) continue;
    const DType dtype = plan.tensors[gather.tensor].source_dtype;
    bytes_[{source_.group[gather.source_file],
            target_.group[gather.target_file]}] +=
        byte_size(dtype, gather.shape).value_or(0);
  }
}

std::string FlowSums::page(const WriteReport& report) const {
  const Catalog& target = report.target->catalog;
  PageParts parts{
      .title = fmt::format("{} {}", report.command,
                           io::base_name(report.source->path)),
      .subtitle = "dry run: nothing was written",
      .body = cards_html(
          {{"from", report.source->format + " " +
                        place(*report.source, report.source->path)},
           {"to", target.format + " " + place(target, report.target_path)},
           {"bytes read", text::iec_size(report.bytes_read)},
           {"bytes written",
            fmt::format("{} in {}", text::iec_size(report.bytes_written),
                        text::counted(report.target->files.size(), "file"))},
           {"peak memory", text::iec_size(report.peak_memory)}}),
      .data = {},
      .scripts = {"common", "flow"}};
  parts.body += notes_html(report) + frames_html() + files_html(report);
  JsonWriter& json = parts.data;
  json.begin_object();
  write_side(json, "source", source_.names, report.source->topology);
  write_side(json, "target", target_.names, target.topology);
  json.key("flow").begin_array();
  for (const auto& [ends, bytes] : bytes_) {
    json.begin_array().value(uint64_t{ends.first});
    json.value(uint64_t{ends.second}).value(bytes).end_array();
  }
  json.end_array().end_object();
  return page_text(std::move(parts));
}

}  // namespace ckpt::app
