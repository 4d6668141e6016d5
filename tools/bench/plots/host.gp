# SPDX-License-Identifier: BSD-2-Clause
# Draws what `mam-bench host --csv DIR` measured, from the CSV alone, as SVG, for `mam-bench plot DIR`.  By hand:
#   gnuplot -e "csv='DIR'; out='DIR2'" tools/bench/plots/host.gp
# writes host-pair.svg, host-malloc.svg, host-free.svg (the paper's figures 8 and 9), host-live.svg (figure 10),
# host-iterate.svg, host-stall.svg, host-trace.svg and host-threads.svg to DIR2, each if its CSV is there.

if (!exists("csv")) csv = "."
if (!exists("out")) out = csv

set datafile separator comma
set datafile missing ""
set encoding utf8
set terminal svg size 800,520 dynamic enhanced font "sans-serif,14" background rgb "white"

set style line 1 lc rgb "#0b6e4f" lw 3 pt 7 ps 0.6
set style line 2 lc rgb "#c8553d" lw 2 pt 5 ps 0.5
set style line 3 lc rgb "#3d5a98" lw 2 pt 9 ps 0.6
set style line 4 lc rgb "#7d6b91" lw 2 pt 13 ps 0.6
set grid xtics ytics lc rgb "#d8d8d8" lw 1
set border 3
set tics nomirror

have(name) = int(system(sprintf("test -s '%s/host-%s.csv' && echo 1 || echo 0", csv, name)))
file(name) = sprintf("%s/host-%s.csv", csv, name)
# The allocators of a file, in its order.
names(name) = system(sprintf("awk -F, 'NR > 1 && $1 != \"control\" && !seen[$1]++ { print $1 }' '%s/host-%s.csv'", csv, name))
# What was measured on, for the title.
machine = have("machine") ? system(sprintf("awk -F, 'NR == 2 { print $1 \", \" $5 \" reuse\" }' '%s/host-machine.csv'", \
  csv)) : ""

set logscale x 2
set logscale y 10
set key outside bottom center horizontal reverse Left width 1 maxcols 3
set bmargin 7
set format y "%.0s %c"

# ---- Pairs ----------------------------------------------------------------------------------------------------------

time_tics = '("1 ns" 1, "10 ns" 1e1, "100 ns" 1e2, "1 µs" 1e3, "10 µs" 1e4, "100 µs" 1e5, "1 ms" 1e6, "10 ms" 1e7, \
  "100 ms" 1e8)'
size_tics = '("1 B" 1, "32 B" 32, "1 KiB" 2**10, "32 KiB" 2**15, "1 MiB" 2**20, "32 MiB" 2**25, "1 GiB" 2.0**30)'

if (have("pair")) {
  set xlabel "size of the block"
  set xrange [1:1.1 * 2.0**30]
  eval "set xtics ".size_tics
  unset format y
  eval "set ytics ".time_tics
  set yrange [1:*]
  set ylabel "time of both, mean of a batch"
  set title sprintf("An allocation and its free by size: %s", machine)
  set output sprintf("%s/host-pair.svg", out)
  list = names("pair")
  plot for [i = 1:words(list)] file("pair") using (strcol(1) eq word(list, i) ? $2 : NaN):5 \
         with linespoints ls i title word(list, i)
}

# ---- Figures 8 and 9 ------------------------------------------------------------------------------------------------

if (have("size")) {
  set xlabel "size of the block"
  set xrange [1:1.1 * 2.0**30]
  set xtics ("1 B" 1, "32 B" 32, "1 KiB" 2**10, "32 KiB" 2**15, "1 MiB" 2**20, "32 MiB" 2**25, "1 GiB" 2.0**30)
  unset format y
  set ytics ("10 ns" 1e1, "100 ns" 1e2, "1 µs" 1e3, "10 µs" 1e4, "100 µs" 1e5, "1 ms" 1e6, "10 ms" 1e7, "100 ms" 1e8)
  set yrange [10:*]
  # Blocks of a bin are spread between 2^k and 2^(k+1) evenly in the logarithm: its middle is sqrt(2) above.
  middle(bytes) = bytes * sqrt(2)
  do for [figure in "malloc free"] {
    column_mean = figure eq "malloc" ? 4 : 7
    column_median = column_mean + 1
    set output sprintf("%s/host-%s.svg", out, figure)
    set title sprintf("%s: %s", figure eq "malloc" ? "An allocation by size, while memory fills up" : \
      "A free by size, in random order", machine)
    set ylabel "time of one call"
    list = names("size")
    plot for [i = 1:words(list)] file("size") using (strcol(1) eq word(list, i) ? middle($2) : NaN):column_mean \
           with linespoints ls i title word(list, i).", mean", \
         for [i = 1:words(list)] file("size") using (strcol(1) eq word(list, i) ? middle($2) : NaN):column_median \
           with lines ls i lw 1.5 dt 2 title word(list, i).", median"
  }
}

# ---- Figure 10 ------------------------------------------------------------------------------------------------------

if (have("live")) {
  set logscale x 10
  set xlabel "live blocks"
  set xrange [1:*]
  set xtics autofreq
  set xtics format "10^{%T}"
  set ytics ("1 ns" 1, "10 ns" 1e1, "100 ns" 1e2, "1 µs" 1e3, "10 µs" 1e4, "100 µs" 1e5, "1 ms" 1e6, "10 ms" 1e7)
  set yrange [1:*]
  set ylabel "time of one allocation of 1 to 10 bytes"
  set title sprintf("An allocation after n live ones: %s", machine)
  set output sprintf("%s/host-live.svg", out)
  list = names("live")
  plot for [i = 1:words(list)] file("live") using (strcol(1) eq word(list, i) ? $2 : NaN):5 \
         with linespoints ls i title word(list, i)
}

# ---- An iterated FFT ------------------------------------------------------------------------------------------------

if (have("iterate")) {
  set logscale x 2
  set xlabel "points of the FFT"
  set xrange [2**11.5:2**24.5]
  set xtics ("2^{12}" 2**12, "2^{16}" 2**16, "2^{20}" 2**20, "2^{24}" 2**24)
  set ytics ("0.1 µs" 0.1, "1 µs" 1, "10 µs" 1e1, "100 µs" 1e2, "1 ms" 1e3, "10 ms" 1e4, "100 ms" 1e5)
  set yrange [*:*]
  set ylabel "of an iteration, in allocations and frees"
  set title sprintf("An FFT that allocates in each pass: %s", machine)
  set output sprintf("%s/host-iterate.svg", out)
  set bmargin 9
  list = names("iterate")
  plot for [i = 1:words(list)] file("iterate") using (strcol(1) eq word(list, i) ? $2 : NaN):4 \
         with linespoints ls i title word(list, i), \
       for [i = 1:words(list)] file("iterate") using (strcol(1) eq word(list, i) ? $2 : NaN):5 \
         with lines ls i lw 1.5 dt 2 title word(list, i).", whole"
  set bmargin 7
}

# ---- Stalls ---------------------------------------------------------------------------------------------------------

if (have("stall")) {
  set logscale x 2
  set xlabel "size of the block"
  set xrange [256:2**27]
  eval "set xtics ".size_tics
  eval "set ytics ".time_tics
  set yrange [10:*]
  set ylabel "the longest call"
  set title sprintf("The longest allocation or free while a kernel of 200 ms runs: %s", machine)
  set output sprintf("%s/host-stall.svg", out)
  list = names("stall")
  longer(a, b) = a > b ? a : b
  # Rows of 1 thread and of 8 take turns.
  plot for [i = 1:words(list)] file("stall") every 2::1 \
         using (strcol(1) eq word(list, i) ? $2 : NaN):(longer($7, $8)) \
         with linespoints ls i title word(list, i).", 1 thread", \
       for [i = 1:words(list)] file("stall") every 2::2 \
         using (strcol(1) eq word(list, i) ? $2 : NaN):(longer($7, $8)) \
         with linespoints ls i lw 1.5 dt 2 title word(list, i).", 8"
}

# ---- A training trace -----------------------------------------------------------------------------------------------

# The columns that have a number: on plain host memory there is no driver to see what is taken, and gnuplot draws no
# histogram of an empty column.
columns = have("trace") ? system(sprintf( \
  "awk -F, 'NR > 1 { for (i = 6; i <= 8; i++) if ($i != \"\") has[i] = 1 } END { for (i = 6; i <= 8; i++) if (has[i]) print i }' '%s'", \
  file("trace"))) : ""

if (words(columns) > 0) {
  unset logscale
  unset xlabel
  unset xtics
  set xtics nomirror
  unset ytics
  set ytics autofreq nomirror
  set format y "%g"
  set xrange [*:*]
  set yrange [0:*]
  set style data histograms
  set style histogram clustered gap 1
  set style fill solid
  set ylabel "memory taken over the peak of live blocks"
  set title sprintf("A training-like trace: %s", machine)
  set output sprintf("%s/host-trace.svg", out)
  titles = "'as the pool says' 'as the driver sees it' 'smallest pool of fixed size'"
  plot for [i in columns] file("trace") every ::1 using (column(int(i)) / $5):xtic(1) ls int(i) - 5 \
         title word(titles, int(i) - 5)
  set style data points
  set logscale y 10
  set xtics autofreq
}

# ---- Threads --------------------------------------------------------------------------------------------------------

if (have("threads")) {
  set terminal svg size 1100,500 dynamic enhanced font "sans-serif,14" background rgb "white"
  set output sprintf("%s/host-threads.svg", out)
  set logscale x 2
  set xlabel "threads"
  set xrange [0.9:*]
  set format x "%.0f"
  set xtics autofreq
  unset ytics
  set ytics autofreq nomirror
  set format y "%g"
  set yrange [*:*]
  list = names("threads")
  titles = "'T: pairs of 4 KiB' 'R: random traffic' 'X: allocated here, freed there'"
  set multiplot layout 1,3 title sprintf("Threads: %s", machine)
  do for [t = 1:3] {
    set title word(titles, t)
    test = word("T R X", t)
    if (t == 1) { set ylabel "million operations a second, in all" } else { unset ylabel }
    if (t == 2) { set key at screen 0.5, 0.05 center horizontal reverse Left width 4 maxrows 1 } else { unset key }
    plot for [i = 1:words(list)] file("threads") \
           using (strcol(1) eq word(list, i) && strcol(2) eq test ? $3 : NaN):5 with linespoints ls i title word(list, i)
  }
  unset multiplot
}
