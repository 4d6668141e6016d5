#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# Calls go down: what the objects of lib/ define and use, as nm says.  A file uses functions and variables of its own
# floor and of those below it, and no two files use each other, directly or through others.  A weak reference is not
# counted: its file does without.
set -u

# Lowest first.  heap calls the API by include/mam.h.
floors="base cuda pool front api heap preload"

# Uses that are left out of the graph, each with its reason.  A name without a file is every file of the folder.
accepted() {
  cat <<'END'
lib/preload      lib/preload     the table of hooks has the address of each hook, and each hook asks for the driver's function by it
lib/api/api      lib/api/client  client_chunk_bytes: api.c asks for the size that libmam_preload has set
lib/front        lib/api/client  slab_exact: a constant that is known when the library is linked, with libmam_preload or without
END
}

NM=${NM:-nm}
srcdir=${srcdir:-.}
# NM may bring a flag: split on purpose, here and below.
# shellcheck disable=SC2086
command -v ${NM%% *} >/dev/null || { echo "SKIP: there is no nm"; exit 77; }
work=$(mktemp -d "${TMPDIR:-/tmp}/check_calls.XXXXXX") || exit 99
trap 'rm -rf "$work"' EXIT

# One object of each source: the position-independent one where there is one.  An object whose source is gone is old.
for object in lib/*/.libs/libmam_*_la-*.o lib/*/libmam_*_la-*.o; do
  [ -e "$object" ] || continue
  folder=${object%/*}
  source=${folder%/.libs}/${object##*_la-}
  source=${source%.o}
  [ -e "$srcdir/$source.c" ] || [ -e "$source.c" ] || continue
  grep -qx "$source" "$work/sources" 2>/dev/null && continue
  echo "$source" >>"$work/sources"
  # shellcheck disable=SC2086
  $NM -P "$object" | sed "s|^|$source |" >>"$work/symbols"
done
[ -s "$work/symbols" ] || { echo "SKIP: nothing was built"; exit 77; }
accepted >"$work/accepted"

# Symbols that the linker does not see from other files have a small letter.
awk -v floors="$floors" '
function fail(text) {
  print "FAILED: " text
  failed = 1
}
function folder_of(file) {
  sub(/\/[^\/]*$/, "", file)
  return file
}
function is_accepted(from, to,   i) {
  for (i = 1; i <= accepted_count; i++)
    if ((accepted_from[i] == from || accepted_from[i] == folder_of(from)) &&
        (accepted_to[i] == to || accepted_to[i] == folder_of(to))) {
      accepted_used[i] = 1
      return 1
    }
  return 0
}
function rank_of(file,   parts) {
  split(file, parts, "/")
  return rank[parts[2]]
}
# Depth first through the files.  state: 1 on the way, 2 done.
function visit(file,   i, other, chain, at) {
  state[file] = 1
  way[++depth] = file
  for (i = 1; i <= use_count[file]; i++) {
    other = uses[file, i]
    if (state[other] == 1) {
      chain = other ".c (" example[file, other] ")"
      for (at = depth; way[at] != other; at--)
        chain = way[at] ".c (" example[way[at - 1], way[at]] ") -> " chain
      fail("files that use each other: " other ".c -> " chain)
    } else if (state[other] != 2) {
      visit(other)
    }
  }
  depth--
  state[file] = 2
}
BEGIN {
  count = split(floors, names, " ")
  for (i = 1; i <= count; i++)
    rank[names[i]] = i
}
FILENAME ~ /\/accepted$/ {
  accepted_from[++accepted_count] = $1
  accepted_to[accepted_count] = $2
  next
}
{
  files[$1] = 1
  if ($3 ~ /^[ABCDGRSTVW]$/)
    definer[$2] = $1
  else if ($3 == "U")
    used[$1 " " $2] = 1
}
END {
  for (file in files)
    if (rank_of(file) == "")
      fail(file ".c is in no floor that this script knows: " floors)
  for (use in used) {
    split(use, pair, " ")
    from = pair[1]
    to = definer[pair[2]]
    if (to == "" || to == from || is_accepted(from, to))
      continue
    if (rank_of(to) > rank_of(from))
      fail(from ".c uses " pair[2] " of " to ".c, which is above it")
    if (!((from, to) in example)) {
      uses[from, ++use_count[from]] = to
      example[from, to] = pair[2]
      arrows++
    }
  }
  for (file in files)
    if (!(file in state))
      visit(file)
  for (i = 1; i <= accepted_count; i++)
    if (!accepted_used[i] && accepted_from[i] !~ /preload/) # which is not always built
      fail("nothing uses what is accepted from " accepted_from[i] " to " accepted_to[i])
  if (!failed)
    print "ok: files of lib use each other in " arrows " ways, all of them downwards"
  exit failed
}' "$work/accepted" "$work/symbols"
