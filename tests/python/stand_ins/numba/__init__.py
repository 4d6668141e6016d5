# SPDX-License-Identifier: BSD-2-Clause
"""Numba's interface for memory managers, as far as mam/numba.py uses it."""
