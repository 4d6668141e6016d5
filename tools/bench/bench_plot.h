/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * `mam-bench plot`: draws what the other commands wrote as CSV.  The drawing is tools/bench/plots/NAME.gp, which the
 * program carries (tools/bench/plots/embed) and gives to gnuplot.
 */
#ifndef MAM_BENCH_PLOT_H
#define MAM_BENCH_PLOT_H

#include <stddef.h>

struct plot_script {
  const char *name; /* it draws NAME-*.csv as NAME-*.svg */
  const char *text;
};
extern const struct plot_script plot_scripts[];
extern const size_t plot_script_count;

/* The command: what the process returns. */
int bench_plot(int argc, char **argv);

#endif
