"""Distribution strategies: the devices that share each training step.

A model that is built under `strategy.scope()` is trained on all of the strategy's
replicas: `fit` splits each batch, and `dble_tf.replicas` combines the parts of a step.
"""

import os

import tensorflow as tf

from dble_tf.errors import first_line
from dble_tf.errors import UserError

STRATEGIES = ('auto', 'none', 'mirrored', 'tpu')
JIT_COMPILE = ('auto', 'true', 'false')


def make_strategy(
    choice: str = 'auto', tpu: str | None = None, num_virtual_devices: int | None = None
) -> tf.distribute.Strategy:
  """Makes the strategy for a choice of devices.

  Args:
    choice: 'none', a single device; 'mirrored', all GPUs of this machine, or its CPUs
      if it has no GPU; 'tpu'; 'auto', a TPU if there is one, all GPUs if there are
      several, virtual devices if asked for, else a single device.
    tpu: 'local' for the TPU of this machine, which is the default, or the name of
      another.
    num_virtual_devices: the number of devices to divide the CPU into, for trying out
      replicas. Must come before any other work: TensorFlow cannot do it later.

  Returns:
    A strategy; for a single device, TensorFlow's default one.
  """
  _require_one_of('choice', choice, STRATEGIES)
  if tpu and choice not in ('auto', 'tpu'):
    raise UserError(
        f"tpu={tpu!r} needs choice='tpu' or 'auto', not {choice!r}.")
  if num_virtual_devices:
    if tpu or choice not in ('auto', 'mirrored'):
      raise UserError(
          "num_virtual_devices divides the CPU: use it with choice='mirrored' and "
          'without tpu.')
    return _mirrored(virtual_devices(num_virtual_devices))
  gpus = [device.name.removeprefix('/physical_device:')
          for device in tf.config.list_physical_devices('GPU')]
  if choice == 'tpu' or (choice == 'auto' and (tpu or _has_tpu())):
    return _tpu(tpu or 'local')
  if choice == 'mirrored' or (choice == 'auto' and len(gpus) > 1):
    return _mirrored(gpus or virtual_devices())
  return tf.distribute.get_strategy()


def virtual_devices(count: int | None = None) -> list[str]:
  """Divides the CPU into `count` devices, if given, and returns the names of all."""
  if count:
    cpu, *_ = tf.config.list_physical_devices('CPU')
    if len(tf.config.get_logical_device_configuration(cpu) or []) != count:
      try:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(count)])
      except RuntimeError:
        raise UserError(
            'TensorFlow is initialized and can no longer divide the CPU: make virtual '
            'devices before anything else.') from None
  return [f'CPU:{i}' for i, _ in enumerate(tf.config.list_logical_devices('CPU'))]


def _mirrored(devices):
  on_cpu = devices[0].startswith('CPU')
  # TensorFlow's default for CPUs does not allow a second strategy in the process.
  return tf.distribute.MirroredStrategy(
      devices, tf.distribute.ReductionToOneDevice() if on_cpu else None)


def _has_tpu():
  # TPU VMs set it to local; another name may be meant for other programs.
  return (os.environ.get('TPU_NAME') == 'local'
          or bool(tf.config.list_physical_devices('TPU')))


def _tpu(name):
  try:
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name)
    tf.config.experimental_connect_to_cluster(resolver)  # No-op if local.
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)
  except Exception as error:  # TensorFlow raises many kinds if there is no TPU.
    raise UserError(
        f'Cannot connect to the TPU {name} ({first_line(error)}). On the TPU VM itself '
        "use tpu='local', with tensorflow-tpu installed in place of tensorflow; "
        "choice='none' needs no TPU.") from error


def jit_compile(choice: str, strategy: tf.distribute.Strategy) -> bool | str:
  """Makes the `jit_compile` argument of a model's `compile`.

  Args:
    choice: 'auto', on for a single GPU, off for CPUs and several GPUs, and no matter
      for a TPU, which always compiles; 'true' or 'false'.
    strategy: from `make_strategy`.
  """
  _require_one_of('jit_compile', choice, JIT_COMPILE)
  if choice == 'auto':
    return 'auto'
  if choice == 'true' and isinstance(strategy, tf.distribute.TPUStrategy):
    raise UserError("A TPU always compiles: leave jit_compile at 'auto'.")
  if choice == 'true' and strategy.num_replicas_in_sync > 1:
    raise UserError(
        'XLA compiles for a single device, and replicas synchronize in every step: '
        "leave jit_compile at 'auto', or use a single device.")
  return choice == 'true'


def _require_one_of(argument, value, values):
  if value not in values:
    raise UserError(f'{argument} is one of {", ".join(values)}, not {value!r}.')
