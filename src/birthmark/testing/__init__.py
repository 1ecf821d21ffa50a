"""For tests of programs that use birthmark, and for our own: a clock, a kernel of values, and real children.

Nothing in the rest of the package imports this room.
"""

from __future__ import annotations

from birthmark.testing.clock import ManualClock
from birthmark.testing.fakes import FakeControl, FakeProcess
from birthmark.testing.puppet import Puppet, puppet, wait_exited

__all__ = ["FakeControl", "FakeProcess", "ManualClock", "Puppet", "puppet", "wait_exited"]
