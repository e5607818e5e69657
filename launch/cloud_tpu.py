"""Trains on a Cloud TPU: creates a TPU VM, installs this package there, runs it.

  python -m launch.cloud_tpu --name=dble --zone=us-west4-a \\
    --accelerator_type=v5litepod-8 --runtime_version=v2-alpha-tpuv5-lite --dry_run \\
    --train="--flagfile=cifar10 --episodes_per_step=8 \\
             --data_dir=gs://BUCKET/data --workdir=gs://BUCKET/cifar10"

Needs the gcloud command, logged in. --dry_run prints the commands without running them.
"""

import importlib.util
import pathlib
import shlex
import shutil
import subprocess

from absl import flags

from .cli import entry
from .cli.groups import group

FLAGS = flags.FLAGS

ACTIONS = ('delete', 'create', 'install', 'train')
_PACKAGE = pathlib.Path(__file__).parent  # launch, or dble_launch once installed.
_DIRECTORY = 'dble_tf_run'  # In the home directory of the TPU VM.

with group('run', FLAGS):
  flags.DEFINE_list(
      'actions', ['create', 'install', 'train'],
      f'Actions to take, among {", ".join(ACTIONS)}; they run in this order.')
  flags.DEFINE_string('train', None, 'Flags of the training.')
  flags.DEFINE_bool('dry_run', False, 'Print the commands without running them.')
with group('TPU', FLAGS):
  flags.DEFINE_string('name', None, 'Name of the TPU.')
  flags.DEFINE_string('zone', None, 'Zone of the TPU.')
  flags.DEFINE_string(
      'accelerator_type', None, 'Type and size of the TPU, such as v5litepod-8.')
  flags.DEFINE_string(
      'runtime_version', None, 'Software of the VM: v2-alpha-tpuv5-lite for v5e, '
      'v2-alpha-tpuv5 for v5p, v2-alpha-tpuv6e for v6e, tpu-ubuntu2204-base for v4 and '
      'older.')
  flags.DEFINE_bool('spot', False, 'Use a cheaper TPU that may be preempted.')
  flags.DEFINE_bool('pod', False, 'The TPU is a pod slice, with several hosts.')
flags.mark_flags_as_required(['name', 'zone'])
flags.register_validator(
    'actions', lambda actions: actions and set(actions) <= set(ACTIONS),
    f'choose from {", ".join(ACTIONS)}')


def main() -> None:
  # All commands are built before any is run: a mistake must not leave a TPU that costs
  # money.
  commands = [command for action in ACTIONS if action in FLAGS.actions
              for command in _COMMANDS[action]()]
  if not FLAGS.dry_run and not shutil.which('gcloud'):
    raise entry.CommandError(
        'gcloud not found: install the Google Cloud CLI, or print the commands with '
        '--dry_run.')
  for command in commands:
    print(shlex.join(command), flush=True)
    if not FLAGS.dry_run and subprocess.run(command).returncode:
      raise entry.CommandError(
          'This command failed, and those after it were not run. A TPU that exists '
          'costs money: --actions=delete removes it.')


def _create():
  if not (FLAGS.accelerator_type and FLAGS.runtime_version):
    raise entry.CommandError(
        'Creating a TPU needs --accelerator_type and --runtime_version.')
  return [_tpu_vm('create', FLAGS.name, f'--accelerator-type={FLAGS.accelerator_type}',
                  f'--version={FLAGS.runtime_version}',
                  *(['--spot'] if FLAGS.spot else []))]


def _delete():
  return [_tpu_vm('delete', FLAGS.name, '--quiet')]


def _install():
  library = pathlib.Path(importlib.util.find_spec('dble_tf').origin).parent
  return [
      _on_hosts(f'mkdir -p {_DIRECTORY}'),
      _tpu_vm('scp', '--recurse', str(library), str(_PACKAGE),
              f'{FLAGS.name}:{_DIRECTORY}', '--worker=all'),
      _on_hosts(
          'sudo apt-get -qq update && '
          'sudo apt-get -qq install -y python3.11 python3.11-venv && '
          f'cd {_DIRECTORY} && python3.11 -m venv .venv && '
          f'.venv/bin/pip install -q -r {_PACKAGE.name}/requirements-tpu.txt && '
          '.venv/bin/pip install -q --no-deps tf_keras==2.20.1'),
  ]


def _train():
  arguments = shlex.split(FLAGS.train or '')
  if not any(argument.startswith('--workdir=gs://') for argument in arguments):
    raise entry.CommandError(
        'The disk of a TPU VM is deleted with it: add --workdir=gs://BUCKET/DIRECTORY '
        'to the flags in --train.')
  # The hosts of a slice run TensorFlow's server, and the first of them leads.
  tpu = FLAGS.name if FLAGS.pod else 'local'
  environment = 'TPU_LOAD_LIBRARY=0 ' if FLAGS.pod else ''
  train = shlex.join(['--strategy=tpu', f'--tpu={tpu}', *arguments])
  return [_on_hosts(
      f'cd {_DIRECTORY} && {environment}.venv/bin/python -m {_PACKAGE.name}.train '
      f'{train}', hosts='0')]


_COMMANDS = {
    'delete': _delete, 'create': _create, 'install': _install, 'train': _train}


def _on_hosts(command, hosts='all'):
  return _tpu_vm('ssh', FLAGS.name, f'--worker={hosts}', f'--command={command}')


def _tpu_vm(*arguments):
  return ['gcloud', 'compute', 'tpus', 'tpu-vm', *arguments, f'--zone={FLAGS.zone}']


def command() -> None:
  entry.run(main)


if __name__ == '__main__':
  command()
