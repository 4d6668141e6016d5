# SPDX-License-Identifier: BSD-2-Clause
"""The former name of mam.torch."""
from mam.torch import *  # noqa: F401,F403
from mam.torch import __doc__  # noqa: F401
