#!/usr/bin/env bash
# The direction between the rooms (docs/architecture.md: app -> formats, reshard
# -> lib), and who may print. Prints the lines that break a rule; exit status 1
# if any.
set -euo pipefail
cd "$(dirname "$0")/.."

status=0
# forbid WHY REGEX FOLDER...: no line of the folders' C++ may match.
forbid() {
  local why=$1 regex=$2 hits
  shift 2
  hits=$(grep -rnE --include='*.cc' --include='*.h' "$regex" "$@" || true)
  [ -n "$hits" ] || return 0
  printf '%s:\n%s\n\n' "$why" "$hits"
  status=1
}

forbid 'lib knows no other room' \
  '#include "(formats|reshard|app|tests)/' lib
forbid 'formats includes only lib and itself' \
  '#include "(reshard|app|tests)/' formats
forbid 'reshard includes only lib and itself' \
  '#include "(formats|app|tests)/' reshard
forbid 'app does not include tests' '#include "tests/' app

print='(std::(cout|cerr|clog)|fmt::print|[^nf:_a-z](f|v|vf)?printf|[^_a-z]f?puts) *\('
forbid 'only app prints' "$print|std::(cout|cerr|clog)" lib formats reshard

forbid 'no marks left behind' '\b(TODO|FIXME|XXX)\b' lib formats reshard app tests

[ $status -ne 0 ] || echo "rooms: ok"
exit $status
