# SPDX-License-Identifier: BSD-2-Clause
# Draws what `mam-bench heap --csv DIR` measured, from the CSV alone, as SVG, for `mam-bench plot DIR`.  By hand:
#   gnuplot -e "csv='DIR'; out='DIR2'" tools/bench/plots/heap.gp
# writes heap-rate.svg, heap-large.svg, heap-threads.svg and heap-variation.svg (the paper's figure 3), heap-fill.svg
# (figure 2), heap-spread.svg (figure 4), heap-access.svg and heap-latency.svg to DIR2, each if its CSV is there.

if (!exists("csv")) csv = "."
if (!exists("out")) out = csv

set datafile separator comma
set datafile missing ""
set encoding utf8
set terminal svg size 1100,480 dynamic enhanced font "sans-serif,14" background rgb "white"

set style line 1 lc rgb "#0b6e4f" lw 3 pt 7 ps 0.6
set style line 2 lc rgb "#8a8a8a" lw 2 pt 5 ps 0.5
set style line 3 lc rgb "#3d5a98" lw 2 pt 9 ps 0.6
set style line 4 lc rgb "#c8553d" lw 2 pt 13 ps 0.6
set style line 5 lc rgb "#7d6b91" lw 2 pt 11 ps 0.6
set style line 6 lc rgb "#b08d3c" lw 2 pt 3 ps 0.6
set grid xtics ytics lc rgb "#d8d8d8" lw 1
set border 3
set tics nomirror

have(name) = int(system(sprintf("test -s '%s/heap-%s.csv' && echo 1 || echo 0", csv, name)))
file(name) = sprintf("%s/heap-%s.csv", csv, name)
# The allocators of a file, in its order.
names(name) = system(sprintf("awk -F, 'NR > 1 && !seen[$1]++ { print $1 }' '%s/heap-%s.csv'", csv, name))
machine = have("machine") ? system(sprintf("awk -F, 'NR == 2 { print $1 }' '%s/heap-machine.csv'", csv)) : ""

set bmargin 5
# One key for all panels of a figure, below them.
key_shared = "set key at screen 0.5, 0.03 center vertical reverse Left width 2 maxrows 1"
size_tics = '("16 B" 16, "64 B" 64, "256 B" 256, "1 KiB" 2**10, "4 KiB" 2**12)'
large_tics = '("8 KiB" 2**13, "64 KiB" 2**16, "1 MiB" 2**20, "16 MiB" 2**24, "256 MiB" 2**28)'
thread_tics = '("2^5" 2**5, "2^{10}" 2**10, "2^{15}" 2**15, "2^{20}" 2**20)'

# Columns: 1 allocator, 2 and 3 bytes, 4 requests, 5 every, 6 heap_bytes, 7 status, 8 step, 9 and on what was measured.
# The files are in the order of the cases, which "smooth unique" sorts.

# ---- Rates ----------------------------------------------------------------------------------------------------------

if (have("uniform")) {
  set logscale x 2
  set logscale y 10
  set xlabel "bytes of a request"
  eval "set xtics ".size_tics
  set format y "10^{%T}"
  set output sprintf("%s/heap-rate.svg", out)
  list = names("uniform")
  set multiplot layout 1,2 title sprintf("Million calls a second of 2^{20} threads, one each: %s", machine)
  do for [t = 1:2] {
    set title word("malloc free", t)
    eval t == 1 ? key_shared : "unset key"
    column_rate = 10 + t
    plot for [i = 1:words(list)] file("uniform") \
           using (strcol(1) eq word(list, i) && $4 == 2**20 ? $2 : NaN):(column(column_rate)) smooth unique \
           with linespoints ls i title word(list, i)
  }
  unset multiplot
}

if (have("large")) {
  set logscale x 2
  set logscale y 10
  set xlabel "bytes of a request"
  eval "set xtics ".large_tics
  set format y "10^{%T}"
  set output sprintf("%s/heap-large.svg", out)
  list = names("large")
  set multiplot layout 1,2 title sprintf("Large blocks, as many as half of the heap holds: %s", machine)
  do for [t = 1:2] {
    set title word("malloc free", t)
    eval t == 1 ? key_shared : "unset key"
    column_us = 8 + t
    set ylabel "µs of the kernel, with its launch"
    plot for [i = 1:words(list)] file("large") \
           using (strcol(1) eq word(list, i) ? $2 : NaN):(column(column_us)) smooth unique \
           with linespoints ls i title word(list, i)
  }
  unset multiplot
}

# ---- Figure 3 -------------------------------------------------------------------------------------------------------

if (have("threads")) {
  set terminal svg size 1100,900 dynamic enhanced font "sans-serif,14" background rgb "white"
  set logscale x 2
  set xlabel "threads"
  eval "set xtics ".thread_tics
  list = names("threads")
  sizes = system(sprintf("awk -F, 'NR > 1 && !seen[$2]++ { print $2 }' '%s'", file("threads")))
  do for [figure in "threads variation"] {
    column_malloc = figure eq "threads" ? 9 : 10
    if (figure eq "threads") { set logscale y 10; set format y "10^{%T}" } else { unset logscale y; set format y "%g" }
    set ylabel figure eq "threads" ? "cycles" : "coefficient of variation"
    set output sprintf("%s/heap-%s.svg", out, figure)
    set multiplot layout 2,2 title sprintf("%s of a malloc, of a free (dashed): %s", \
      figure eq "threads" ? "Mean cycles" : "Variation of the cycles", machine)
    do for [s = 1:words(sizes)] {
      set title word(sizes, s)." bytes"
      eval s == 1 ? key_shared : "unset key"
      plot for [i = 1:words(list)] file("threads") \
             using (strcol(1) eq word(list, i) && strcol(2) eq word(sizes, s) ? $4 : NaN):(column(column_malloc)) \
             smooth unique with lines ls i title word(list, i), \
           for [i = 1:words(list)] file("threads") \
             using (strcol(1) eq word(list, i) && strcol(2) eq word(sizes, s) ? $4 : NaN):(column(column_malloc + 3)) \
             smooth unique with lines ls i lw 1.5 dt 2 notitle
    }
    unset multiplot
  }
  set terminal svg size 1100,480 dynamic enhanced font "sans-serif,14" background rgb "white"
}

# ---- Figure 2 -------------------------------------------------------------------------------------------------------

if (have("fill")) {
  unset logscale
  set format y "%g"
  set xtics autofreq
  set xlabel "round"
  unset ylabel
  set output sprintf("%s/heap-fill.svg", out)
  list = names("fill")
  set multiplot layout 1,3 title sprintf("16,384 threads fill 16 MiB with 128 to 160 bytes: %s", machine)
  set title "cycles of a malloc"
  eval key_shared
  set logscale y 10
  set format y "10^{%T}"
  plot for [i = 1:words(list)] file("fill") using (strcol(1) eq word(list, i) ? $8 : NaN):9 with lines ls i \
         title word(list, i)
  unset logscale y
  set format y "%g"
  set yrange [0:1]
  unset key
  set title "external, live share (thin)"
  plot for [i = 1:words(list)] file("fill") using (strcol(1) eq word(list, i) ? $8 : NaN):13 with lines ls i \
         title word(list, i), \
       for [i = 1:words(list)] file("fill") using (strcol(1) eq word(list, i) ? $8 : NaN):11 with lines ls i lw 1 \
         notitle
  set title "internal, overhead (thin)"
  set yrange [0:0.5]
  plot for [i = 1:words(list)] file("fill") using (strcol(1) eq word(list, i) ? $8 : NaN):12 with lines ls i \
         title word(list, i), \
       for [i = 1:words(list)] file("fill") using (strcol(1) eq word(list, i) ? $8 : NaN):14 with lines ls i lw 1 \
         notitle
  unset multiplot
  set yrange [*:*]
}

# ---- Figure 4 -------------------------------------------------------------------------------------------------------

if (have("spread")) {
  unset logscale
  set format y "%g"
  set xtics 0, 256
  set xlabel "spread of the sizes around 512 B"
  set output sprintf("%s/heap-spread.svg", out)
  list = names("spread")
  set multiplot layout 1,3 title sprintf("Fragmentation and access by spread, 4096 threads: %s", machine)
  do for [t = 1:3] {
    set title word("'internal fragmentation' 'external fragmentation' 'cycles to read a word'", t)
    eval t == 1 ? key_shared : "unset key"
    set yrange [0:*]
    plot for [i = 1:words(list)] file("spread") \
           using (strcol(1) eq word(list, i) && $4 == 4096 ? $8 : NaN):(column(8 + t)) with linespoints ls i \
           title word(list, i)
  }
  unset multiplot
  set yrange [*:*]
}

# ---- Access ---------------------------------------------------------------------------------------------------------

if (have("access")) {
  set logscale x 2
  unset logscale y
  set format y "%g"
  eval "set xtics ".size_tics
  set xlabel "bytes of a block"
  set ylabel "time over a plain array's"
  set output sprintf("%s/heap-access.svg", out)
  list = names("access")
  titles = "'write by thread' 'read by thread' 'write by warp' 'read by warp'"
  set multiplot layout 1,4 title sprintf("Use of 2^{20} blocks: %s", machine)
  do for [t = 1:4] {
    set title word(titles, t)
    if (t > 1) { unset ylabel }
    eval t == 1 ? key_shared : "unset key"
    plot 1 with lines lc rgb "black" dt 2 notitle, for [i = 1:words(list)] file("access") \
           using (strcol(1) eq word(list, i) && $4 == 2**20 ? $2 : NaN):(column(8 + t)) smooth unique \
           with linespoints ls i title word(list, i)
  }
  unset multiplot
}

# ---- Latency --------------------------------------------------------------------------------------------------------

if (have("latency")) {
  unset logscale
  set logscale y 10
  set format y "10^{%T}"
  set xtics ("50 %%" 50, "75 %%" 75, "90 %%" 90)
  set xrange [45:95]
  set xlabel "of the heap is live"
  list = names("latency")
  heaps = system(sprintf("awk -F, 'NR > 1 && !seen[$6]++ { print $6 }' '%s'", file("latency")))
  set terminal svg size 1100,900 dynamic enhanced font "sans-serif,14" background rgb "white"
  set output sprintf("%s/heap-latency.svg", out)
  set multiplot layout 2,words(heaps) \
    title sprintf("µs of a malloc, 99.99 %%, and the longest (dashed): %s", machine)
  do for [threads_log2 in "14 17"] {
    do for [h = 1:words(heaps)] {
      set title sprintf("%d MiB, 2^{%s} threads", int(word(heaps, h)) / 2**20, threads_log2)
      eval h == 1 && threads_log2 eq "14" ? key_shared : "unset key"
      plot for [i = 1:words(list)] file("latency") using (strcol(1) eq word(list, i) && \
             $6 == real(word(heaps, h)) && $4 == 2**int(threads_log2) ? $8 : NaN):11 smooth unique \
             with linespoints ls i title word(list, i), \
           for [i = 1:words(list)] file("latency") using (strcol(1) eq word(list, i) && \
             $6 == real(word(heaps, h)) && $4 == 2**int(threads_log2) ? $8 : NaN):12 smooth unique \
             with lines ls i lw 1.5 dt 2 notitle
    }
  }
  unset multiplot
}
