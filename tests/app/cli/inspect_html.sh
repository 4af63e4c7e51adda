# SPDX-License-Identifier: Apache-2.0
# The page loads nothing, names in it are escaped, and only a page is replaced.
ckpt inspect bad/pickle/key_escape_sequences.pt --html "$TMP/page.html" >"$TMP/out"
grep -o '{"name":"w[^}]*}' "$TMP/page.html"
grep -cE '(src|href)=|@import|url\(' "$TMP/page.html"
ckpt inspect bad/pickle/key_escape_sequences.pt --html "$TMP/page.html" -q >"$TMP/out"
ckpt inspect bad/pickle/key_escape_sequences.pt --html - | cmp - "$TMP/page.html"
echo precious >"$TMP/model.pt"
ckpt inspect bad/pickle/key_escape_sequences.pt --html "$TMP/model.pt"
