#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Everything a release needs but publishing it: versions that agree, the tests,
# packages that were tried where users install them, a second build that makes
# the same bytes. Ends with the commands that publish, for a person to run.
#
#   scripts/release.sh [--skip-ci]     --skip-ci: .ci/run passed on this commit
set -euo pipefail
. "$(dirname "$0")/common.sh"

usage() { sed -n '3,/^set/{/^set/d;s/^# \{0,1\}//p}' scripts/release.sh; }

ci=yes
case ${1:-} in
  '') ;;
  --skip-ci) ci=no ;;
  -h | --help) usage; exit ;;
  *) usage >&2; exit 2 ;;
esac

version=$(sed -n 's/^project(ckpt VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)
tag=v$version

step "checking version $version"
[ -z "$(git status --porcelain)" ] || die "the working tree has changes"
grep -q "^## $version\b" CHANGELOG.md ||
  die "CHANGELOG.md has no section '## $version': what is under" \
    "'## Unreleased' belongs there"
! awk '/^## / { on = /^## Unreleased/; next } on && NF' CHANGELOG.md |
  grep -q . ||
  die "CHANGELOG.md has changes under '## Unreleased': $version is to have" \
    "them, or a newer version (CMakeLists.txt)"
! git rev-parse -q --verify "refs/tags/$tag" >/dev/null ||
  die "the tag $tag is there already"
for file in "examples/modulefiles/$version" "examples/modulefiles/$version.lua"
do
  [ -f "$file" ] || die "$file is missing: rename the one of the last version"
done
grep -q "image: ckpt:$version$" examples/kubernetes/job.yaml ||
  die "examples/kubernetes/job.yaml has another version"

[ $ci = no ] || .ci/run
rm -rf dist
.ci/packages --twice --aarch64

step "ready, and nothing published"
(cd dist && sha256sum --quiet -c SHA256SUMS && ls -l)
cat <<NEXT

To publish $tag (commit $(git rev-parse --short HEAD)):

    git tag -s $tag -m "ckpt $version"
    git push origin $tag
    python3 -m twine upload dist/*.whl
    # and dist/*.tar.gz, *.deb, *.json and SHA256SUMS to the release's page
NEXT
