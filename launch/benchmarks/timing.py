"""Timings of functions in turns, for machines that are never quite idle."""

import dataclasses
import os
import platform
import statistics
import time
from collections.abc import Callable, Mapping

import tensorflow as tf


@dataclasses.dataclass(frozen=True)
class Timings:
  """Seconds of each function: name -> one number per round."""

  rounds: Mapping[str, list[float]]

  def median(self, name: str) -> float:
    return statistics.median(self.rounds[name])

  def ratio(self, name: str, reference: str) -> float:
    """The median over rounds of one function's time in units of another's.

    Both times are from the same round: whatever slows down a whole round cancels out.
    """
    return statistics.median(
        a / b for a, b in zip(self.rounds[name], self.rounds[reference]))


def interleave(functions: Mapping[str, Callable[[], object]], rounds: int) -> Timings:
  """Times functions in turns, after one warm-up call of each."""
  seconds = {name: [] for name in functions}
  for function in functions.values():
    function()
  for number in range(rounds):
    # Every other round runs backwards: no function always follows the same one.
    names = list(functions)[::-1 if number % 2 else 1]
    for name in names:
      start = time.perf_counter()
      functions[name]()
      seconds[name].append(time.perf_counter() - start)
  return Timings(seconds)


def machine() -> str:
  """The cores and devices of this machine."""
  devices = [device.device_type for device in tf.config.get_visible_devices()]
  kinds = ', '.join(f'{devices.count(kind)} {kind}' for kind in sorted(set(devices)))
  return f'{os.cpu_count()} cores of {platform.machine()}, devices: {kinds}'
