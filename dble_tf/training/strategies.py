"""One choice -> a tf.distribute strategy: which devices share the work.

A model that is built under `strategy.scope()` is trained on all of the strategy's
replicas: `fit` splits each batch, and what a step makes of its part is for `replicas`.
"""

import os

import tensorflow as tf

from dble_tf.errors import first_line
from dble_tf.errors import UserError

STRATEGIES = ('auto', 'none', 'mirrored', 'tpu', 'multi_worker')
JIT_COMPILE = ('auto', 'true', 'false')


def make_strategy(
    choice: str = 'auto', tpu: str | None = None, num_virtual_devices: int | None = None
) -> tf.distribute.Strategy:
  """The strategy that a choice names.

  Args:
    choice: 'none', one device; 'mirrored', all GPUs of this machine, or its CPUs where
      there is no GPU; 'tpu'; 'auto', a TPU if there is one, all GPUs if several,
      virtual devices if asked for, else none.
    tpu: 'local', the TPU of this machine, or the name of another; 'local' where None.
    num_virtual_devices: into how many devices to divide the CPU, to try replicas out.
      Before anything else: TensorFlow cannot do so later.

  Returns:
    A strategy; for one device, TensorFlow's default one.
  """
  if choice == 'multi_worker':
    raise UserError(
        "Keras' fit does not train on several GPU hosts: with "
        'MultiWorkerMirroredStrategy it fails before the first step. Take all GPUs of '
        'one host with --strategy=mirrored, or a TPU pod slice with --strategy=tpu.')
  if choice not in STRATEGIES:
    raise UserError(
        f'The strategy is {", ".join(STRATEGIES[:-1])}, not {choice!r}.')
  if tpu and choice not in ('auto', 'tpu'):
    raise UserError(f'A TPU is for --strategy=tpu or auto, not {choice}.')
  if num_virtual_devices:
    if tpu or choice not in ('auto', 'mirrored'):
      raise UserError(
          'Virtual devices are parts of the CPU: try them with --strategy=mirrored.')
    return _mirrored(virtual_devices(num_virtual_devices))
  gpus = [device.name.removeprefix('/physical_device:')
          for device in tf.config.list_physical_devices('GPU')]
  if choice == 'tpu' or (choice == 'auto' and (tpu or _has_tpu())):
    return _tpu(tpu or 'local')
  if choice == 'mirrored' or (choice == 'auto' and len(gpus) > 1):
    return _mirrored(gpus or virtual_devices())
  return tf.distribute.get_strategy()


def virtual_devices(count: int | None = None) -> list[str]:
  """Divides the CPU into `count` devices, if given, and names those there are."""
  if count:
    cpu, *_ = tf.config.list_physical_devices('CPU')
    if len(tf.config.get_logical_device_configuration(cpu) or []) != count:
      try:
        tf.config.set_logical_device_configuration(
            cpu, [tf.config.LogicalDeviceConfiguration() for _ in range(count)])
      except RuntimeError:
        raise UserError(
            'TensorFlow is at work already and cannot divide the CPU any more: ask for '
            'virtual devices first.') from None
  return [f'CPU:{i}' for i, _ in enumerate(tf.config.list_logical_devices('CPU'))]


def _mirrored(devices):
  on_cpu = devices[0].startswith('CPU')
  # TensorFlow's own choice for CPUs cannot have a second strategy in the process.
  return tf.distribute.MirroredStrategy(
      devices, tf.distribute.ReductionToOneDevice() if on_cpu else None)


def _has_tpu():
  # TPU VMs say so; a name of another TPU may be meant for other programs.
  return (os.environ.get('TPU_NAME') == 'local'
          or bool(tf.config.list_physical_devices('TPU')))


def _tpu(name):
  try:
    resolver = tf.distribute.cluster_resolver.TPUClusterResolver(tpu=name)
    tf.config.experimental_connect_to_cluster(resolver)  # Nothing, where it is local.
    tf.tpu.experimental.initialize_tpu_system(resolver)
    return tf.distribute.TPUStrategy(resolver)
  except Exception as error:  # TensorFlow raises of many kinds where there is no TPU.
    raise UserError(
        f'The TPU {name} cannot be reached ({first_line(error)}). On the TPU VM itself '
        'give --tpu=local, with the versions of requirements-tpu.txt installed; '
        '--strategy=none needs no TPU.') from error


def jit_compile(choice: str, strategy: tf.distribute.Strategy) -> bool | str:
  """What `compile` gets as `jit_compile`.

  Args:
    choice: 'auto', by device: off on CPUs, on for a GPU, left to the strategy where
      there is one; 'true' or 'false'.
    strategy: of `make_strategy`.
  """
  if choice == 'auto':
    return 'auto'
  if choice == 'true' and isinstance(strategy, tf.distribute.TPUStrategy):
    raise UserError('A TPU compiles by itself: leave --jit_compile at auto.')
  if choice == 'true' and strategy.num_replicas_in_sync > 1:
    raise UserError(
        'XLA compiles for one device at a time, and replicas have to meet in each '
        'step: leave --jit_compile at auto, or take one device with --strategy=none.')
  return choice == 'true'
