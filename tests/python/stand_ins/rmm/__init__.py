# SPDX-License-Identifier: BSD-2-Clause
"""RMM's callback resource."""
from . import mr  # noqa: F401
