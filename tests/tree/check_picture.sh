#!/bin/sh
# SPDX-License-Identifier: BSD-2-Clause
# mam-bench picture: its command line, and what a browser draws of its pages.  The page of small is that of
# tests/support/record_samples.c, where its figures come from.
# usage: check_picture.sh    in a build folder, after make
set -u

bench=$PWD/mam-bench
samples=$PWD/tests/support/record_samples
report=$PWD/tests/driver/report_program
work=$(mktemp -d "${TMPDIR:-/tmp}/check_picture.XXXXXX") || exit 99
trap 'rm -rf "$work"' EXIT
failed=0
export MAM_SOURCE=host LC_ALL=C

fail() {
  echo "FAILED: $*"
  failed=1
}

for program in "$bench" "$samples" "$report"; do
  [ -x "$program" ] || { echo "SKIP: $program is not built"; exit 77; }
done

# ---- The command line ------------------------------------------------------------------------------------------------

# The long one would take minutes with a sanitizer.
iterations=575
[ -z "${SANITIZE_FLAGS-}" ] || iterations=40

cd "$work" || exit 99
for kind in small empty one stray ranges deep hostile; do
  "$samples" $kind $kind || fail "record_samples $kind: status $?"
  "$bench" picture $kind >told || fail "mam-bench picture $kind: status $?"
  grep -q "^$kind.html: [0-9]* allocations, at most " told || { fail "mam-bench picture $kind tells:"; cat told; }
done
head -c 230 small >broken
"$bench" picture broken >told 2>&1 || fail "mam-bench picture of a record that is cut: status $?"
"$samples" training million $iterations || fail "record_samples training: status $?"
begin=$(date +%s%N)
"$bench" picture million >told || fail "mam-bench picture million: status $?"
end=$(date +%s%N)
cat told
bytes=$(wc -c <million.html)
allocations=$(sed -n 's/.*: \([0-9]*\) allocations.*/\1/p' told)
echo "the page of $allocations allocations and their frees: $bytes bytes, made in $(((end - begin) / 1000000)) ms"
[ "$bytes" -lt $((100000 + 2 * allocations * 16)) ] || fail "it is of more than 16 bytes an event"

"$bench" picture -o - small | cmp - small.html || fail "-o - does not give the page"
"$bench" picture -o other.html small >told || fail "mam-bench picture -o other.html small: status $?"
cmp other.html small.html || fail "-o other.html does not give the page"
"$bench" picture -o - /dev/stdin <small >piped.html || fail "mam-bench picture of standard input: status $?"
cmp piped.html small.html || fail "a record from standard input gives another page"
# shellcheck disable=SC2002 # a pipe, which is read once
cat small | "$bench" picture -o - /dev/stdin | cmp - small.html || fail "a record from a pipe gives another page"
# With one call site, replay tells the ranges, too.
"$bench" replay ranges >told || fail "mam-bench replay ranges: status $?"
sed -n '/^in the ranges:/,/^$/p' told | tr -s ' ' >ranges.told
cat <<END | diff - ranges.told || fail "mam-bench replay ranges tells other ranges"
in the ranges:
 1 MiB 28.6 % 1 blocks forward / aten::mm
 1 MiB 28.6 % 1 blocks forward / aten::mm / aten::empty
 1 MiB 28.6 % 1 blocks forward / aten::relu
 512 KiB 14.3 % 1 blocks no range

END
"$bench" replay small >told || fail "mam-bench replay small: status $?"
grep '^in the ranges:' told && fail "mam-bench replay small has two call sites, and tells ranges"
"$bench" picture --trace-events small >told || fail "mam-bench picture --trace-events: status $?"
grep -q '"traceEvents"' small.json || fail "--trace-events does not write small.json"

# refuses STATUS TEXT ARGUMENT...: the status and the reason; no file is changed or left.
refuses() {
  status=$1 text=$2
  shift 2
  find . | sort >before
  "$bench" picture "$@" >told 2>&1
  got=$?
  if [ $got -ne "$status" ] || ! grep -Fq -e "$text" told; then
    fail "mam-bench picture $*: status $got, which does not say: $text"
    cat told
  fi
  find . | sort | diff before - >difference || { fail "mam-bench picture $* leaves files:"; cat difference; }
}

cp small keep
touch told difference before
echo 'no record' >nothing
echo '{"a": 1}' >other.json
mkdir folder
refuses 2 "a file is missing"
refuses 2 "one word too many: keep" small keep
refuses 2 "--help" --wrong small
refuses 1 "No such file" nowhere
refuses 1 "no record" nothing
refuses 1 "neither a record nor the whole of what MAM_PoolReport gives" other.json
refuses 1 "it is the file to read" -o small small
echo mine >kept.html.part
"$bench" picture -o kept.html small >told || fail "mam-bench picture -o kept.html: status $?"
[ "$(cat kept.html.part)" = mine ] || fail "a page takes a file of another one"
refuses 1 "No such file" -o folder/without/page.html small
[ ! -c /dev/full ] || refuses 1 "No space left" -o /dev/full small
(ulimit -f 1; exec "$bench" picture -o grown.html small 2>&1) | cat >told # of 512 bytes or 1 KiB
if ! grep -q 'File too large' told || [ "$(find . -name 'grown*')" ]; then
  fail "mam-bench picture of a file that may not grow:"
  cat told
fi
# to_full_disk ARGUMENT...: status 1 and one line.
to_full_disk() {
  "$bench" "$@" >/dev/full 2>told
  got=$?
  if [ $got -ne 1 ] || [ "$(wc -l <told)" -ne 1 ] || ! grep -q '^mam-bench: cannot write to standard output' told; then
    fail "mam-bench $* to a full disk: status $got, and it says:"
    cat told
  fi
}
if [ -c /dev/full ]; then
  to_full_disk picture -o - small
  to_full_disk picture small
  to_full_disk replay small
fi
cmp -s small keep || fail "the record was changed"
"$report" report >report.json || fail "report_program report: status $?"
"$bench" picture report.json >told || fail "mam-bench picture of a report: status $?"
refuses 1 "no trace events" --trace-events report.json
# spoil COMMAND...: what it makes of the report is none.
spoil() {
  "$@" <report.json >spoiled.json
  refuses 1 "neither a record nor the whole of what MAM_PoolReport gives" spoiled.json
}
for bytes in 1 300 600 $(($(wc -c <report.json) - 3)); do spoil head -c "$bytes"; done
spoil sed 's/"chunks"/"pieces"/'
spoil sed 's/"segments": \[/"segments": {/'
spoil sed 's/"bytes": /"bytes": -/'
spoil sed 's/"0x/"x/'
spoil sed 's/"state": "used"/"state": free/'
spoil sed 's/"state": "used"/"state": "fr\\ee"/'
spoil sed 's/"state": "used"/"state": 07/'
spoil sed 's/},$/}/'
spoil awk '{ print } END { print "}" }'
spoil tr a-z '\000-\031'
sed 's/"source"/"more": [null, true, {"a": [-1.5e+3, 0, "\\u00e9\\n"]}, [], {}], &/' report.json >more.json
"$bench" picture more.json >told || fail "mam-bench picture of a report with more members: status $?"

# The page loads nothing.
grep -En '(src|href)="[^d]|@import|url\(|fetch\(|XMLHttpRequest|import\(' small.html && fail "a page asks for something elsewhere"

# ---- A browser -------------------------------------------------------------------------------------------------------

browser=
for name in chromium chromium-browser google-chrome google-chrome-stable; do
  [ -n "$browser" ] || browser=$(command -v $name)
done
if [ -z "$browser" ]; then
  [ $failed -eq 0 ] || exit 1
  echo "SKIP: there is no Chromium, so the pages were made and not looked at; the rest is right"
  exit 77
fi

# look PAGE HASH: what the page has become in $work/dom, and the attributes that it gave itself, a line each, in
# $work/figures.
look() {
  : >dom
  for _ in 1 2; do # a browser that starts for the first time may miss its own time limit
    timeout 120 "$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$work/profile" --window-size=1300,1500 \
      --virtual-time-budget=30000 --dump-dom "file://$work/$1#$2" >dom 2>browser.log
    [ -s dom ] && break
  done
  grep -o '<html[^>]*>' dom | head -n 1 | grep -o 'data-[a-z-]*="[^"]*"' >figures
}
look small.html ''
if [ ! -s dom ]; then
  [ $failed -eq 0 ] || exit 1
  echo "SKIP: $browser does not run here, so the pages were made and not looked at; the rest is right"
  exit 77
fi

# expect PAGE HASH ATTRIBUTE=VALUE...: the page is drawn without an error, and says so.
expect() {
  page=$1 hash=$2
  shift 2
  look "$page" "$hash"
  for wanted in state=drawn "$@"; do
    grep -Fqx "data-${wanted%%=*}=\"${wanted#*=}\"" figures || { fail "$page#$hash does not say $wanted:"; cat figures; }
  done
  grep -q '^data-error=\|^data-harmed=' figures && { fail "$page#$hash:"; cat figures; }
}
# shows TEXT...: these stand in the page that was looked at last.
shows() {
  for text in "$@"; do
    grep -Fq -e "$text" dom || fail "$page#$hash does not show: $text"
  done
}

expect small.html '' allocations=4 freed=3 refused=1 taken-most=8388608 peak-bytes=6291456 peak-time=4000 \
  cursor-time=4000 cursor-bytes=6291456 cursor-blocks=3 cursor-hole=0 cursor-taken=8388608
shows '<td class="n">50.0 %</td>' '<td class="a">0x7f0000400000</td>' 'next_batch+0x20' '<td>0xabc0</td>' '<td>layer 1</td>'
expect small.html 'at=5500' cursor-bytes=5242880 cursor-blocks=2 cursor-hole=1048576
expect small.html 'at=7000' cursor-bytes=3670016 cursor-blocks=2 cursor-hole=2621440
shows 'at 7 µs: 3.5 MiB in 2 blocks in use'
expect small.html 'at=1500' cursor-bytes=0 cursor-blocks=0 cursor-taken=8388608
expect small.html 'by=thread'
shows '<b>loader</b>' '<b>main</b>'
expect small.html 'by=function'
shows '<b>next_batch</b>' '<b>load_weights</b>'
# With one call site, the ranges tell who allocates.
expect ranges.html '' allocations=4 peak-bytes=3670016
shows '>The peak explained, by range<' '<b>aten::mm</b>' '<b>aten::relu</b>' '<b>no range</b>' '<td class="n">2 MiB</td>'
expect ranges.html 'by=phase'
shows '<b>forward</b>' '<td class="n">3 MiB</td>'
expect ranges.html 'by=ranges'
shows '<b>forward &gt; aten::mm &gt; aten::empty</b>'
# Names of ranges that are deep in each other are not put together for each block.
expect deep.html 'by=ranges' allocations=10000
shows '<b>level 0 &gt; level 1 &gt; ' ' &gt; level 15 &gt; … 9944 more … &gt; level 9960 &gt; ' ' &gt; level 9975</b>'
ms=$(sed -n 's/^data-first-draw-ms="\([0-9]*\).*/\1/p' figures)
[ "${ms:-99999}" -lt 5000 ] || fail "10000 ranges in each other are drawn in ${ms:-?} ms"
expect empty.html '' allocations=0 peak-bytes=0 cursor-blocks=0
shows 'The record has no allocations.'
expect one.html '' allocations=1 freed=0 peak-bytes=1000 cursor-blocks=1
expect stray.html '' allocations=0 peak-bytes=0
shows '3 frees of blocks that are not in the record: left out.'
expect hostile.html '' allocations=9
expect broken.html ''
shows 'The end of the record is missing'
expect report.json.html '' cursor-blocks=3
shows 'external fragmentation' 'small blocks (their slabs)' '<td class="n">1 MiB</td>'
expect more.json.html '' cursor-blocks=3
expect million.html measure "allocations=$allocations" "freed=$allocations"
sed -n 's/^data-\(unpack-ms\|first-draw-ms\|redraw-ms\|redraw-times\)=/\1 /p' figures

# ---- Input -----------------------------------------------------------------------------------------------------------

# try PAGE SCRIPT: a copy of the page, at whose end the script acts as a user; what it notes is an attribute.
try() {
  cat "$1.html" - >try.html <<END
<script>
'use strict';
const root = document.documentElement;
HTMLCanvasElement.prototype.setPointerCapture = () => {}; // there is no pointer, and perhaps no frame
window.requestAnimationFrame = (draw) => setTimeout(draw, 0);
const tip = () => document.getElementById('tip').textContent.split(String.fromCharCode(10)).join('; ');
const point = (id, name, x, y) => {
  const canvas = document.getElementById(id), box = canvas.getBoundingClientRect();
  const left = box.left + 112 + x / 10050 * (box.width - 124);
  canvas.dispatchEvent(new PointerEvent(name, {clientX: left, clientY: box.top + y, pointerId: 1, bubbles: true}));
};
const press = (key, shiftKey) =>
  document.getElementById('charts').dispatchEvent(new KeyboardEvent('keydown', {key, shiftKey, bubbles: true}));
$2
</script>
END
}

# The layer of next_batch at 4.5 us: 1 MiB of B, on it 2 MiB of C; 0 at 272, 8.32 MiB at 8.
try small "point('memory', 'pointermove', 4500, 208); root.dataset.tip = tip();"
expect try.html '' 'tip=next_batch+0x20: 3 MiB in 2 blocks; at 4 µs: 6 MiB in use; ; The block here:; next_batch+0x20; 2 MiB (2,097,152 B) at 0x7f0000400000; allocated at 4 µs, lives 3 µs; loader, stream 0xabc0, tag layer 1'
try small "point('memory', 'pointermove', 4500, 262); root.dataset.tip = tip();"
expect try.html '' 'tip=next_batch+0x20: 3 MiB in 2 blocks; at 4 µs: 6 MiB in use; ; The block here:; next_batch+0x20; 1 MiB (1,048,576 B) at 0x7f0000300000; allocated at 3 µs, lives 2 µs; loader, no stream'
try small "point('memory', 'pointermove', 9000, 20); root.dataset.tip = tip();"
expect try.html '' 'tip=9 µs: 3 MiB in use; 8 MiB taken of the driver; refused: 1 GiB to load_weights+0x10'
try small "point('addresses', 'pointermove', 6500, 200); root.dataset.tip = tip();"
expect try.html '' 'tip=load_weights+0x10; 3 MiB (3,145,728 B) at 0x7f0000000000; allocated at 2 µs, not freed; main, no stream'
try small "point('phases', 'pointermove', 6000, 5); root.dataset.tip = tip();"
expect try.html '' 'tip=epoch 1; 7.4 µs from 2.6 µs, main'
try small "point('idle', 'pointermove', 7500, 50); root.dataset.tip = tip();"
expect try.html '' 'tip=7 µs; the largest hole: 2.5 MiB; taken and not in use: 4.5 MiB; fragmentation: 44.4 %'
try small "point('map', 'pointermove', 5000, 220); root.dataset.tip = tip();"
expect try.html 'at=7500' 'tip=not in use: 2.5 MiB; from 0x7f0000380000'
try ranges "point('addresses', 'pointermove', 8000, 60); root.dataset.tip = tip();"
look try.html ''
grep -q '^data-tip="alloc+0x1; 1 MiB.*; in forward &gt; aten::' figures || { fail "a block does not name its ranges:"; cat figures; }
# A click takes the cursor along, keys move it by an event and to the ends.
try small "point('memory', 'pointerdown', 5500, 100); point('memory', 'pointerup', 5500, 100);"
expect try.html '' cursor-bytes=5242880 cursor-hole=1048576
try small "press('ArrowLeft', true);"
expect try.html 'at=6500' cursor-time=5000 cursor-bytes=5242880
try small "press('End');"
expect try.html '' cursor-time=9000 cursor-bytes=3145728
try small "press('p');"
expect try.html 'at=8500' cursor-time=4000 cursor-bytes=6291456
try small "press('+');"
expect try.html 'at=4000' 'view=2000 7025'
try small "document.getElementById('memory').dispatchEvent(new WheelEvent('wheel', {deltaY: -300, clientX: 132, cancelable: true}));"
look try.html ''
if ! grep -q '^data-view="0 51[0-9][0-9]' figures || grep -q '^data-error' figures; then
  fail "the wheel does not zoom:"
  cat figures
fi

[ $failed -eq 0 ] || exit 1
echo "ok: the pages of mam-bench picture"
