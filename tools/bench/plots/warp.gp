# SPDX-License-Identifier: BSD-2-Clause
# Draws what `mam-bench warp --csv DIR` measured, from the CSV alone, as SVG, for `mam-bench plot DIR`.  By hand:
#   gnuplot -e "csv='DIR'; out='DIR2'" tools/bench/plots/warp.gp
# writes warp-size.svg, warp-threads.svg and warp-blocks.svg (the FDGMalloc paper's figures 4, 5 and 6) to DIR2, each if
# its CSV is there.

if (!exists("csv")) csv = "."
if (!exists("out")) out = csv

set datafile separator comma
set datafile missing ""
set encoding utf8
set terminal svg size 1100,480 dynamic enhanced font "sans-serif,14" background rgb "white"

set style line 1 lc rgb "#0b6e4f" lw 3 pt 7 ps 0.6
set style line 2 lc rgb "#3d5a98" lw 2 pt 9 ps 0.6
set style line 3 lc rgb "#c8553d" lw 2 pt 13 ps 0.6
set style line 4 lc rgb "#7d6b91" lw 2 pt 11 ps 0.6
set style line 5 lc rgb "#8a8a8a" lw 2 pt 5 ps 0.5
set grid xtics ytics lc rgb "#d8d8d8" lw 1
set border 3
set tics nomirror
set logscale x 2
set logscale y 10
set format y "10^{%T}"
set ylabel "µs of a kernel that allocates and frees everything"
set bmargin 5
set key at screen 0.5, 0.03 center vertical reverse Left width 2 maxrows 1

have(name) = int(system(sprintf("test -s '%s/warp-%s.csv' && echo 1 || echo 0", csv, name)))
file(name) = sprintf("%s/warp-%s.csv", csv, name)
allocators = "'warp heap' MAM CUDA 'warp direct' floor"

# An allocator's rows.  Columns: 1 allocator, 2 threads, 3 threads of a block, 4 requests of a thread, 5 bytes, 6 us.  Of
# rows with the same x "smooth unique" takes the mean.
rows(name, test) = sprintf("< grep '^%s,' '%s'", name, file(test))
rows_of(name, test, count) = sprintf("< awk -F, '$1 == \"%s\" && $4 == %s' '%s'", name, count, file(test))

if (have("size")) {
  set output sprintf("%s/warp-size.svg", out)
  set title "16 requests of each of 64 threads"
  set xlabel "bytes of a request"
  set xtics ("16 B" 16, "64 B" 64, "256 B" 256, "1 KiB" 2**10, "8 KiB" 2**13)
  plot for [i = 1:words(allocators)] rows(word(allocators, i), "size") using 5:6 smooth unique \
         with linespoints ls i title word(allocators, i)
}

if (have("threads")) {
  set output sprintf("%s/warp-threads.svg", out)
  set title "16 to 512 requests of 16 to 512 B a thread, the mean"
  set xlabel "threads"
  set xtics ("1" 1, "2^5" 2**5, "2^{10}" 2**10, "2^{16}" 2**16)
  plot for [i = 1:words(allocators)] rows(word(allocators, i), "threads") using 2:6 smooth unique \
         with linespoints ls i title word(allocators, i)
}

if (have("blocks")) {
  set output sprintf("%s/warp-blocks.svg", out)
  set multiplot layout 1,3 title "Requests of 16 B in blocks of 1024 threads"
  set xlabel "blocks"
  set xtics ("1" 1, "16" 16, "512" 512)
  set yrange [1:100000]
  do for [n in "1 16 128"] {
    set title sprintf("%s of each thread", n)
    plot for [i = 1:words(allocators)] rows_of(word(allocators, i), "blocks", n) using ($2 / 1024):6 smooth unique \
           with linespoints ls i title n eq "1" ? word(allocators, i) : ""
    unset ylabel
  }
  unset multiplot
}
