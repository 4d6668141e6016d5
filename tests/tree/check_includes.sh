#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# Includes go down: the graph of the #include lines of include/, lib/, tests/ and tools/, compared with the table below.
# A file of lib names the floor of what it includes, and no header includes itself, directly or through others.
# Each fault is printed as FILE:LINE.
set -u

# What a file may include, by its folder; its own folder always.  The floors of lib stand in their order, lowest first.
# heap calls the API by include/mam.h, so it needs no header of lib/api.
cat_floors() {
  cat <<'END'
include       :
lib/base      : include
lib/cuda      : include lib/base
lib/pool      : include lib/base lib/cuda
lib/front     : include lib/base lib/cuda lib/pool
lib/api       : include lib/base lib/cuda lib/pool lib/front
lib/heap      : include lib/base lib/cuda lib/pool lib/front
lib/preload   : include lib/base lib/cuda lib/api
tests         : include lib tools
tools         : include lib
END
}

srcdir=${srcdir:-.}
cd "$srcdir" || exit 99
work=$(mktemp -d "${TMPDIR:-/tmp}/check_includes.XXXXXX") || exit 99
trap 'rm -rf "$work"' EXIT

cat_floors >"$work/floors"
find include lib tests tools -type f \( -name '*.c' -o -name '*.h' -o -name '*.cu' -o -name '*.cuh' -o -name '*.cc' -o -name '*.hpp' \
  -o -name '*.def' \) | LC_ALL=C sort >"$work/files"
[ -s "$work/files" ] || { echo "FAILED: no source file found in $srcdir"; exit 1; }
# -H: file names also where there is one file only.
xargs grep -Hn '^[[:space:]]*#[[:space:]]*include[[:space:]]*[<"]' <"$work/files" >"$work/includes"

# Three inputs: the table, the files that exist, and FILE:LINE:TEXT of each include.
awk -v root="$work" '
function fail(where, text) {
  print "FAILED: " where ": " text
  failed = 1
}

# The folder of the table that a file lies in, "" if there is none.
function floor_of(path,   parts) {
  split(path, parts, "/")
  if (parts[1] == "lib")
    return (parts[1] "/" parts[2]) in allowed ? parts[1] "/" parts[2] : ""
  return parts[1] in allowed ? parts[1] : ""
}

function may_include(from, to,   names, count, i) {
  if (from == to)
    return 1
  count = split(allowed[from], names, " ")
  for (i = 1; i <= count; i++)
    if (names[i] == to || index(to, names[i] "/") == 1)
      return 1
  return 0
}

# The file that an include means: beside the one that has it, or in a folder that the compiler looks in.
function resolve(from, name, quoted,   beside, i) {
  beside = from
  sub(/[^\/]*$/, name, beside)
  if (quoted && beside in exists)
    return beside
  for (i = 1; i <= search_count; i++)
    if ((search[i] name) in exists)
      return search[i] name
  return ""
}

function is_header(path) { return path ~ /\.(h|cuh|def)$/ }

# Depth first through the headers.  state: 1 on the way, 2 done.
function visit(header,   i, next_header, chain, at) {
  state[header] = 1
  way[++depth] = header
  for (i = 1; i <= edge_count[header]; i++) {
    next_header = edge[header, i]
    if (state[next_header] == 1) {
      chain = next_header
      for (at = depth; way[at] != next_header; at--)
        chain = way[at] " -> " chain
      fail(edge_where[header, i], "a cycle of headers: " next_header " -> " chain)
    } else if (state[next_header] != 2) {
      visit(next_header)
    }
  }
  depth--
  state[header] = 2
}

BEGIN { search_count = split("include/ lib/ tests/ tools/ tools/bench/", search, " ") }

FILENAME == root "/floors" {
  split($0, sides, ":")
  gsub(/ /, "", sides[1])
  allowed[sides[1]] = sides[2]
  next
}

FILENAME == root "/files" {
  exists[$0] = 1
  if (floor_of($0) == "")
    fail($0 ":1", "its folder is not in the table of floors")
  next
}

{
  split($0, place, ":")
  file = place[1]
  where = place[1] ":" place[2]
  text = substr($0, length(where) + 2)
  match(text, /[<"][^>"]*[>"]/)
  quoted = substr(text, RSTART, 1) == "\""
  name = substr(text, RSTART + 1, RLENGTH - 2)
  target = resolve(file, name, quoted)
  if (target == "") {
    if (quoted || name ~ /^mam/)
      fail(where, "no file \"" name "\" is in include, lib, tests or tools")
    next
  }
  seen++
  from = floor_of(file)
  to = floor_of(target)
  if (from != "" && to != "" && !may_include(from, to))
    fail(where, from " may not include " to " (" target ")")
  if (file ~ /^lib\// && target ~ /^lib\// && target != "lib/" name)
    fail(where, "\"" name "\" does not name its floor: write \"" substr(target, 5) "\"")
  if (is_header(file) && is_header(target)) {
    edge[file, ++edge_count[file]] = target
    edge_where[file, edge_count[file]] = where
    headers[file] = 1
  }
}

END {
  for (header in headers)
    if (!(header in state))
      visit(header)
  if (seen == 0)
    fail("lib", "no include found")
  if (!failed)
    print "ok: " seen " includes of the tree go down, and no header includes itself"
  exit failed
}' "$work/floors" "$work/files" "$work/includes"
