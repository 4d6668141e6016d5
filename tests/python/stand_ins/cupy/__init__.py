# SPDX-License-Identifier: BSD-2-Clause
"""CuPy's interface for allocators, as far as mam/_cupy.py uses it."""
