/* SPDX-License-Identifier: BSD-2-Clause */
/* The end of every Check program's main: runs the suite, says how it went (CK_VERBOSITY), and gives the exit status. */
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
