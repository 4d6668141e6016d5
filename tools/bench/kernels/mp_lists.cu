/* SPDX-License-Identifier: BSD-2-Clause */
#define LISTS_ARENAS_BY_MULTIPROCESSOR 1
#include "lists.cuh"
