#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The page of `inspect --html`: its data, its safety, and its drawing.

The page is parsed here; its script runs in node, if there is one, with areas
and overlaps of the map's tiles checked. 50,000 rows are filtered there too.
"""

import json
import re
import shutil
import subprocess
from html.parser import HTMLParser

from support import DATA, Skip, Suite, check, check_equal

CKPT = None
LEGACY = DATA / "megatron_legacy/llama_te_tp2_pp2/ckpt"
VOID = {"meta", "input", "br", "link", "img"}


class Page(HTMLParser):
    """Elements that nest, ids, scripts by id, attributes that load something."""

    def __init__(self, text):
        super().__init__()
        self.open, self.ids, self.scripts, self.loads = [], [], {}, []
        self.policy = None
        self.feed(text)
        check_equal(self.open, [], "elements left open")

    def handle_starttag(self, tag, attrs):
        attrs = dict(attrs)
        if "id" in attrs:
            self.ids.append(attrs["id"])
        if attrs.get("http-equiv") == "Content-Security-Policy":
            self.policy = attrs["content"]
        self.loads += [k for k in attrs if k in ("src", "href", "action")]
        self.loads += [k for k in attrs if k.startswith("on")]
        if tag not in VOID:
            self.open.append((tag, attrs.get("id", "")))

    def handle_endtag(self, tag):
        check(self.open and self.open[-1][0] == tag,
              f"</{tag}> closes {self.open[-1:]}")
        self.open.pop()

    def handle_data(self, data):
        if self.open and self.open[-1][0] == "script":
            self.scripts[self.open[-1][1]] = data


def page_of(path, folder, *args):
    CKPT.ok("inspect", path, "--html", folder / "page.html", "-q", *args)
    text = (folder / "page.html").read_text()
    return text, Page(text)


def data_is_the_catalog(folder):
    text, page = page_of(LEGACY, folder)
    data = json.loads(page.scripts["data"])
    tensors = CKPT.inspect(LEGACY, "--shards")["tensors"]
    check_equal(sum(r["bytes"] for r in data["rows"]),
                sum(t["bytes"] for t in tensors), "bytes")
    check_equal(sum(r["count"] for r in data["rows"]), len(tensors), "tensors")
    heat, want = data["heat"], {}
    for t in tensors:
        layer = re.search(r"layers\.(\d+)\.", t["name"])
        column = f"layer {layer[1]}" if layer else "other tensors"
        size = t["bytes"] // max(1, eval("*".join(map(str, t["shape"])) or "1"))
        for s in t["shards"]:
            count = eval("*".join(map(str, s["shape"])) or "1")
            if "flat" in s:
                count = s["flat"][1] - s["flat"][0]
            key = s["file"].split("ckpt/iter_0000005/")[-1], column
            want[key] = want.get(key, 0) + count * size
    got = {(heat["files"][f], heat["columns"][c]): b
           for f, c, b in heat["cells"]}
    check_equal(got, want, "the heat map")


def page_is_safe(folder):
    """Nothing is loaded, and no name gets out of the data."""
    import numpy
    from safetensors.numpy import save_file
    names = ["</script><script>alert(1)</script>.w", "a\"b'c&<d>.w", "<!--.w",
             "\u202eevil.w"]
    save_file({n: numpy.zeros(k + 1, "f4") for k, n in enumerate(names)},
              folder / "a.safetensors")
    text, page = page_of(folder / "a.safetensors", folder)
    check_equal(page.loads, [], "attributes that load or run")
    check(page.policy.startswith("default-src 'none';"), page.policy)
    check_equal(sorted(page.scripts), ["", "data"], "scripts")
    check("alert(1)" not in page.scripts[""], "a name is in the script")
    rows = json.loads(page.scripts["data"])["rows"]
    check_equal({r["name"] for r in rows} & set(names[:3]), set(names[:3]),
                "names")
    check(not re.search(r"@import|url\(|fetch\(|XMLHttp|innerHTML", text),
          "something is fetched, or made of text")
    for part in ("color-scheme: light dark", "@media print", "aria-label"):
        check(part in text, part)
    check_equal(len(page.ids), len(set(page.ids)), "ids")


NODE = r"""
const fail = m => { console.error(m); process.exit(1); };
let seed = 7;
const random = () => (seed = (seed * 16807) % 2147483647) / 2147483647;
for (let n = 0; n < 400; ++n) {
  const count = 1 + Math.floor(random() * 60), w = 50 + random() * 1500, h = 50 + random() * 900;
  const sizes = Array.from({ length: count }, () => Math.floor(10 ** (random() * 12))).sort((a, b) => b - a);
  if (n % 5 === 0) sizes.push(0);
  const total = sizes.reduce((s, v) => s + v, 0), tiles = squarify(sizes, 0, 0, w, h);
  if (tiles.length !== sizes.length) fail('a tile for each');
  tiles.forEach(([x, y, tw, th], i) => {
    const want = sizes[i] / total * w * h;
    if (Math.abs(tw * th - want) > 1e-6 * w * h) fail(`area ${tw * th}, ${want}`);
    if (x < -1e-3 || y < -1e-3 || x + tw > w + 1e-3 || y + th > h + 1e-3)  // of a pixel
       fail('out of the map');
    for (let k = 0; k < i; ++k) {
      const [a, b, c, d] = tiles[k];
      if (Math.min(x + tw, a + c) - Math.max(x, a) > 1e-3 && Math.min(y + th, b + d) - Math.max(y, b) > 1e-3) fail('two overlap');
    }
  });
}
// Tiles of one size are nearly square.
for (let n = 4; n < 60; ++n)
  for (const [, , w, h] of squarify(Array(n).fill(7), 0, 0, 900, 400))
    if (Math.max(w / h, h / w) > 3) fail(`${n} equal tiles: ${w} x ${h}`);
const t = treeOf([{ name: 'a.b.w', bytes: 5 }, { name: 'a.c', bytes: 7 }]);
if (t.bytes !== 12 || t.below.get('a').below.get('b').bytes !== 5) fail('the tree');
const rows = Array.from({ length: 50000 }, (_, i) => ({ name: `model.layers.${i}.mlp.up_proj.weight`, bytes: i }));
const start = performance.now();
if (rows.filter(r => r.name.includes('.4242')).length < 1) fail('the filter');
if (performance.now() - start > 100) fail('50,000 rows took more than 100 ms');
"""


def drawing(folder):
    node = shutil.which("node")
    if node is None:
        raise Skip("node is not installed")
    _, page = page_of(LEGACY, folder)
    (folder / "page.js").write_text(page.scripts[""] + NODE)
    done = subprocess.run([node, folder / "page.js"], text=True, check=False,
                          capture_output=True)
    check(done.returncode == 0, done.stderr[:2000])


def runs_whole(folder):
    """main() on a document of stubs: every element that it wants is there."""
    node = shutil.which("node")
    if node is None:
        raise Skip("node is not installed")
    _, page = page_of(LEGACY, folder)
    stub = """
const made = [];
function element(tag) {
  const e = { tag, style: {}, children: [], clientWidth: 900, clientHeight: 400, value: '',
    setAttribute() {}, focus() {}, append(...c) { this.children.push(...c); },
    replaceChildren(...c) { this.children = c; }, querySelectorAll() { return [element('button')]; },
    get firstChild() { return this.children[0]; } };
  made.push(e);
  return e;
}
const ids = {};
for (const id of IDS) { ids[id] = element('div'); ids[id].tBodies = [element('tbody')]; ids[id].tHead = element('thead'); }
ids.data.textContent = DATA;
globalThis.document = { getElementById: id => ids[id] ?? null, createElement: element };
globalThis.addEventListener = () => {};
"""
    head = (f"const IDS = {json.dumps(page.ids)}, "
            f"DATA = {json.dumps(page.scripts['data'])};\n")
    tail = """
if (!ids.map.children.length || !ids.t.tBodies[0].children.length || !ids.heat.children.length) { console.error('nothing was drawn'); process.exit(1); }
const before = ids.map.children.length;
ids.map.children[0].onclick();
if (ids.path.children.length !== 3) { console.error('no way back'); process.exit(1); }
ids.map.onkeydown({ key: 'Escape' });
if (ids.map.children.length !== before) { console.error('Escape goes up'); process.exit(1); }
ids.q.value = 'embedding';
ids.q.oninput();
if (ids.t.tBodies[0].children.some(r => !r.children[0].textContent.includes('embedding'))) { console.error('the filter'); process.exit(1); }
"""
    script = page.scripts[""].replace("'use strict';", "", 1)
    (folder / "page.js").write_text(stub.replace("const ids", head + "const ids", 1)
                                    + script + tail)
    done = subprocess.run([node, folder / "page.js"], text=True, check=False,
                          capture_output=True)
    check(done.returncode == 0, done.stderr[:2000])


def prepare(suite, ckpt):
    global CKPT
    CKPT = ckpt
    for case in (data_is_the_catalog, page_is_safe, drawing, runs_whole):
        suite.add(case.__name__, case)


if __name__ == "__main__":
    Suite(__doc__).main(prepare)
