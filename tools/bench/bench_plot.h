/* SPDX-License-Identifier: BSD-2-Clause */
/*
 * `mam-bench plot` draws the CSV files of the other commands.  The program has the scripts tools/bench/plots/NAME.gp
 * (tools/bench/plots/embed) and gives them to gnuplot.
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

/* The command.  Returns the exit status. */
int bench_plot(int argc, char **argv);

#endif
