// SPDX-License-Identifier: Apache-2.0
// Which file, or rank, holds how much of which layer. Arrows walk over cells.
function heatMap(H) {
  const short = shortPaths(H.files), files = H.files.map((name, i) => ({ name, short: short[i], rank: rankOf(name), cells: new Map() }));
  for (const [f, c, b] of H.cells) files[f].cells.set(c, b);
  const ranks = new Map();
  for (const f of files) {
    const key = f.rank || 'other files', at = ranks.get(key) || { name: key, cells: new Map() };
    for (const [c, b] of f.cells) at.cells.set(c, (at.cells.get(c) || 0) + b);
    ranks.set(key, at);
  }
  const of = r => [...r.cells.values()].reduce((s, b) => s + b, 0), say = text => { $('heat-say').textContent = text; };
  function draw(rows, what) {
    const most = Math.max(...rows.flatMap(r => [...r.cells.values()]), 1), head = el('tr'), thead = el('thead'), tbody = el('tbody');
    head.append(el('th', what), el('th', ''), ...H.columns.map((c, i) => {
      const th = el('th', H.columns.length < 12 || i % 4 === 0 || i === H.columns.length - 1 ? c.replace('layers ', '').replace('layer ', '').replace(' to ', '–').replace('other tensors', 'other') : '');
      th.title = c;
      return th;
    }));
    thead.append(head);
    tbody.append(...rows.map((r, y) => {
      const tr = el('tr'), name = el('th', r.short || r.name);
      name.title = r.name;
      tr.append(name, el('td', human(of(r)), 'sum'), ...H.columns.map((c, x) => {
        const v = r.cells.get(x) || 0, td = el('td');
        if (v) td.style.background = `rgba(var(--heat), ${.08 + .92 * v / most})`;
        td.tabIndex = x || y ? -1 : 0;
        td.title = `${r.name}, ${c}: ${human(v)}`;
        td.setAttribute('aria-label', td.title);
        return td;
      }));
      return tr;
    }));
    $('heat').replaceChildren(thead, tbody);
    $('heat-most').textContent = human(most);
    tbody.onmouseover = tbody.onfocusin = e => { if (e.target.title) say(e.target.title); };
    const STEPS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
    tbody.onkeydown = e => {
      const step = STEPS[e.key], td = e.target;
      if (!step || td.tagName !== 'TD') return;
      const tr = tbody.rows[td.parentNode.sectionRowIndex + step[0]], next = tr && tr.cells[td.cellIndex + step[1]];
      if (next && next.tabIndex > -2 && next.title && next.tagName === 'TD') { td.tabIndex = -1; next.tabIndex = 0; next.focus(); say(next.title); }
      e.preventDefault();
    };
  }
  draw(files, 'file');
  if (ranks.size > 1 && ranks.size < files.length || files.some(f => f.rank && f.rank !== f.name))
    tabs($('heat-by'), ['files', 'ranks'], w => w === 'files' ? draw(files, 'file') : draw([...ranks.values()], 'rank'));
}
const LIMITS = [[1024, 'under 1 KiB'], [1048576, '1 KiB to 1 MiB'], [1073741824, '1 MiB to 1 GiB'], [Infinity, '1 GiB and over']];
// What is sorted by, of values: how many are no numbers, and how far the
// largest is from the usual one. All numbers are of one magnitude or zero.
function addValues(r) {
  const [min, max, , , norm, zeros, nans, infs, counts] = r.stats;
  const numbers = counts.reduce((s, n) => s + n, zeros), most = Math.max(Math.abs(min), Math.abs(max));
  r.bad = nans + infs;
  r.norm = norm;
  r.peak = numbers && norm > 0 ? most / (norm / Math.sqrt(numbers)) : 0;
}
// What is no number first, then the largest outlier.
function worstFirst(rows) {
  rows.forEach(addValues);
  return rows.sort((a, b) => b.bad - a.bad || b.peak - a.peak);
}
const short = v => typeof v === 'number' ? String(Number(v.toPrecision(4))) : '-';
// A name that opens what is known of its values (--stats).
const SHOWN = ['min', 'max', 'mean', 'std', 'norm', 'zeros', 'NaN', 'inf'];
function statsButton(r, tr) {
  const b = broken(el('button'), r.name);
  let below = null;
  b.type = 'button';
  b.setAttribute('aria-expanded', 'false');
  b.onclick = () => {
    b.setAttribute('aria-expanded', String(!below));
    if (below) { below.remove(); below = null; return; }
    below = el('tr');
    const td = el('td');
    td.colSpan = 11;
    td.append(el('span', SHOWN.map((k, i) => `${k} ${typeof r.stats[i] === 'number' ? Number(r.stats[i].toPrecision(6)) : '-'}`).join(', ')), magnitudes(r.stats[8]));
    below.append(td);
    tr.after(below);
  };
  return b;
}
function main() {
  const D = JSON.parse($('data').textContent), rows = D.rows, WORDS = { optim: 'optimizer' };
  for (const r of rows) r.part = WORDS[r.kind] || r.kind;
  // A row stands for the same tensor of all layers; here each for itself.
  const each = rows.flatMap(r => r.names ? r.names.map((name, i) => ({
    name, first: name, kind: r.kind, part: r.part, dtype: r.dtype, shape: r.shape, count: 1, bytes: r.bytes / r.count, split: r.split, stats: r.each && r.each[i],
  })) : [r]);
  const dtypes = sums(rows, r => r.dtype, r => r.bytes), byDtype = new Map(dtypes.map((d, i) => [d[0], 'd' + Math.min(i, 7)]));
  const root = treeOf(each);
  let colour = 'kind';
  const repaint = () => paint(root, r => colour === 'kind' ? r.kind : byDtype.get(r.dtype));
  repaint();
  function legend() {
    const kinds = sums(rows, r => r.kind, r => r.bytes).map(k => [WORDS[k[0]] || k[0], k[0], k[1]]);
    const list = colour === 'kind' ? kinds : dtypes.map(d => [d[0], byDtype.get(d[0]), d[1]]);
    $('legend').replaceChildren(...list.concat(list.length > 1 ? [['several', 'mixed', 0]] : []).map(([name, cls, bytes]) => {
      const s = el('span', undefined, cls === 'mixed' ? 'of-mixed' : '');
      s.append(el('i', undefined, 'c-' + cls), name + (bytes ? ` ${human(bytes)}` : ''));
      return s;
    }));
  }
  legend();
  const draw = treemap(root, r => { $('q').value = r.name; table.filter(); $('q').scrollIntoView({ block: 'nearest' }); $('q').focus(); });
  tabs($('colour'), ['kind', 'dtype'], w => { colour = w; repaint(); legend(); draw(); });
  bars($('dtypes'), dtypes.slice(0, 12), human, k => 'c-' + byDtype.get(k));
  const sizes = LIMITS.map(([limit, name], i) => [name, rows.reduce((s, r) => {
    const one = r.bytes / r.count;
    return s + (one < limit && (!i || one >= LIMITS[i - 1][0]) ? r.count : 0);
  }, 0)]).filter(p => p[1]);
  bars($('sizes'), sizes, v => plural(v, 'tensor'));
  heatMap(D.heat);
  const columns = [
    { key: 'name', cls: 'c', find: 1 }, { key: 'count', cls: 'n', show: count, lesser: 1 }, { key: 'part', cls: '', find: 1, lesser: 1 },
    { key: 'dtype', cls: '', find: 1 }, { key: 'shape', cls: 'c s', find: 1, lesser: 1 }, { key: 'bytes', cls: 'n', show: human }, { key: 'split', cls: '', find: 1, lesser: 1 },
  ];
  if (rows.some(r => r.stats)) {
    columns.push({ key: 'norm', cls: 'n', show: short }, { key: 'peak', cls: 'n', show: short }, { key: 'bad', cls: 'n', show: count }, { key: 'counts', cls: 'h', lesser: 1 });
    worstFirst(rows);
    worstFirst(each);
  }
  const table = new Rows(columns, (r, c, tr) => c.key === 'counts' ? magnitudes(r.stats[8], true) : c.key !== 'name' ? null : globalThis.nameButton ? globalThis.nameButton(r, tr) : r.stats ? statsButton(r, tr) : null);
  table.set(rows);
  if (each.length > rows.length) tabs($('grouped'), ['layers together', 'every tensor'], w => table.set(w === 'every tensor' ? each : rows));
  globalThis.table = table;
}
if (typeof document !== 'undefined') main();
