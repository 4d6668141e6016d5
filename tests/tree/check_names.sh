#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# Names that comments and documents mention exist: every word with an underscore, and every word before "()", is in the
# code of some file; every file name is that of a file.  Checked are the comments of all sources and scripts, README.md
# of every folder, ARCHITECTURE.md, CONTRIBUTING.md and the manual.  Examples in documents are not checked (a block
# between ``` lines, from .Bd to .Ed, .Dl), and their names are good in their document.
set -u

# Documents that are not checked, separated by spaces.
left_out=""

# Names that are not in the code, each with its reason.  A name that ends in * stands for all that begin so.
accepted() {
  cat <<'END'
cu*                           CUDA's functions and types
CU*                           CUDA's constants and environment variables
nv*                           CUDA's tools and libraries
sm_*                          CUDA's names of GPUs
seq_cst                       C's and PTX's memory order
max_frag                      a word of the paper on defragmentation
RB_GENERATE_STATIC            a macro of libbsd that is not used
CK_*                          Check's environment variables
AC_*                          Autoconf's macros
layer_object_verb             how README.md says that functions are named
MAM_Verb                      an example of a name in CONTRIBUTING.md, as the next three
mam_verb                      as above
delay_ms                      as above
heap_claim                    as above
MempoolId_t                   PyTorch's
scaled_dot_product_attention  PyTorch's
run.sh                        in the folder that tools/gpu-kit makes, as the next
gpu-kit/run.sh                as above
first.cu                      a file name that a test puts into #line, as the next
second.cu                     as above
END
}

srcdir=${srcdir:-.}
cd "$srcdir" || exit 99
work=$(mktemp -d "${TMPDIR:-/tmp}/check_names.XXXXXX") || exit 99
trap 'rm -rf "$work"' EXIT
accepted >"$work/accepted"

find include lib tests tools man -type f | LC_ALL=C sort >"$work/files"
for file in .ci/* Makefile.am configure.ac mam.pc.in *.md; do
  [ ! -f "$file" ] || echo "$file" >>"$work/files"
done
grep -E '\.(c|h|hpp|cu|cuh|cc|def)$' "$work/files" >"$work/sources"
grep -E '(\.(sh|am|ac|in|map|py|gp)|run|kit|embed|quickstart)$' "$work/files" >"$work/scripts"
grep -E '((^|/)README\.md|^ARCHITECTURE\.md|^CONTRIBUTING\.md|\.[137])$' "$work/files" >"$work/all_documents"
echo "$left_out" | tr ' ' '\n' >"$work/left_out"
grep -vxF -f "$work/left_out" "$work/all_documents" >"$work/documents"
if [ ! -s "$work/sources" ] || [ ! -s "$work/documents" ]; then
  echo "FAILED: no source or no document in $srcdir"
  exit 1
fi

# Each line of a source as FILE:LINE:c:CODE and FILE:LINE:t:COMMENT; of a script, where a comment has lines of its own
# and words in capitals stand for arguments, FILE:LINE:s:COMMENT; of a document FILE:LINE:t:TEXT, of its examples
# FILE:LINE:e:TEXT.
# shellcheck disable=SC2046
awk '
function out(kind, text) {
  if (text ~ /[^ \t]/)
    print FILENAME ":" FNR ":" kind ":" text
}
FNR == 1 { inside = 0 }
{
  line = $0
  code = comment = ""
  while (line != "") {
    if (inside) {
      at = index(line, "*/")
      if (at == 0) {
        comment = comment " " line
        break
      }
      comment = comment " " substr(line, 1, at - 1)
      line = substr(line, at + 2)
      inside = 0
    } else if (match(line, /\/\*|\/\/|"|\047/)) {
      mark = substr(line, RSTART, RLENGTH)
      code = code substr(line, 1, RSTART - 1) " "
      line = substr(line, RSTART + RLENGTH)
      if (mark == "/*") {
        inside = 1
      } else if (mark == "//") {
        comment = comment " " line
        break
      } else { # a string or a character: code, up to its end
        while (line != "" && substr(line, 1, 1) != mark) {
          skip = substr(line, 1, 1) == "\\" ? 2 : 1
          code = code substr(line, 1, skip)
          line = substr(line, skip + 1)
        }
        code = code " "
        line = substr(line, 2)
      }
    } else {
      code = code line
      break
    }
  }
  out("c", code)
  out("t", comment)
}' $(cat "$work/sources") >"$work/lines"
# shellcheck disable=SC2046
awk '{ print FILENAME ":" FNR ":" ($0 ~ /^[ \t]*(#|dnl )/ ? "s" : "c") ":" $0 }' $(cat "$work/scripts") >>"$work/lines"
# shellcheck disable=SC2046
awk '
FNR == 1 { example = 0 }
/^```/ { example = !example }
/^\.Bd/ { example = 1 }
/^\.Ed/ { example = 0 }
!/^\.Dt/ { print FILENAME ":" FNR ":" (example || /^\.Dl/ ? "e" : "t") ":" $0 }' $(cat "$work/documents") >>"$work/lines"

awk '
function fail(text) {
  print "FAILED: " text
  failed = 1
}
function is_accepted(name,   i) {
  if (name in accepted)
    return 1
  for (i = 1; i <= prefix_count; i++)
    if (index(name, prefix[i]) == 1)
      return 1
  return 0
}
function check_word(word) {
  if (!(word in known) && !((place[1], word) in example) && !is_accepted(word))
    fail(where ": " word " is no name in the code")
}
# A name that ends in .[ch] stands for two files.
function check_file(name,   other) {
  if (name ~ /\.\[ch\]$/) {
    other = substr(name, 1, length(name) - 4)
    check_file(other "c")
    check_file(other "h")
    return
  }
  sub(/^(\.\/)+/, "", name)
  if (!(name in is_file) && !(name in included) && !is_accepted(name))
    fail(where ": there is no file " name)
}
FILENAME ~ /\/accepted$/ {
  if ($1 ~ /\*$/)
    prefix[++prefix_count] = substr($1, 1, length($1) - 1)
  else
    accepted[$1] = 1
  next
}
FILENAME ~ /\/files$/ { # by each end of its path
  path = $0
  is_file[path] = 1
  while (sub(/^[^\/]*\//, "", path))
    is_file[path] = 1
  next
}
{
  split($0, place, ":")
  where = place[1] ":" place[2]
  text = substr($0, length(where) + 4)
}
pass == 1 && (place[3] == "c" || place[3] == "e") {
  if (match(text, /#[ \t]*include[ \t]*[<" ]*[^>" ]*/)) {
    name = substr(text, RSTART, RLENGTH)
    sub(/.*[<" ]/, "", name)
    included[name] = 1
  }
  while (match(text, /[A-Za-z_][A-Za-z0-9_]*/)) {
    word = substr(text, RSTART, RLENGTH)
    if (place[3] == "c")
      known[word] = 1
    else
      example[place[1], word] = 1
    text = substr(text, RSTART + RLENGTH)
  }
  next
}
pass == 2 && place[3] ~ /[ts]/ && text !~ /usage:/ {
  gsub(/\\\(..|\\\[[a-z]*\]|\\&|\\f[A-Z]/, " ", text) # of troff
  gsub(/https?:[^ )>]*/, " ", text)
  words = ""
  while (match(text, /[A-Za-z0-9_][A-Za-z0-9_\/.-]*\.(\[ch\]|c|h|hpp|cuh|cu|sh|def|am|map|csv|svg|so|la|md)([^A-Za-z0-9_]|$)/)) {
    name = substr(text, RSTART, RLENGTH)
    if (name !~ /\.\[ch\]$/)
      sub(/[^A-Za-z0-9_]$/, "", name)
    before = RSTART > 1 ? substr(text, RSTART - 1, 1) : " "
    words = words substr(text, 1, RSTART - 1) " "
    text = substr(text, RSTART + length(name))
    # An end of names (*_test.c), a name with a place to fill in, and what a build or a run makes are no files.
    if (before !~ /[*.}]/ && name !~ /[A-Z][A-Z]/ && name !~ /\.(csv|svg|so|la|md)$/)
      check_file(name)
  }
  text = words text
  while (match(text, /[A-Za-z_][A-Za-z0-9_]*(\(\))?/)) {
    word = substr(text, RSTART, RLENGTH)
    after = substr(text, RSTART + RLENGTH, 1)
    before = RSTART > 1 ? substr(text, RSTART - 1, 1) : " "
    text = substr(text, RSTART + RLENGTH)
    # Not the beginning or the end of a family (mam_*), nor a part of a path or of an option.
    if (after ~ /[*{<-]/ || before ~ /[*}.-]/ || word ~ /NAME/ || (place[3] == "s" && word ~ /^[A-Z0-9_]+$/))
      continue
    if (word ~ /\(\)$/)
      check_word(substr(word, 1, length(word) - 2))
    else if (word ~ /[A-Za-z0-9]_[A-Za-z0-9]/)
      check_word(word)
  }
}
END {
  if (!failed)
    print "ok: the names that comments and documents mention exist"
  exit failed
}' "$work/accepted" "$work/files" pass=1 "$work/lines" pass=2 "$work/lines"
