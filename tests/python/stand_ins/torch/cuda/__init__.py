# SPDX-License-Identifier: BSD-2-Clause
"""Devices, one of which is current."""
from . import memory  # noqa: F401

entered = []


class device:
    def __init__(self, which):
        self._which = which

    def __enter__(self):
        entered.append(self._which)

    def __exit__(self, *_):
        pass
