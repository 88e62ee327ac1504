"""The profile that a graph names, for the engines that it runs."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path

from ampd.cost_model import Profile, load_profile

log = logging.getLogger(__name__)


def profile_of(path: str | Path, *, model: str, thetas: Iterable[int], block_size: int, foreign: bool = False) -> Profile:
    """Load a profile and check that it is of these engines. `foreign` (the graph's `foreign_profile`) takes one of others as it
    is, and says so in the log.

    Raises ProfileError in one line: the file is bad, or of another model, block size or theta.
    """
    profile = load_profile(path)
    for theta in dict.fromkeys(thetas):
        profile.check(model=model, theta=theta, block_size=block_size, foreign=foreign)
        for mismatch in profile.mismatches(model=model, theta=theta, block_size=block_size):
            log.warning("profile %s is taken as it is, since foreign_profile is set: %s", path, mismatch)
    return profile
