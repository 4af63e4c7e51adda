#include "app/html.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <string_view>

#include "app/pattern.h"
#include "app/report.h"
#include "app/table.h"
#include "lib/text/format.h"

namespace ckpt::app {
namespace {

constexpr std::string_view kHead = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { color-scheme: light dark; --line: #8884; --bar: #4a8; --alt: #c84; --third: #88c; }
body { font: 14px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; overflow-wrap: anywhere; } h2 { font-size: 1.05rem; margin-top: 2rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1.5rem; } dt { opacity: .7; } dd { margin: 0; overflow-wrap: anywhere; }
.map { display: flex; flex-wrap: wrap; gap: 2px; } .map div { min-width: 2px; height: 3.4rem; overflow: hidden; background: var(--bar); color: #fff; font-size: 11px; padding: 2px 4px; box-sizing: border-box; white-space: nowrap; }
.optim { background: var(--alt) !important; } .other { background: var(--third) !important; }
table { border-collapse: collapse; width: 100%; } th { text-align: left; cursor: pointer; position: sticky; top: 0; background: Canvas; }
th, td { padding: .15rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; } td.n, th.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
code, td.c { font-family: ui-monospace, monospace; font-size: 12.5px; overflow-wrap: anywhere; } input { width: 24rem; max-width: 100%; padding: .3rem; margin-bottom: .5rem; }
.warn { border-left: 3px solid #c33; padding-left: .6rem; }
</style>
)";

// Sorts by data-v where a cell has one, else by its text; filters by name.
constexpr std::string_view kScript = R"(<script>
for (const th of document.querySelectorAll('th')) th.onclick = () => {
  const body = th.closest('table').tBodies[0], i = th.cellIndex, s = th.dataset.s = th.dataset.s === '1' ? '-1' : '1';
  const v = r => r.cells[i].dataset.v === undefined ? r.cells[i].textContent : +r.cells[i].dataset.v;
  body.append(...[...body.rows].sort((a, b) => { const x = v(a), y = v(b); return (x < y ? -1 : x > y ? 1 : 0) * s; }));
};
const q = document.getElementById('q');
q.oninput = () => { for (const r of document.getElementById('t').tBodies[0].rows) r.hidden = !r.cells[0].textContent.includes(q.value); };
</script>
)";

std::string escaped(std::string_view raw) {
  std::string out;
  for (const char c : text::printable(raw)) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      case '\'':
        out += "&#39;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

template <class... Args>
void append(std::string& out, fmt::format_string<Args...> text,
            Args&&... args) {
  fmt::format_to(std::back_inserter(out), text, std::forward<Args>(args)...);
}

struct Row {
  Kind kind;
  PatternRow pattern;
};

std::vector<Row> all_rows(const Catalog& catalog) {
  std::vector<Row> rows;
  for (const Kind kind : {Kind::model, Kind::optim, Kind::other})
    for (PatternRow& row : pattern_rows(catalog, kind))
      rows.push_back({kind, std::move(row)});
  return rows;
}

void write_summary(std::string& out, const Catalog& catalog) {
  const Totals sums = totals(catalog);
  append(out, "<dl>");
  const auto row = [&](std::string_view label, std::string_view value) {
    append(out, "<dt>{}</dt><dd>{}</dd>\n", label, escaped(value));
  };
  row("format", catalog.format + " " + catalog.version);
  row("family", catalog.family.empty() ? "unknown" : catalog.family);
  row("topology", to_string(catalog.topology));
  row("tensors",
      fmt::format("{} model, {} optimizer, {} other", grouped(sums.model),
                  grouped(sums.optim), grouped(sums.other)));
  row("parameters", fmt::format("{} ({})", grouped(sums.parameters),
                                si_count(sums.parameters)));
  row("size", fmt::format("{} in {} files", text::iec_size(sums.bytes),
                          grouped(sums.files)));
  append(out, "</dl>\n");
  for (const Problem& problem : catalog.problems)
    append(out, "<p class=\"warn\">{}: {}</p>\n",
           escaped(problem.tensor.empty() ? problem.kind : problem.tensor),
           escaped(problem.message));
}

// Tiles with areas as the bytes are; the largest first, small ones as one.
void write_map(std::string& out, std::vector<Row> rows, uint64_t total) {
  constexpr size_t kTiles = 60;
  if (total == 0) return;
  std::ranges::stable_sort(rows, std::greater{},
                           [](const Row& row) { return row.pattern.bytes; });
  append(out, "<h2>Where the bytes are</h2><div class=\"map\">\n");
  uint64_t rest = total;
  for (size_t i = 0; i < std::min(rows.size(), kTiles); ++i) {
    const PatternRow& row = rows[i].pattern;
    const double share =
        100 * static_cast<double>(row.bytes) / static_cast<double>(total);
    rest -= std::min(rest, row.bytes);
    append(out,
           "<div class=\"{}\" style=\"flex:{:.3f} 1 {:.2f}%\" title=\"{} "
           "({}, {:.1f}%)\">{}</div>\n",
           name(rows[i].kind), share, share, escaped(row.name),
           text::iec_size(row.bytes), share, escaped(row.name));
  }
  if (rest != 0 && rows.size() > kTiles)
    append(out, "<div class=\"other\" title=\"{} more rows\">{} more</div>\n",
           rows.size() - kTiles, rows.size() - kTiles);
  append(out, "</div>\n");
}

void write_tensors(std::string& out, const std::vector<Row>& rows) {
  append(out,
         "<h2>Tensors</h2><input id=\"q\" placeholder=\"filter by name\">"
         "<table id=\"t\"><thead><tr><th>name</th><th class=\"n\">count</th>"
         "<th>kind</th><th>dtype</th><th>shape</th><th class=\"n\">bytes</th>"
         "<th>split</th></tr></thead><tbody>\n");
  for (const Row& row : rows) {
    const Tensor& tensor = *row.pattern.first;
    append(out,
           "<tr><td class=\"c\">{}</td><td class=\"n\" data-v=\"{}\">{}</td>"
           "<td>{}</td><td>{}</td><td class=\"c\">{}</td>"
           "<td class=\"n\" data-v=\"{}\">{}</td><td>{}</td></tr>\n",
           escaped(row.pattern.name), row.pattern.count,
           grouped(row.pattern.count), name(row.kind), name(tensor.dtype),
           to_string(tensor.shape), row.pattern.bytes,
           text::iec_size(row.pattern.bytes), split_text(tensor.tp));
  }
  append(out, "</tbody></table>\n");
}

void write_objects(std::string& out, const Catalog& catalog) {
  constexpr size_t kLongest = 2000;
  if (catalog.objects.empty()) return;
  append(out,
         "<h2>Objects</h2><table><thead><tr><th>name</th><th>type</th>"
         "<th>value</th></tr></thead><tbody>\n");
  const ObjectValues values(catalog);
  for (const Object& object : catalog.objects) {
    append(out,
           "<tr><td class=\"c\">{}</td><td>{}</td><td class=\"c\">{}</td>"
           "</tr>\n",
           escaped(object.name), escaped(type_name(object)),
           escaped(cut_middle(values.line(object, kLongest), kLongest)));
  }
  append(out, "</tbody></table>\n");
}

}  // namespace

std::string inspect_html(const Catalog& catalog) {
  const std::vector<Row> rows = all_rows(catalog);
  std::string out(kHead);
  append(out, "<title>{}</title></head><body>\n<h1>{}</h1>\n",
         escaped(catalog.path), escaped(catalog.path));
  write_summary(out, catalog);
  write_map(out, rows, totals(catalog).bytes);
  write_tensors(out, rows);
  write_objects(out, catalog);
  append(out, "<p>made by ckpt {}</p>\n", CKPT_VERSION);
  out += kScript;
  out += "</body></html>\n";
  return out;
}

}  // namespace ckpt::app
