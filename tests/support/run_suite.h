/* SPDX-License-Identifier: BSD-2-Clause */
/* The end of main of every Check program: runs the suite, prints the results as CK_VERBOSITY says, and returns the exit
 * status. */
#ifndef MAM_TESTS_RUN_SUITE_H
#define MAM_TESTS_RUN_SUITE_H

#include <check.h>
#include <stdlib.h>

static inline int run_suite(Suite *suite) {
  SRunner *runner = srunner_create(suite);
  srunner_run_all(runner, CK_ENV);
  int failed = srunner_ntests_failed(runner);
  srunner_free(runner);
  return failed == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}

#endif
