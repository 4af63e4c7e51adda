// SPDX-License-Identifier: Apache-2.0
const SVG = 'http://www.w3.org/2000/svg';
function shape(tag, attributes, text) {
  const e = document.createElementNS(SVG, tag);
  for (const [k, v] of Object.entries(attributes)) e.setAttribute(k, v);
  if (text !== undefined) e.textContent = text;
  return e;
}
// The ranks of a topology as squares: tp across, pp down; more dimensions, and
// what is too large, in words.
function grid(place, name, t) {
  const figure = el('figure'), MOST = 32, box = el('div', undefined, 'ranks');
  figure.append(el('figcaption', `${name}: tp ${t.tp}, pp ${t.pp}, dp ${t.dp}, ep ${t.ep}`));
  if (t.tp <= MOST && t.pp <= MOST) {
    box.style.gridTemplateColumns = `repeat(${t.tp}, 22px)`;
    box.append(...Array.from({ length: t.tp * t.pp }, (_, i) => {
      const square = el('i');
      square.title = `tp ${i % t.tp}, pp ${Math.floor(i / t.tp)}`;
      return square;
    }));
    figure.append(box);
  }
  place.append(figure);
}
// One side's files, or ranks, as blocks whose heights are to scale.
function stack(nodes, scale, gap) {
  let y = 0;
  for (const n of nodes) {
    n.y = n.next = y;
    n.h = n.bytes * scale;
    y += n.h + gap;
  }
  return y - gap;
}
function drawFlow(sources, targets, flows) {
  const svg = $('flow'), width = svg.clientWidth || 900, GAP = 3, BAR = 14, most = Math.max(sources.length, targets.length);
  const words = Math.max(...[...sources, ...targets].map(n => (n.short || n.name).length));
  const side = Math.min(7.2 * words + 10, width * .36), height = Math.max(220, Math.min(17 * most + 40, 1400));
  const total = flows.reduce((s, f) => s + f.bytes, 0) || 1, scale = (height - GAP * (most - 1)) / total;
  for (const nodes of [sources, targets]) {
    nodes.forEach(n => { n.bytes = 0; n.ribbons = []; });
  }
  for (const f of flows) { f.from.bytes += f.bytes; f.to.bytes += f.bytes; }
  const ends = [sources, targets].map(nodes => stack(nodes, scale, GAP));
  [sources, targets].forEach((nodes, i) => nodes.forEach(n => { n.y += (height - ends[i]) / 2; n.next = n.y; }));
  svg.setAttribute('viewBox', `0 0 ${width} ${height}`);
  svg.setAttribute('height', height);
  const left = side + BAR, right = width - side - BAR, mid = (left + right) / 2, ribbons = [];
  for (const f of [...flows].sort((a, b) => a.from.y - b.from.y || a.to.y - b.to.y)) {
    const h = f.bytes * scale, y = f.from.next, z = f.to.next;
    f.from.next += h;
    f.to.next += h;
    const p = shape('path', { class: 'ribbon', d: `M${left},${y}C${mid},${y} ${mid},${z} ${right},${z}V${z + h}C${mid},${z + h} ${mid},${y + h} ${left},${y + h}Z` });
    p.dataset.bytes = f.bytes;
    p.append(shape('title', {}, `${f.from.name} → ${f.to.name}: ${human(f.bytes)}`));
    f.from.ribbons.push(p);
    f.to.ribbons.push(p);
    ribbons.push(p);
  }
  const blocks = [[sources, side, side - 6, 'end'], [targets, right, right + BAR + 6, 'start']].flatMap(([nodes, x, at, anchor]) => {
    let last = -Infinity;
    return nodes.filter(n => n.bytes).flatMap(n => {
      const group = shape('g', { class: 'node', tabindex: 0, role: 'img', 'aria-label': `${n.name}: ${human(n.bytes)}` });
      const block = shape('rect', { x, y: n.y, width: BAR, height: Math.max(n.h, .5), fill: 'var(--accent)' }), middle = n.y + n.h / 2;
      block.dataset.bytes = n.bytes;
      group.append(block, shape('title', {}, `${n.name}: ${human(n.bytes)}`));
      if (middle - last >= 12) {
        const room = Math.floor(side / 7.2), words = n.short || n.name;
        group.append(shape('text', { x: at, y: middle + 4, 'text-anchor': anchor }, words.length > room ? '…' + words.slice(1 - room) : words));
        last = middle;
      }
      const light = on => {
        ribbons.forEach(p => p.classList.toggle('faded', on));
        n.ribbons.forEach(p => { p.classList.remove('faded'); p.classList.toggle('on', on); });
        $('flow-say').textContent = on ? `${n.name}: ${human(n.bytes)}, ${plural(n.ribbons.length, 'part')}` : '';
      };
      group.onmouseenter = group.onfocus = () => light(true);
      group.onmouseleave = group.onblur = () => light(false);
      return [group];
    });
  });
  svg.replaceChildren(...ribbons, ...blocks);
}
// Files of one rank as one node.
function byRank(nodes) {
  const ranks = new Map();
  return nodes.map(n => {
    const key = rankOf(n.name) || n.name;
    if (!ranks.has(key)) ranks.set(key, { name: key });
    return ranks.get(key);
  });
}
function main() {
  const D = JSON.parse($('data').textContent);
  const nodes = side => { const short = shortPaths(side.files); return side.files.map((name, i) => ({ name, short: short[i] })); };
  const files = [nodes(D.source), nodes(D.target)], ranks = files.map(byRank);
  const flowsOf = ends => {
    const all = new Map();
    for (const [s, t, bytes] of D.flow) {
      const from = ends[0][s], to = ends[1][t], key = from.name + '\0' + to.name, f = all.get(key) || { from, to, bytes: 0 };
      f.bytes += bytes;
      all.set(key, f);
    }
    return [...all.values()];
  };
  grid($('grids'), 'before', D.source.topology);
  grid($('grids'), 'after', D.target.topology);
  let ends = files;
  const draw = () => drawFlow([...new Set(ends[0])], [...new Set(ends[1])], flowsOf(ends));
  const table = new Rows([{ key: 'from', cls: 'c', find: 1 }, { key: 'to', cls: 'c', find: 1 }, { key: 'bytes', cls: 'n', show: human }]);
  const list = () => table.set(flowsOf(ends).map(f => ({ from: f.from.name, to: f.to.name, bytes: f.bytes })));
  if (files.some((side, i) => new Set(ranks[i]).size < side.length || side.some(n => rankOf(n.name))))
    tabs($('flow-by'), ['files', 'ranks'], w => { ends = w === 'files' ? files : ranks; draw(); list(); });
  draw();
  list();
  addEventListener('resize', draw);
  addEventListener('beforeprint', draw);
}
if (typeof document !== 'undefined') main();
