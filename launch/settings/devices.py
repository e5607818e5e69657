"""The flags that say where a run is computed: not what comes out of it."""

import functools

import tensorflow as tf
from absl import flags

from dble_tf.training import strategies

# Flags defined here belong, in --help, to the entry point that asks for them.
flags.disclaim_key_flags()


def define_flags(values: flags.FlagValues) -> None:
  """Defines the flags of devices."""
  string, enum, integer = (
      functools.partial(define, flag_values=values)
      for define in (flags.DEFINE_string, flags.DEFINE_enum, flags.DEFINE_integer))
  enum('strategy', 'auto', strategies.STRATEGIES,
       'Devices that share each step: one (none), all GPUs (mirrored), a TPU; auto '
       'takes a TPU if there is one, all GPUs if several, else none.')
  string('tpu', None, "The TPU: local, this machine's, or a name.")
  integer('num_virtual_devices', None, 'Divides the CPU into as many devices, to try '
          'replicas out.', lower_bound=1)
  enum('jit_compile', 'auto', strategies.JIT_COMPILE,
       'Compile steps with XLA; auto: off on CPUs, on for a GPU, left to the strategy '
       'where there is one.')


def arguments(values: flags.FlagValues) -> list[str]:
  """The flags of devices that were given, for another command."""
  return [values[name].serialize()
          for name in ('strategy', 'tpu', 'num_virtual_devices', 'jit_compile')
          if values[name].present]


def make_strategy(values: flags.FlagValues) -> tf.distribute.Strategy:
  """The strategy of the flags; to be made before TensorFlow computes anything."""
  return strategies.make_strategy(
      values.strategy, values.tpu, values.num_virtual_devices)
