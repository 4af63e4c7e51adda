// SPDX-License-Identifier: Apache-2.0
// Rectangles [x, y, w, h] whose areas are as `sizes`, largest first, as nearly
// square as rows of them can be (Bruls, Huizing, van Wijk).
function squarify(sizes, x, y, w, h) {
  const total = sizes.reduce((s, v) => s + v, 0), out = [];
  if (!(total > 0 && w > 0 && h > 0)) return sizes.map(() => [x, y, 0, 0]);
  const areas = sizes.map(v => v / total * w * h);
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
// Rows {name, bytes, …} as a tree of the modules in their names. A module with
// nothing but one module in it is one with it.
function treeOf(rows) {
  const MOST = 32;  // modules in each other; no model has as many
  const node = name => ({ name, bytes: 0, leaves: 0, row: null, below: new Map() });
  const root = node('');
  for (const r of rows) {
    const parts = r.name.split('.');
    if (parts.length > MOST) parts.push(parts.splice(MOST - 1).join('.'));
    let at = root;
    at.bytes += r.bytes;
    ++at.leaves;
    for (const part of parts) {
      let next = at.below.get(part);
      if (!next) at.below.set(part, next = node(part));
      at = next;
      at.bytes += r.bytes;
      ++at.leaves;
    }
    at.row = r;
  }
  const join = n => {
    for (const [key, child] of [...n.below]) {
      let c = child;
      while (c.below.size === 1 && !c.row) {
        const only = c.below.values().next().value;
        only.name = c.name + '.' + only.name;
        c = only;
      }
      n.below.set(key, c);
      join(c);
    }
    // A tensor that is a module too: "a" beside "a.b".
    if (n.row && n.below.size) {
      const self = node('(itself)');
      self.row = n.row;
      self.leaves = 1;
      self.bytes = n.bytes - [...n.below.values()].reduce((s, c) => s + c.bytes, 0);
      n.below.set('', self);
    }
  };
  join(root);
  return root;
}
// Children by size; those too small to be seen or hit are one tile together,
// which is to scale as well.
function tilesOf(node, w, h, least) {
  const inside = n => [...n.below.values()].filter(c => c.bytes > 0);
  let all = inside(node).sort((a, b) => b.bytes - a.bytes);
  // A tile that is nearly the whole map says little: what it holds is shown.
  const MOST = .8, whole = all.reduce((s, n) => s + n.bytes, 0);
  for (let n = all[0]; n && n.bytes > MOST * whole && inside(n).length > 1; n = all[0])
    all = [...all.slice(1), ...inside(n).map(c => ({ ...c, name: `${n.name}.${c.name}`, of: n.name }))].sort((a, b) => b.bytes - a.bytes);
  const total = all.reduce((s, n) => s + n.bytes, 0), small = all.filter((n, i) => n.bytes / total * w * h < least || i >= 400);
  if (small.length < 2) return { tiles: all, small: [] };
  const rest = { name: `${count(small.length)} smaller`, rest: true, row: null, bytes: 0, leaves: 0, below: new Map() };
  small.forEach((n, i) => { rest.bytes += n.bytes; rest.leaves += n.leaves; rest.below.set(i, n); });
  rest.paint = small.every(n => n.paint === small[0].paint) ? small[0].paint : 'mixed';
  const kept = new Set(small);
  return { tiles: [...all.filter(n => !kept.has(n)), rest].sort((a, b) => b.bytes - a.bytes), small };
}
// n.paint: what all of a module's tensors have in common, else "mixed".
function paint(n, of) {
  let found = n.row ? of(n.row) : '';
  for (const c of n.below.values()) {
    const one = paint(c, of);
    found = !found || found === one ? one : 'mixed';
  }
  return n.paint = found;
}
// Nodes have their paint; pick(row) hears of a tensor that was chosen.
function treemap(root, pick) {
  const LEAST = 150;  // square pixels
  const map = $('map');
  let trail = [root], shown = [];
  // A map of one tile says nothing.
  for (let n = root; n.below.size === 1; trail.push(n)) {
    n = n.below.values().next().value;
    if (!n.below.size) break;
  }
  const label = n => `${n.name}: ${human(n.bytes)}, ${share(n.bytes, root.bytes)} of all` +
      (n.row ? '' : `, ${plural(n.leaves, 'tensor')}`);
  // In shares of what they are in, so that a page of paper, or another window,
  // keeps them to scale.
  const put = (e, x, y, w, h, wide, high) => {
    e.style.cssText = `left:${100 * x / wide}%;top:${100 * y / high}%;width:${100 * w / wide}%;height:${100 * h / high}%`;
  };
  // Tiles of one module have their whole names if there is room for all of them.
  const labels = (tiles, boxes) => {
    const tight = new Set(tiles.filter((n, i) => n.of && 7 * n.name.length > boxes[i][2] - 12).map(n => n.of));
    return tiles.map(n => tight.has(n.of) ? n.name.slice(n.of.lastIndexOf('.') + 1) : n.name);
  };
  // What is in a tile, and in that: lines alone, where there is room.
  function lines(b, n, x, y, w, h, depth, wide, high) {
    if (w < 48 || h < 40 || n.below.size < 2 || depth > 2) return;
    const { tiles } = tilesOf(n, w, h, 40);
    squarify(tiles.map(t => t.bytes), x, y, w, h).forEach((r, k) => {
      const i = el('i', undefined, n.paint === 'mixed' ? 'c-' + tiles[k].paint : '');
      put(i, ...r, wide, high);
      b.append(i);
      lines(b, tiles[k], ...r, depth + 1, wide, high);
    });
  }
  function draw(focus) {
    const node = trail[trail.length - 1], w = map.clientWidth, h = map.clientHeight;
    const { tiles, small } = tilesOf(node, w, h, LEAST);
    const boxes = squarify(tiles.map(n => n.bytes), 0, 0, w, h);
    const names = labels(tiles, boxes);
    shown = tiles.map((n, i) => {
      const [x, y, tw, th] = boxes[i], b = el('button', undefined, 'c-' + n.paint);
      put(b, x, y, tw, th, w, h);
      b.type = 'button';
      b.tabIndex = i ? -1 : 0;
      b.dataset.bytes = n.bytes;
      b.title = label(n);
      b.setAttribute('aria-label', label(n));
      lines(b, n, 0, 0, tw, th, 0, tw, th);
      if (tw > 34 && th > 20) b.append(el('b', names[i]));
      if (tw > 70 && th > 38) b.append(el('em', `${human(n.bytes)} · ${share(n.bytes, node.bytes)}`));
      b.onclick = () => open(n);
      return { b, x: x + tw / 2, y: y + th / 2 };
    });
    map.replaceChildren(...shown.map(t => t.b));
    $('legend').querySelectorAll('.of-mixed').forEach(e => { e.hidden = !map.querySelector('.c-mixed'); });
    $('path').replaceChildren(...trail.flatMap((n, i) => {
      const b = el('button', i ? n.name : 'all'), last = i === trail.length - 1;
      b.type = 'button';
      if (last) b.setAttribute('aria-current', 'true');
      b.onclick = () => { trail.length = i + 1; draw(true); };
      return i ? [el('span', '›'), b] : [b];
    }), el('span', human(node.bytes), 'soft'));
    const empty = [...node.below.values()].filter(n => !n.bytes).length;
    $('smaller').textContent = (small.length ? `${count(small.length)} smaller ones share a tile of their size: ${human(small.reduce((s, n) => s + n.bytes, 0))}. ` : '')
        + (empty ? `${count(empty)} without a byte are not drawn.` : '');
    if (focus && shown.length) shown[0].b.focus({ preventScroll: true });
  }
  function open(n) {
    if (n.below.size) { trail.push(n); draw(true); } else if (n.row) pick(n.row);
  }
  function up() {
    if (trail.length > 1) { trail.pop(); draw(true); }
  }
  // The nearest tile in the direction of the arrow.
  function move(dx, dy) {
    const at = shown.find(t => t.b === document.activeElement) || shown[0];
    let best = null, cost = Infinity;
    for (const t of shown) {
      const along = (t.x - at.x) * dx + (t.y - at.y) * dy, off = Math.abs((t.x - at.x) * dy) + Math.abs((t.y - at.y) * dx);
      if (t !== at && along > .5 && along + 2 * off < cost) { best = t; cost = along + 2 * off; }
    }
    if (!best) return;
    shown.forEach(t => { t.b.tabIndex = t === best ? 0 : -1; });
    best.b.focus();
  }
  const ARROWS = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] };
  map.onkeydown = e => {
    if (ARROWS[e.key]) move(...ARROWS[e.key]);
    else if (e.key === 'Escape' || e.key === 'Backspace') up();
    else return;
    e.preventDefault();
  };
  addEventListener('resize', () => draw());
  addEventListener('beforeprint', () => draw());
  draw();
  return draw;
}
