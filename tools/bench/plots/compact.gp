# SPDX-License-Identifier: BSD-2-Clause
# Draws what `mam-bench compact --csv DIR` measured, from the CSV alone, as SVG, for `mam-bench plot DIR`.  By hand:
#   gnuplot -e "csv='DIR'; out='DIR2'" tools/bench/plots/compact.gp
# writes compact-passes.svg and compact-levels.svg (the paper's figure 3) and compact-particles.svg (as its figures 4 and
# 5) to DIR2, each if its CSV is there.

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
set style line 5 lc rgb "#b08d3c" lw 2 pt 3 ps 0.6
set style line 6 lc rgb "#4a4a4a" lw 2 pt 5 ps 0.5
set grid xtics ytics lc rgb "#d8d8d8" lw 1
set border 3
set tics nomirror
set bmargin 5

have(name) = int(system(sprintf("test -s '%s/compact-%s.csv' && echo 1 || echo 0", csv, name)))
file(name) = sprintf("%s/compact-%s.csv", csv, name)
# The numbers n of a file, in its order.
numbers(name) = system(sprintf("awk -F, 'NR > 1 && !seen[$1]++ { print $1 }' '%s/compact-%s.csv'", csv, name))
machine = have("machine") ? system(sprintf("awk -F, 'NR == 2 { print $1 }' '%s/compact-machine.csv'", csv)) : ""
key_shared = "set key at screen 0.5, 0.03 center vertical reverse Left width 2 maxrows 1"

# ---- Fragmentation by pass ------------------------------------------------------------------------------------------

if (have("passes")) {
  set output sprintf("%s/compact-passes.svg", out)
  list = numbers("passes")
  set xlabel "passes"
  set ylabel "fragmentation"
  set yrange [0:0.65]
  set xrange [0:20]
  set multiplot layout 1,2 title sprintf("Fragmentation by pass, 60 %% before: %s", machine)
  do for [t = 1:2] {
    set title word("all\\_passes\\_with\\_n n\\_growing\\_from\\_1", t)
    eval t == 1 ? key_shared : "unset key"
    plot for [i = 1:words(list)] n = int(word(list, i)) file("passes") \
           using (int($1) == n && (t == 1 ? int($2) == n : int($2) == 1) ? $3 : NaN):4 smooth unique \
           with linespoints ls i title sprintf("n %d", n)
  }
  unset multiplot
  set autoscale
  unset title
}

# ---- Fragmentation after, by before ---------------------------------------------------------------------------------

if (have("levels")) {
  set output sprintf("%s/compact-levels.svg", out)
  list = numbers("levels")
  set title sprintf("After all passes; dashed: the bound 1/(n+1).  %s", machine)
  set xlabel "fragmentation before"
  set ylabel "fragmentation after"
  set xrange [0:1]
  set yrange [0:0.55]
  set key outside right
  plot for [i = 1:words(list)] n = int(word(list, i)) file("levels") using (int($1) == n ? $2 : NaN):3 \
         with linespoints ls i title sprintf("n %d", n), \
       for [i = 1:words(list)] 1.0 / (int(word(list, i)) + 1) with lines ls i dt 2 lw 1 notitle
  set autoscale
  unset title
}

# ---- Particles ------------------------------------------------------------------------------------------------------

if (have("particles") && have("particles-time")) {
  set output sprintf("%s/compact-particles.svg", out)
  list = numbers("particles")
  set multiplot layout 1,2 title sprintf("Particles that come and go: %s", machine)
  eval key_shared
  set xlabel "step"
  set ylabel "MiB"
  set yrange [0:*]
  plot for [i = 1:words(list)] n = int(word(list, i)) file("particles") using (int($1) == n ? $2 : NaN):($5 / 2**20) \
         smooth unique with lines ls i title (n == 0 ? "pages, no compaction" : sprintf("n %d", n)), \
       file("particles") using (int($1) == 0 ? $2 : NaN):($4 / 2**20) smooth unique with filledcurves y1=0 \
         lc rgb "#c9d6cf" title "in objects"
  unset key
  set xlabel "n (0: none)"
  set ylabel "ms"
  set boxwidth 0.6
  set style fill solid 0.8
  plot file("particles-time") using 0:3:xtic(1) with boxes ls 1 notitle
  unset multiplot
}
