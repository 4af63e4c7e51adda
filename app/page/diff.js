// SPDX-License-Identifier: Apache-2.0
const STATUS = {
  same: 'same', note: 'same model', values: 'values', arrangement: 'rearranged', dtype: 'dtype', shape: 'shape',
  only_in_a: 'only in A', only_in_b: 'only in B',
};
function several() {
  const span = el('span', undefined, 'of-mixed');
  span.append(el('i', undefined, 'c-mixed'), 'several');
  return span;
}
const number = v => v === undefined ? '' : typeof v !== 'number' ? v : v && Math.abs(v) < .001 ? v.toExponential(2) : Number(v.toPrecision(3)).toString();
// JSON has no infinity.
const apart = r => r.relative_l2 === 'inf' ? 1e300 : r.relative_l2;
function main() {
  const D = JSON.parse($('data').textContent), rows = D.rows;
  for (const r of rows) { r.what = STATUS[r.status]; r.share = r.elements ? r.differing / r.elements : 0; }
  const root = treeOf(rows);
  paint(root, r => r.status);
  const differing = rows.filter(r => r.status !== 'same');
  $('legend').replaceChildren(...Object.entries(STATUS).filter(([s]) => rows.some(r => r.status === s)).map(([s, word]) => {
    const one = rows.filter(r => r.status === s), span = el('span');
    span.append(el('i', undefined, 'c-' + s), `${word} ${human(one.reduce((n, r) => n + r.bytes, 0))}`);
    return span;
  }), several());
  bars($('kinds'), Object.entries(STATUS).map(([s, word]) => [word, rows.filter(r => r.status === s).length, s]).filter(p => p[1]),
       v => plural(v, 'tensor'), word => 'c-' + Object.keys(STATUS).find(s => STATUS[s] === word));
  const far = differing.filter(r => r.differing).sort((a, b) => apart(b) - apart(a)).slice(0, 10);
  if (far.length) bars($('far'), far.map(r => [r.name, Math.min(apart(r), 1e9)]), number, () => 'c-values');
  else $('far').replaceChildren(el('span', 'no values differ'));
  const columns = [
    { key: 'name', cls: 'c', find: 1 }, { key: 'what', cls: '', find: 1 }, { key: 'dtype', cls: '', find: 1, lesser: 1 },
    { key: 'shape', cls: 'c s', find: 1, lesser: 1 }, { key: 'bytes', cls: 'n least', show: human, lesser: 1 },
    { key: 'relative_l2', cls: 'n', show: number },
    { key: 'share', cls: 'n', show: (v, r) => r.elements ? (v === 1 ? 'all' : share(r.differing, r.elements)) : '', lesser: 1 },
    { key: 'max_abs', cls: 'n', show: number, lesser: 1 },
    { key: 'cosine', cls: 'n least', show: v => typeof v === 'number' ? v.toFixed(6) : number(v), lesser: 1 },
    // Its numbers are in the columns before it.
    { key: 'message', cls: 'm', find: 1, lesser: 1, show: (v, r) => r.elements && r.status === 'values' && !r.why ? '' : v },
  ];
  const table = new Rows(columns);
  table.set(differing.length ? differing : rows);
  if (differing.length && differing.length < rows.length)
    tabs($('grouped'), ['differing', 'all'], w => table.set(w === 'all' ? rows : differing));
  treemap(root, r => { if (r.status === 'same') table.set(rows); $('q').value = r.name; table.filter(); $('q').scrollIntoView({ block: 'nearest' }); });
}
if (typeof document !== 'undefined') main();
