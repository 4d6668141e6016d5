# SPDX-License-Identifier: BSD-2-Clause
# Builds and runs an example in C.
# shellcheck shell=sh disable=SC2046 # flags are split on purpose
# README: begin
cc -o calls calls.c $(pkg-config --cflags --libs mam)
MAM_SOURCE=host ./calls  # plain host memory in place of a GPU's; on a machine with a GPU: ./calls
# README: end
