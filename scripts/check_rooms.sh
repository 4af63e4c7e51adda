#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Which room may include which (docs/architecture.md, "Rooms"), and who may
# print. Prints the lines that break a rule; exit status 1 if any. Each room is
# also a CMake target, which links only what is listed here.
set -euo pipefail
cd "$(dirname "$0")/.."

status=0
# forbid WHY REGEX FOLDER...: no line of the folders' C++ may match.
forbid() {
  local why=$1 regex=$2 hits
  shift 2
  hits=$(grep -rnE --include='*.cc' --include='*.h' --include='*.cu' \
    "$regex" "$@" || true)
  [ -n "$hits" ] || return 0
  printf '%s:\n%s\n\n' "$why" "$hits"
  status=1
}

# room: the rooms whose headers it may include, besides its own
rooms='
lib:
containers: lib
models: lib
formats: lib containers models
convert: lib containers models formats
reshard: lib
api: lib containers models formats convert reshard
app: lib containers models formats convert reshard api
'
all=$(sed -n 's/^\([a-z]*\):.*/\1/p' <<<"$rooms")
while IFS=: read -r room below; do
  [ -n "$room" ] || continue
  above=
  for other in $all tests; do
    [[ " $room$below " == *" $other "* ]] || above+="|$other"
  done
  forbid "$room includes only itself and:${below:- nothing else}" \
    "#include \"(${above#|})/" "$room"
done <<<"$rooms"

# Formats only know those below them: no two folders include each other.
pairs=$(grep -roE --include='*.cc' --include='*.h' \
  '#include "formats/[a-z0-9_]+/' formats |
  sed -nE 's#^formats/([a-z0-9_]+)/[^:]*:.include "formats/([a-z0-9_]+)/#\1 \2#p' |
  awk '$1 != $2' | sort -u)
mutual=$(awk '{ seen[$1, $2] = 1 }
  END { for (key in seen) { split(key, one, SUBSEP)
    if (one[1] < one[2] && (one[2], one[1]) in seen) print one[1], one[2] } }' \
  <<<"$pairs")
if [ -n "$mutual" ]; then
  printf 'formats that include each other:\n%s\n\n' "$mutual"
  status=1
fi

# Folders of a room, from the lowest: each includes itself and those before it.
# Files beside the folders are below some of them and above others.
orders='
lib: include text hash io pickle net codec zip
formats/megatron: model state canonical buckets dist legacy
formats/runs: find models nanotron optimizer ranks read write
convert: tokenizer config quantized rules adapters whole
reshard: plan torch numbers sources run prove cuda ranks
api: edit fetch check keep write delta merge salvage parallel mcore c
app: page options print commands
'
while IFS=: read -r room folders; do
  [ -n "$room" ] || continue
  folders=${folders# }
  for folder in "$room"/*/; do
    folder=$(basename "$folder")
    [[ " $folders " == *" $folder "* ]] && continue
    printf '%s/%s has no place in scripts/check_rooms.sh\n\n' "$room" "$folder"
    status=1
  done
  above=$folders
  for folder in $folders; do
    above=${above#"$folder"}
    above=${above# }
    [ -z "$above" ] || forbid "$room/$folder includes only what is below it" \
      "#include \"$room/(${above// /|})/" "$room/$folder"
  done
done <<<"$orders"
folders=$(sed -n 's#^formats/megatron: ##p' <<<"$orders")
forbid 'files beside the folders of formats/megatron include none of them' \
  "#include \"formats/megatron/(${folders// /|})/" formats/megatron/*.h \
  formats/megatron/*.cc

# What one can look over: a folder's own files, without those of its folders.
most_files=60 most_lines=9000
# shellcheck disable=SC2086  # one word a room
every=$(find $all -type d)
while read -r folder; do
  files=$(find "$folder" -maxdepth 1 -name '*.cc' -o -maxdepth 1 -name '*.h' \
    -o -maxdepth 1 -name '*.cu')
  count=$(wc -w <<<"$files")
  [ "$count" -gt 0 ] || continue
  # shellcheck disable=SC2086  # names without spaces
  lines=$(cat $files | wc -l)
  [ "$count" -gt "$most_files" ] || [ "$lines" -gt "$most_lines" ] || continue
  printf '%s has %d files of %d lines: give it folders (%d files, %d lines)\n\n' \
    "$folder" "$count" "$lines" "$most_files" "$most_lines"
  status=1
done <<<"$every"

# Code above the formats asks their rows, not their names. There, the words for
# dialects (fairseq2, meta, olmo_core, vllm), the command `run` and the module
# `torch` don't mean formats.
formats=$(sed -nE 's/^ *(formats\.push_back\()?\{"([a-z0-9_]+)",$/\2/p' \
  formats/rows.cc)
names=$(grep -vxE 'fairseq2|meta|olmo_core|vllm|run|torch' <<<"$formats" |
  paste -sd'|')
forbid 'api and app name no format: ask formats/traits.h or formats/options.h' \
  "\"($names|megatron[a-z_]*)\"" api app
forbid 'below and beside the formats, nothing depends on which one it is' \
  '(\.|->)format [!=]= "' lib containers models convert reshard api app
folders=$(sed -nE 's#.*"formats/([a-z0-9_]+)/.*#\1#p' formats/rows.cc |
  grep -vx runs | sort -u)
# api reads Megatron's keys, ModelOpt's blocks, DCP's metadata and fairseq2's
# chunks for functions that deal with them.
forbid 'app includes no format' \
  "#include \"formats/($(paste -sd'|' <<<"$folders"))/" app
forbid 'api includes no format but dcp, fairseq2, megatron, modelopt' \
  "#include \"formats/($(grep -vxE 'dcp|fairseq2|megatron|modelopt' \
    <<<"$folders" | paste -sd'|'))/" api

# How many lines of C++ a room may have.
budgets='
lib: 33327
containers: 11577
models: 6682
formats: 78855
convert: 18847
reshard: 24120
api: 31449
app: 17802
'
while IFS=: read -r room most; do
  [ -n "$room" ] || continue
  lines=$(find "$room" \( -name '*.cc' -o -name '*.h' -o -name '*.cu' \) \
    -exec cat {} + | wc -l)
  [ "$lines" -gt "$((most))" ] || continue
  printf '%s has %d lines of C++, %d over its budget: delete first.\n%s\n\n' \
    "$room" "$lines" "$((lines - most))" \
    'If it has to grow, raise its number in scripts/check_rooms.sh in the same
commit, whose body says why and what it deletes.'
  status=1
done <<<"$budgets"

print='(std::(cout|cerr|clog)|fmt::print|[^nf:_a-z](f|v|vf)?printf|[^_a-z]f?puts) *\('
# shellcheck disable=SC2086  # one word a room
forbid 'only app prints' "$print|std::(cout|cerr|clog)" ${all%app}

# What no CMakeLists.txt of its room lists is not compiled, and the build says
# nothing. Fuzzers are listed by a word, suites in Python by tests/suites.txt.
# shellcheck disable=SC2086
unlisted=$(find $all tests -name '*.cc' -o -name '*.cu' | sort |
  while read -r file; do
  room=${file%%/*}
  list=${file%/*}
  until [ -f "$list/CMakeLists.txt" ]; do list=${list%/*}; done
  names="${file#"$list/"}|${file#"$room/"}"
  case $file in
    tests/fuzz/*) names+="|$(basename "$file" _fuzz.cc)" ;;
  esac
  grep -qE "(^|[ (/])(${names//./\\.})([ )]|\$)" "$room/CMakeLists.txt" \
    "$list/CMakeLists.txt" || echo "$file"
done)
if [ -n "$unlisted" ]; then
  printf 'not listed in a CMakeLists.txt, so not compiled:\n%s\n\n' \
    "$unlisted"
  status=1
fi
python3 -B tests/run.py --check || status=1

# What nlohmann_json parses to any depth it copies, compares and prints by
# recursion. So files of others are read by lib/text/json.h or, where they may
# be anything, by lib/text/other_json.h; not those inside the program, and not
# canonical JSON, which is as deep as to_json makes it.
# shellcheck disable=SC2086
hits=$(grep -rnE --include='*.cc' --include='*.h' \
  '(json|Json|Fields|Table)::parse\(' ${all/lib/} |
  grep -vE 'parse\((families::)?embedded_text|parse\((file\.text|canonical)\)' ||
  true)
if [ -n "$hits" ]; then
  printf 'JSON of others is parsed by lib/text:\n%s\n\n' "$hits"
  status=1
fi

# A thread without it reads what nobody watches. The loops of lib/net/client.cc
# serve all sessions; the saves' threads begin runs, which have their own.
# shellcheck disable=SC2086
hits=$(grep -rlE --include='*.cc' --include='*.h' \
  'std::(jthread|thread|async)\(' $all | xargs grep -L in_session |
  grep -vxE 'lib/net/client\.cc|api/saver?\.cc' || true)
if [ -n "$hits" ]; then
  printf 'threads work in_session (lib/session.h):\n%s\n\n' "$hits"
  status=1
fi

# shellcheck disable=SC2086
forbid "zig's runtime answers no to it: ask lib/cpu.h" \
  '__builtin_cpu_(supports|is)\(' $all

# shellcheck disable=SC2086
forbid 'messages say "not a directory", not "is no directory"' \
  '^[^/]*"([^"]*[^e] )?(is|are) no [a-z]' $all

# shellcheck disable=SC2086
forbid 'no marks left behind' '\b(TODO|FIXME|XXX)\b' $all tests

[ $status -ne 0 ] || echo "rooms: ok"
exit $status
