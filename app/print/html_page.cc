// SPDX-License-Identifier: Apache-2.0
#include "app/print/html_page.h"

namespace ckpt::app {

const std::string_view kHtmlStart = R"(<!doctype html>
<html lang="en"><head><meta charset="utf-8">
)";

const std::string_view kHtmlPolicy =
    R"(<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'">
)";

const std::string_view kHtmlHead =
    R"(<meta name="viewport" content="width=device-width, initial-scale=1">
<style>
:root { color-scheme: light dark; --line: #8884; --model: #2a7d62; --optim: #a85a1f; --other: #5a5aa0; }
body { font: 14px/1.5 system-ui, sans-serif; max-width: 76rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.3rem; overflow-wrap: anywhere; } h2 { font-size: 1.05rem; margin-top: 2rem; }
dl { display: grid; grid-template-columns: max-content 1fr; gap: .1rem 1.5rem; } dt { opacity: .7; } dd { margin: 0; overflow-wrap: anywhere; }
#map { position: relative; width: 100%; height: 26rem; } #map button { position: absolute; overflow: hidden; border: 1px solid Canvas; padding: 1px 4px; font: 11px system-ui, sans-serif; text-align: left; color: #fff; background: var(--model); white-space: nowrap; }
#map .optim { background: var(--optim); } #map .other { background: var(--other); } #map button:focus-visible { outline: 3px solid Highlight; z-index: 1; }
#path button { font: inherit; border: 0; background: none; padding: 0 .2rem; text-decoration: underline; cursor: pointer; color: inherit; }
.bars div { display: grid; grid-template-columns: 9rem 1fr 9rem; gap: .6rem; } .bars i { background: var(--model); height: .9rem; align-self: center; }
.scroll { overflow-x: auto; } table { border-collapse: collapse; width: 100%; } th { text-align: left; position: sticky; top: 0; background: Canvas; } th button { font: inherit; font-weight: bold; border: 0; background: none; padding: 0; cursor: pointer; color: inherit; }
th, td { padding: .15rem .6rem; border-bottom: 1px solid var(--line); vertical-align: top; } td.n, th.n { text-align: right; white-space: nowrap; font-variant-numeric: tabular-nums; }
code, td.c { font-family: ui-monospace, monospace; font-size: 12.5px; overflow-wrap: anywhere; } input { width: 24rem; max-width: 100%; padding: .3rem; margin-bottom: .5rem; }
#heat { width: auto; } #heat td, #heat th { padding: 0 2px; font-size: 11px; font-weight: normal; border: 0; } #heat td.h { width: 14px; min-width: 8px; height: 14px; border: 1px solid var(--line); }
.warn { border-left: 3px solid #c33; padding-left: .6rem; }
@media print { input, #path { display: none; } body { max-width: none; margin: 0; } #map { break-inside: avoid; print-color-adjust: exact; } }
</style>
)";

const std::string_view kHtmlScript = R"(<script>
'use strict';
// Rectangles [x, y, w, h] whose areas are as `sizes`, largest first, as nearly
// square as rows of them can be (Bruls, Huizing, van Wijk).
function squarify(sizes, x, y, w, h) {
  const total = sizes.reduce((s, v) => s + v, 0), out = [];
  if (!(total > 0 && w > 0 && h > 0)) return sizes.map(() => [x, y, 0, 0]);
  const areas = sizes.map(v => v * w * h / total);
  const worst = (most, least, sum, side) => Math.max(side * side * most / (sum * sum), sum * sum / (side * side * least));
  for (let i = 0; i < areas.length;) {
    // What is left of a side after rounding is no room for a tile.
    const side = Math.min(w, h);
    if (!(areas[i] > 0 && side > 1e-6)) { out.push([x, y, 0, 0]); ++i; continue; }
    let n = 1, sum = areas[i];
    while (i + n < areas.length && areas[i + n] > 0 &&
           worst(areas[i], areas[i + n], sum + areas[i + n], side) <= worst(areas[i], areas[i + n - 1], sum, side))
      sum += areas[i + n++];
    const thick = Math.min(sum / side, Math.max(w, h));
    let at = 0;
    for (let k = i; k < i + n; ++k) {
      const long = Math.min(areas[k] / thick, side - at);
      out.push(w >= h ? [x, y + at, thick, long] : [x + at, y, long, thick]);
      at += long;
    }
    if (w >= h) { x += thick; w -= thick; } else { y += thick; h -= thick; }
    i += n;
  }
  return out;
}
// The rows as a tree of their names.
function treeOf(rows) {
  const root = { name: '', bytes: 0, kind: 'model', below: new Map() };
  for (const r of rows) {
    let at = root;
    at.bytes += r.bytes;
    for (const part of r.name.split('.').slice(0, 32)) {
      if (!at.below.has(part)) at.below.set(part, { name: part, bytes: 0, kind: r.kind, below: new Map() });
      at = at.below.get(part);
      at.bytes += r.bytes;
    }
  }
  return root;
}
function human(b) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB'];
  let u = 0;
  while (b >= 1024 && u < 5) { b /= 1024; ++u; }
  return (u ? b.toFixed(1) : b) + ' ' + units[u];
}
function sums(rows, key, value) {
  const out = new Map();
  for (const r of rows) out.set(key(r), (out.get(key(r)) || 0) + value(r));
  return [...out].sort((a, b) => b[1] - a[1]);
}
const LIMITS = [[1024, 'below 1 KiB'], [1048576, '1 KiB to 1 MiB'], [1073741824, '1 MiB to 1 GiB'], [Infinity, '1 GiB and more']];
const bucket = r => LIMITS.find(l => r.bytes / r.count < l[0])[1];
function main() {
  const D = JSON.parse(document.getElementById('data').textContent), rows = D.rows;
  const $ = id => document.getElementById(id);
  const el = (tag, text, cls) => { const e = document.createElement(tag); if (text !== undefined) e.textContent = text; if (cls) e.className = cls; return e; };
  let path = [];
  const root = treeOf(rows);
  function draw() {
    let node = root;
    for (const p of path) node = node.below.get(p);
    const map = $('map'), size = [map.clientWidth || 1000, map.clientHeight || 400];
    const all = [...node.below.values()].sort((a, b) => b.bytes - a.bytes), shown = all.slice(0, 200);
    map.replaceChildren(...squarify(shown.map(n => n.bytes), 0, 0, ...size).map((r, i) => {
      const n = shown[i], b = el('button', r[2] > 30 && r[3] > 12 ? n.name : '', n.kind);
      b.style.cssText = `left:${r[0]}px;top:${r[1]}px;width:${r[2]}px;height:${r[3]}px`;
      b.title = `${[...path, n.name].join('.')}: ${human(n.bytes)}, ${(100 * n.bytes / root.bytes).toFixed(2)}%`;
      b.setAttribute('aria-label', b.title);
      b.onclick = () => { if (n.below.size) { path.push(n.name); draw(); map.firstChild.focus(); } };
      return b;
    }));
    $('path').replaceChildren(...['all', ...path].map((p, i) => {
      const b = el('button', p);
      b.onclick = () => { path.length = i; draw(); };
      return b;
    }), el('span', ` ${human(node.bytes)}` + (all.length > 200 ? `, the largest 200 of ${all.length}` : '')));
  }
  $('map').onkeydown = e => { if ((e.key === 'Escape' || e.key === 'Backspace') && path.length) { path.pop(); draw(); $('map').firstChild.focus(); } };
  function bars(id, list, show) {
    const most = Math.max(...list.map(p => p[1]), 1);
    $(id).replaceChildren(...list.map(([k, v]) => {
      const d = el('div'), i = el('i');
      i.style.width = 100 * v / most + '%';
      d.append(el('span', k), i, el('span', show(v)));
      return d;
    }));
  }
  bars('dtypes', sums(rows, r => r.dtype, r => r.bytes), human);
  bars('sizes', sums(rows, bucket, r => r.count), v => v.toLocaleString('en') + ' tensors');
  // The table draws what fits a look; the filter looks at all.
  let order = 0, sign = 1, sorted = rows;
  const COLUMNS = ['name', 'count', 'kind', 'dtype', 'shape', 'bytes', 'split'];
  function table() {
    const q = $('q').value, hits = q ? sorted.filter(r => r.name.includes(q)) : sorted;
    $('t').tBodies[0].replaceChildren(...hits.slice(0, 400).map(r => {
      const tr = el('tr');
      for (const c of COLUMNS) {
        const number = c === 'count' || c === 'bytes';
        const td = el('td', c === 'bytes' ? human(r.bytes) : number ? r[c].toLocaleString('en') : r[c], number ? 'n' : c === 'name' || c === 'shape' ? 'c' : '');
        if (c === 'name' && globalThis.nameButton) td.replaceChildren(globalThis.nameButton(r, tr));
        tr.append(td);
      }
      return tr;
    }));
    $('more').textContent = hits.length > 400 ? `400 of ${hits.length} rows: filter for the others` : `${hits.length} rows`;
  }
  $('q').oninput = table;
  $('t').tHead.querySelectorAll('button').forEach((b, i) => b.onclick = () => {
    sign = order === i ? -sign : 1;
    order = i;
    const c = COLUMNS[i];
    sorted = [...rows].sort((a, b) => (a[c] < b[c] ? -1 : a[c] > b[c] ? 1 : 0) * sign);
    table();
  });
  // Which file holds which layers; darker is more.
  const H = D.heat, most = Math.max(...H.cells.map(c => c[2]), 1), at = new Map(H.cells.map(c => [c[0] + ',' + c[1], c[2]]));
  if ($('heat')) $('heat').replaceChildren(...H.files.map((f, i) => {
    const tr = el('tr');
    tr.append(el('th', f));
    H.columns.forEach((name, k) => {
      const v = at.get(i + ',' + k) || 0, td = el('td', undefined, 'h');
      if (v) { td.style.background = `rgba(42, 125, 98, ${.15 + .85 * v / most})`; td.title = `${f}: ${name}: ${human(v)}`; }
      tr.append(td);
    });
    return tr;
  }));
  draw();
  table();
  addEventListener('resize', draw);
  addEventListener('beforeprint', draw);
}
if (typeof document !== 'undefined') main();
</script>
)";

}  // namespace ckpt::app
