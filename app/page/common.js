// SPDX-License-Identifier: Apache-2.0
'use strict';
const $ = id => document.getElementById(id);
// Text is only ever text: names are set as textContent, never parsed.
function el(tag, text, cls) {
  const e = document.createElement(tag);
  if (text !== undefined) e.textContent = text;
  if (cls) e.className = cls;
  return e;
}
// Names and paths break between their parts, and only if they must.
function broken(e, text) {
  e.replaceChildren(...text.split(/(?<=[./_-])/).flatMap((part, i) => i ? [document.createElement('wbr'), part] : [part]));
  return e;
}
function human(b) {
  const units = ['B', 'KiB', 'MiB', 'GiB', 'TiB', 'PiB', 'EiB'];
  let u = 0;
  while (b >= 1024 && u < units.length - 1) { b /= 1024; ++u; }
  return (u ? b.toFixed(b < 100 ? 1 : 0) : b) + ' ' + units[u];
}
const count = n => n.toLocaleString('en');
function share(part, whole) {
  const s = 100 * part / (whole || 1);
  return s >= 99.95 && part < whole ? '99.9%' : s > 0 && s < .01 ? '<0.01%' : s.toFixed(s < 1 ? 2 : s < 100 ? 1 : 0) + '%';
}
const plural = (n, word) => `${count(n)} ${word}${n === 1 ? '' : 's'}`;
function sums(rows, key, value) {
  const out = new Map();
  for (const r of rows) out.set(key(r), (out.get(key(r)) || 0) + value(r));
  return [...out].sort((a, b) => b[1] - a[1]);
}
// One of a few words; `pick` hears of it.
function tabs(place, words, pick) {
  const buttons = words.map((word, i) => {
    const b = el('button', word);
    b.type = 'button';
    b.setAttribute('aria-pressed', String(i === 0));
    b.onclick = () => { buttons.forEach(o => o.setAttribute('aria-pressed', String(o === b))); pick(word); };
    return b;
  });
  place.replaceChildren(...buttons);
}
function bars(place, list, show, color) {
  const most = Math.max(...list.map(p => p[1]), 1);
  place.replaceChildren(...list.flatMap(([k, v]) => {
    const i = el('i', undefined, color ? color(k) : '');
    i.style.width = 100 * v / most + '%';
    return [broken(el('span'), k), i, el('span', show(v))];
  }));
}
// How many elements there are of each magnitude: powers of four from 2^-48.
function magnitudes(counts, small) {
  const used = counts.map((n, i) => n ? i : -1).filter(i => i >= 0), box = el('div', undefined, small ? 'hist small' : 'hist');
  if (!used.length) return box;
  const first = used[0], last = used[used.length - 1], most = Math.max(...counts), at = i => `2^${2 * i - 48}`;
  box.append(el('span', at(first)));
  for (let i = first; i <= last; ++i) {
    const bar = el('i');
    bar.style.height = 100 * counts[i] / most + '%';
    bar.title = `${at(i)} to ${at(i + 1)}: ${count(counts[i])}`;
    box.append(bar);
  }
  box.append(el('span', at(last + 1)));
  return box;
}
// A table of any number of rows: what a look takes is drawn, more when it is
// scrolled to. Every word of the filter is looked for in `text` of each row.
// columns: {key, show, cls}; cell(row, column, tr) may make an element.
class Rows {
  constructor(columns, cell) {
    this.columns = columns;
    this.cell = cell;
    this.all = this.hits = [];
    this.drawn = 0;
    this.order = null;
    this.sign = 1;
    this.body = $('t').tBodies[0];
    $('t').tHead.querySelectorAll('button').forEach((b, i) => { b.onclick = () => this.sort(i); });
    $('q').oninput = () => this.filter();
    const box = $('t').parentNode;
    box.onscroll = () => { if (box.scrollTop + box.clientHeight > box.scrollHeight - 400) this.more(200); };
    addEventListener('beforeprint', () => this.more(1000));
  }
  set(rows) {
    for (const r of rows) r.text ??= this.columns.map(c => c.find ? r[c.key] : '').join(' ').toLowerCase();
    this.all = rows;
    this.sorted();
  }
  sort(i) {
    this.sign = this.order === i ? -this.sign : (this.columns[i].cls.startsWith('n') ? -1 : 1);
    this.order = i;
    $('t').tHead.querySelectorAll('th').forEach((th, k) => {
      if (k === i) th.setAttribute('aria-sort', this.sign > 0 ? 'ascending' : 'descending');
      else th.removeAttribute('aria-sort');
    });
    this.sorted();
  }
  sorted() {
    if (this.order !== null) {
      const k = this.columns[this.order].key, s = this.sign;
      this.all = [...this.all].sort((a, b) => (a[k] < b[k] ? -1 : a[k] > b[k] ? 1 : 0) * s);
    }
    this.filter();
  }
  filter() {
    const words = $('q').value.toLowerCase().split(/\s+/).filter(w => w);
    this.hits = words.length ? this.all.filter(r => words.every(w => r.text.includes(w))) : this.all;
    this.drawn = 0;
    this.body.replaceChildren();
    this.more(60);
  }
  more(n) {
    const rows = this.hits.slice(this.drawn, this.drawn + n);
    this.drawn += rows.length;
    this.body.append(...rows.map(r => {
      const tr = el('tr');
      for (const c of this.columns) {
        const td = el('td', undefined, c.cls + (c.lesser ? ' lesser' : '')), made = this.cell && this.cell(r, c, tr);
        if (made) td.append(made); else if (c.cls === 'c') broken(td, r[c.key]); else td.textContent = c.show ? c.show(r[c.key], r) : r[c.key];
        tr.append(td);
      }
      return tr;
    }));
    $('more').textContent = (this.hits.length < this.all.length ? `${count(this.hits.length)} of ` : '') + plural(this.all.length, 'row')
        + (this.drawn < this.hits.length ? `, ${count(this.drawn)} shown` : '');
  }
}
// What there is of each rank, as far as the name of its file says it.
const RANKS = [
  [/zero_pp_rank_(\d+)_mp_rank_(\d+)/, m => `dp ${+m[1]} mp ${+m[2]}`],
  [/mp_rank_(\d+)_(\d+)_(\d+)/, m => `tp ${+m[1]} pp ${+m[2]} ep ${+m[3]}`],
  [/mp_rank_(\d+)_(\d+)/, m => `tp ${+m[1]} pp ${+m[2]}`],
  [/mp_rank_(\d+)/, m => `tp ${+m[1]}`],
  [/__(\d+)_\d+\.distcp/, m => `rank ${+m[1]}`],
  [/consolidated\.(\d+)\.pth/, m => `tp ${+m[1]}`],
  [/rank[-_]?(\d+)/, m => `rank ${+m[1]}`],
];
function rankOf(file) {
  const grid = [...file.matchAll(/(?:^|[^a-z])(pp|tp|dp|ep)_?(\d+)/g)].map(m => `${m[1]} ${+m[2]}`);
  if (grid.length) return grid.join(' ');
  for (const [what, say] of RANKS) {
    const m = file.match(what);
    if (m) return say(m);
  }
  return '';
}
// Paths without the folders, and the last part, that all of them have.
function shortPaths(paths) {
  const parts = paths.map(p => p.split('/'));
  while (parts.length > 1 && parts.every(p => p.length > 1 && p[0] === parts[0][0])) parts.forEach(p => p.shift());
  while (parts.length > 1 && parts.every(p => p.length > 1 && p[p.length - 1] === parts[0][parts[0].length - 1])) parts.forEach(p => p.pop());
  return parts.map(p => p.join('/'));
}
