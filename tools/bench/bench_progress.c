/* SPDX-License-Identifier: BSD-2-Clause */
#include "bench_progress.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench_clock.h"

/* The shortest time between two redraws, so that a fast loop does not wait for the terminal. */
static const uint64_t redraw_ns = 100000000;

/* Before so much is done, and before so long, the remaining time cannot be estimated. */
static const double told_from = 0.02;
static const uint64_t told_after_ns = 1000000000;

static struct {
  bool is_shown;
  double whole, done; /* done: the weights of the tests that have ended */
  const char *test, *who;
  double weight;
  double index, count, within; /* of the present test: parts done, all parts, the share of the present one */
  uint64_t begin_ns, drawn_ns;
} progress;

static double share_done(void) {
  double parts = progress.count > 0 ? (progress.index + progress.within) / progress.count : 0;
  double share = progress.whole > 0 ? (progress.done + progress.weight * parts) / progress.whole : 0;
  return share < 1 ? share : 1;
}

static void left_text(char text[16], double share, uint64_t spent_ns) {
  double left_s = (double)spent_ns / 1e9 * (1 - share) / share;
  if (share < told_from || spent_ns < told_after_ns || left_s > 359999)
    (void)snprintf(text, 16, "-:--");
  else if (left_s < 3600)
    (void)snprintf(text, 16, "%u:%02u", (unsigned)left_s / 60, (unsigned)left_s % 60);
  else
    (void)snprintf(text, 16, "%u:%02u:%02u", (unsigned)left_s / 3600, (unsigned)left_s / 60 % 60,
                   (unsigned)left_s % 60);
}

/* The cursor goes back to the beginning of the line, so that the next output covers it. */
static void draw(bool always) {
  uint64_t now_ns = clock_now_ns();
  char left[16];
  if (!progress.is_shown || (!always && now_ns - progress.drawn_ns < redraw_ns))
    return;
  progress.drawn_ns = now_ns;
  left_text(left, share_done(), now_ns - progress.begin_ns);
  (void)fprintf(stderr, "\r%3.0f %%, %s left  %s%s%s\033[K\r", share_done() * 100, left, progress.test,
                progress.who[0] != '\0' ? ": " : "", progress.who);
  (void)fflush(stderr);
}

void progress_begin(double whole) {
  const char *terminal = getenv("TERM");
  memset(&progress, 0, sizeof progress);
  progress.test = progress.who = "";
  progress.whole = whole;
  progress.begin_ns = clock_now_ns();
  progress.is_shown = isatty(STDERR_FILENO) == 1 && terminal != NULL && strcmp(terminal, "dumb") != 0;
}

void progress_test(const char *name, double weight) {
  progress.done += progress.weight;
  progress.weight = weight;
  progress.index = progress.count = progress.within = 0;
  progress.test = name;
  progress.who = "";
}

void progress_part(const char *who, size_t index, size_t count) {
  progress.index = (double)index;
  progress.count = (double)count;
  progress.within = 0;
  progress.who = who;
  draw(true);
}

void progress_within(double done, double of) {
  progress.within = done < of ? done / of : 1;
  draw(false);
}

void progress_clear(void) {
  if (progress.is_shown)
    (void)fputs("\r\033[K", stderr);
}
