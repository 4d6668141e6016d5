# SPDX-License-Identifier: BSD-2-Clause
# Builds what PyTorch calls.
# shellcheck shell=sh disable=SC2046 # flags are split on purpose
# README: begin
c++ -std=c++17 -O2 -fPIC -shared -o libmam_torch.so tools/pytorch/mam_torch.cc $(pkg-config --cflags --libs mam)
# README: end
