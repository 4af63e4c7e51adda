#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds docs/ as a site, in build/site unless told otherwise. A link to no
# page or no heading, and a page that nothing leads to, are errors.
#
#   scripts/docs.sh [FOLDER]
set -euo pipefail
. "$(dirname "$0")/common.sh"

site=$(realpath -m "${1:-build/site}")
make_venv || die "python3 -m venv failed"

# In a folder of its own, as it brings twenty packages.
mkdocs=$venv/mkdocs-material_9.8.2
[ -d "$mkdocs/material" ] ||
  venv_pip --target "$mkdocs" mkdocs==1.6.1 mkdocs-material==9.8.2 ||
  die "mkdocs-material is not to be had"

step "building the site"
NO_MKDOCS_2_WARNING=1 PYTHONPATH=$mkdocs "$venv/bin/python" -m mkdocs build \
  --quiet --strict --site-dir "$site"

# mkdocs checks links between pages. This checks that no page fetches anything
# from elsewhere, since the site must work without a network.
if grep -rlE '<(script|link|img)[^>]*(src|href)="?(https?:)?//' "$site" \
  --include='*.html' | grep -q .; then
  grep -rhoE '<(script|link|img)[^>]*(src|href)="?(https?:)?//[^ >]*' "$site" \
    --include='*.html' | sort | uniq -c >&2
  die "pages fetch from elsewhere"
fi
say "built $site: $(find "$site" -name '*.html' | wc -l) pages"
