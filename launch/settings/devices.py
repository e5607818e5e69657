"""The flags of devices: where a run is computed, not its outcome."""

from absl import flags

from ..cli.groups import group
from . import choices

_NAMES = ('strategy', 'tpu', 'num_virtual_devices', 'jit_compile')


def define_flags(values: flags.FlagValues) -> None:
  """Defines the flags of devices."""
  with group('devices', values):
    flags.DEFINE_enum(
        'strategy', 'auto', choices.STRATEGIES,
        'Devices that share each step: one (none), all GPUs (mirrored) or a TPU (tpu); '
        'auto takes a TPU if there is one, all GPUs if there are several, else one '
        'device.', flag_values=values)
    flags.DEFINE_string(
        'tpu', None, 'The TPU: local, for that of this machine, or a name.',
        flag_values=values)
    flags.DEFINE_integer(
        'num_virtual_devices', None, 'Split the CPU into this many devices, to try '
        'replicas out.', lower_bound=1, flag_values=values)
    flags.DEFINE_enum(
        'jit_compile', 'auto', choices.JIT_COMPILE,
        'Compile steps with XLA; auto: off on CPUs, on for one GPU, left to the '
        'strategy where there are replicas.', flag_values=values)


def arguments(values: flags.FlagValues) -> list[str]:
  """The flags of devices that were given, for another command."""
  return [values[name].serialize() for name in _NAMES if values[name].present]
