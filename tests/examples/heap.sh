# SPDX-License-Identifier: BSD-2-Clause
# Builds an example in CUDA C++.
# shellcheck shell=sh disable=SC2046 # flags are split on purpose
# README: begin
nvcc -arch=sm_90 -o heap heap.cu $(pkg-config --cflags --libs mam)
# README: end
