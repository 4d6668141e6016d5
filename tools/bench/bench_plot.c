/* SPDX-License-Identifier: BSD-2-Clause */
#include "bench_plot.h"

#include <dirent.h>
#include <errno.h>
#include <getopt.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "bench_report.h"

enum { exit_usage = 2, exit_no_gnuplot = 127 };

static const char usage_text[] =
    "Usage: mam-bench plot DIR\n"
    "Draws what was written by --csv DIR: figures as DIR/NAME.svg, by gnuplot.\n"
    "\n"
    "Exit status: 0 success; 1 there is nothing to draw, gnuplot is missing, or it failed; 2 bad usage.\n";

static int refuse(const char *what, const char *text) {
  (void)fprintf(stderr, "mam-bench: plot: %s%s%s\n", what, text[0] == '\0' ? "" : ": ", text);
  return EXIT_FAILURE;
}

/* Whether a file's name is NAME-*SUFFIX. */
static bool is_of(const char *file, const char *name, const char *suffix) {
  size_t length = strlen(file), before = strlen(name), after = strlen(suffix);
  return length > before + 1 + after && strncmp(file, name, before) == 0 && file[before] == '-' &&
         strcmp(file + length - after, suffix) == 0;
}

/* Counts such files in the current folder. */
static size_t files_count(const char *name, const char *suffix) {
  DIR *folder = opendir(".");
  size_t count = 0;
  if (folder == NULL)
    return 0;
  for (const struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder))
    count += is_of(entry->d_name, name, suffix);
  (void)closedir(folder);
  return count;
}

/* Prints the names of the figures that were written since then, by the clock of the file system. */
static size_t figures_tell(const char *name, const char *path, const struct timespec *since) {
  DIR *folder = opendir(".");
  size_t count = 0;
  if (folder == NULL)
    return 0;
  for (const struct dirent *entry = readdir(folder); entry != NULL; entry = readdir(folder)) {
    struct stat status;
    if (!is_of(entry->d_name, name, ".svg") || stat(entry->d_name, &status) != 0 ||
        status.st_mtim.tv_sec < since->tv_sec ||
        (status.st_mtim.tv_sec == since->tv_sec && status.st_mtim.tv_nsec < since->tv_nsec))
      continue;
    (void)printf("%s/%s\n", path, entry->d_name);
    count++;
  }
  (void)closedir(folder);
  return count;
}

/* gnuplot reads the script from standard input.  The folder is the current one, so that a quotation mark in its name
 * does not come into a script. */
static _Noreturn void gnuplot_become(FILE *script) {
  if (dup2(fileno(script), STDIN_FILENO) >= 0)
    (void)execlp("gnuplot", "gnuplot", "-e", "csv='.'; out='.'", "/dev/stdin", (char *)NULL);
  _exit(errno == ENOENT ? exit_no_gnuplot : EXIT_FAILURE);
}

static int script_run(const struct plot_script *script) {
  FILE *file = tmpfile();
  int status = -1;
  if (file == NULL || fputs(script->text, file) == EOF || fflush(file) != 0 || fseek(file, 0, SEEK_SET) != 0)
    return refuse("cannot write a temporary file", strerror(errno));
  pid_t child = fork();
  if (child == 0)
    gnuplot_become(file);
  while (child > 0 && waitpid(child, &status, 0) < 0 && errno == EINTR)
    continue;
  (void)fclose(file);
  if (child < 0)
    return refuse("cannot start gnuplot", strerror(errno));
  if (WIFEXITED(status) && WEXITSTATUS(status) == exit_no_gnuplot)
    return refuse("gnuplot is not installed (Debian and Ubuntu: gnuplot-nox)", "");
  if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
    return refuse("gnuplot failed; what it said stands above.  It was to draw the files of", script->name);
  return EXIT_SUCCESS;
}

static int folder_draw(const char *path) {
  size_t drawn = 0, found = 0;
  struct timespec since;
  if (chdir(path) != 0)
    return refuse(path, strerror(errno));
  if (access(".", W_OK) != 0)
    return refuse("the figures cannot be written to this folder", path);
  (void)clock_gettime(CLOCK_REALTIME_COARSE, &since);
  for (size_t i = 0; i < plot_script_count; i++) {
    if (files_count(plot_scripts[i].name, ".csv") == 0)
      continue;
    found++;
    if (script_run(&plot_scripts[i]) != EXIT_SUCCESS)
      return EXIT_FAILURE;
    drawn += figures_tell(plot_scripts[i].name, path, &since);
  }
  if (found == 0)
    return refuse("no file of mam-bench's --csv is in this folder", path);
  if (drawn == 0)
    return refuse("no figure is made of the files in this folder", path);
  return report_status(true);
}

int bench_plot(int argc, char **argv) {
  static const struct option known[] = {{"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
  int key = getopt_long(argc, argv, "", known, NULL);
  if (key == 'h') {
    (void)fputs(usage_text, stdout);
    return report_status(true);
  }
  if (key == -1 && optind + 1 == argc)
    return folder_draw(argv[optind]);
  if (key == -1) /* else getopt_long has said what is wrong */
    (void)refuse(optind == argc ? "a folder is missing" : "one word too many", optind == argc ? "" : argv[optind + 1]);
  (void)fputs("Try 'mam-bench plot --help'.\n", stderr);
  return exit_usage;
}
