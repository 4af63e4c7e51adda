// SPDX-License-Identifier: Apache-2.0
'use strict';
// The name of each row opens it: what its tensor holds, or its many tensors,
// each of which opens in turn. Nothing is read before.
globalThis.nameButton = (() => {
  const SHOWN = ['min', 'max', 'mean', 'std', 'norm', 'zeros', 'nans', 'infs'];
  const MOST = 400;
  const make = (tag, text) => { const e = document.createElement(tag); e.textContent = text; return e; };
  async function ask(what, name) {
    const answer = await fetch(`${what}=${encodeURIComponent(name)}`, { cache: 'no-store' });
    const body = await answer.json();
    if (!answer.ok) throw new Error(body.message);
    return body;
  }
  const number = v => typeof v === 'number' ? Number(v.toPrecision(6)).toString() : v ?? '-';
  async function stats(name, place) {
    place.textContent = 'reading…';
    try {
      const s = (await ask('stats?tensor', name)).stats;
      place.textContent = SHOWN.map(k => `${k} ${number(s[k])}`).join(', ');
      if (typeof magnitudes === 'function') place.append(magnitudes(s.magnitudes));
    } catch (e) {
      place.textContent = e.message;
      place.className = 'warn';
    }
  }
  function entry(name) {
    const line = make('div', ''), b = make('button', name), place = make('span', '');
    b.onclick = () => stats(name, place);
    line.append(b, ' ', place);
    return line;
  }
  async function names(row, place) {
    place.textContent = 'reading…';
    try {
      const all = (await ask('tensors?like', row.first)).tensors;
      place.replaceChildren(...all.slice(0, MOST).map(entry));
      if (all.length > MOST) place.append(make('div', `the first ${MOST} of ${all.length}`));
    } catch (e) {
      place.textContent = e.message;
      place.className = 'warn';
    }
  }
  return (row, tr) => {
    const b = typeof broken === 'function' ? broken(make('button', ''), row.name) : make('button', row.name);
    let below = null;
    b.setAttribute('aria-expanded', 'false');
    b.onclick = () => {
      b.setAttribute('aria-expanded', String(!below));
      if (below) { below.remove(); below = null; return; }
      below = make('tr', '');
      const td = make('td', ''), place = make('div', '');
      td.colSpan = 7;
      td.append(place);
      below.append(td);
      tr.after(below);
      if (row.count === 1) stats(row.first, place); else names(row, place);
    };
    return b;
  };
})();
