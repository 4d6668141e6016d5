/* SPDX-License-Identifier: BSD-2-Clause */
#define LISTS_ARENAS_BY_MULTIPROCESSOR 0
#include "lists.cuh"
