"""Trains on a Cloud TPU: creates a TPU VM, installs this repository there, runs it.

  python -m launch.cloud_tpu --name=dble --zone=us-west4-a \\
    --accelerator_type=v5litepod-8 --runtime_version=v2-alpha-tpuv5-lite --dry_run \\
    --train="--flagfile=launch/cifar10.flags --episodes_per_step=8 \\
             --data_dir=gs://BUCKET/data --workdir=gs://BUCKET/cifar10"

Needs the gcloud command, logged in. --dry_run prints the commands and runs none.
"""

import os
import shlex
import shutil
import subprocess

from absl import flags

from dble_tf.errors import UserError
from launch import entry

FLAGS = flags.FLAGS

_SOURCES = ('dble_tf', 'launch', 'requirements-tpu.txt')
_DIRECTORY = 'dble_tf_run'  # In the home directory of the TPU VM.
ACTIONS = ('delete', 'create', 'install', 'train')

flags.DEFINE_string('name', None, 'Of the TPU.')
flags.DEFINE_string('zone', None, 'Where it is.')
flags.DEFINE_string('accelerator_type', None, 'Its kind and size, such as v5litepod-8.')
flags.DEFINE_string('runtime_version', None, 'Software of the VM: v2-alpha-tpuv5-lite '
                    'for v5e, v2-alpha-tpuv5 for v5p, v2-alpha-tpuv6e for v6e, '
                    'tpu-ubuntu2204-base for v4 and older.')
flags.DEFINE_bool('spot', False, 'A cheaper TPU that may be taken away at any time.')
flags.DEFINE_bool('pod', False, 'The TPU has several hosts: a pod slice.')
flags.DEFINE_list('actions', ['create', 'install', 'train'], 'What to do, of '
                  f'{", ".join(ACTIONS)}, in this order.')
flags.DEFINE_string('train', None, 'Flags of launch.train.')
flags.DEFINE_bool('dry_run', False, 'Print the commands and run none.')
flags.mark_flags_as_required(['name', 'zone'])
flags.register_validator(
    'actions', lambda actions: actions and set(actions) <= set(ACTIONS),
    f'choose from {", ".join(ACTIONS)}')


def main() -> None:
  # All are made before any is run: a mistake must not leave a TPU that costs money.
  commands = [command for action in ACTIONS if action in FLAGS.actions
              for command in _COMMANDS[action]()]
  if not FLAGS.dry_run and not shutil.which('gcloud'):
    raise UserError(
        'There is no gcloud command here: install the Google Cloud CLI, or see with '
        '--dry_run what would be run.')
  for command in commands:
    print(shlex.join(command), flush=True)
    if not FLAGS.dry_run and subprocess.run(command).returncode:
      raise UserError(
          'This command failed, and what follows was not run. A TPU that exists costs '
          'money: --actions=delete removes it.')


def _create():
  if not (FLAGS.accelerator_type and FLAGS.runtime_version):
    raise UserError('Creating a TPU needs --accelerator_type and --runtime_version.')
  return [_tpu_vm('create', FLAGS.name, f'--accelerator-type={FLAGS.accelerator_type}',
                  f'--version={FLAGS.runtime_version}',
                  *(['--spot'] if FLAGS.spot else []))]


def _delete():
  return [_tpu_vm('delete', FLAGS.name, '--quiet')]


def _install():
  missing = [source for source in _SOURCES if not os.path.exists(source)]
  if missing:
    raise UserError(f'There is no {missing[0]} here: run this in the repository.')
  return [
      _on_hosts(f'mkdir -p {_DIRECTORY}'),
      _tpu_vm('scp', '--recurse', *_SOURCES, f'{FLAGS.name}:{_DIRECTORY}',
              '--worker=all'),
      _on_hosts(
          'sudo apt-get -qq update && '
          'sudo apt-get -qq install -y python3.11 python3.11-venv && '
          f'cd {_DIRECTORY} && python3.11 -m venv .venv && '
          '.venv/bin/pip install -q -r requirements-tpu.txt && '
          '.venv/bin/pip install -q --no-deps tf_keras==2.20.1'),
  ]


def _train():
  arguments = shlex.split(FLAGS.train or '')
  if not any(argument.startswith('--workdir=gs://') for argument in arguments):
    raise UserError(
        "What a TPU VM has on its own disk goes when it goes: give --train its flags, "
        'with --workdir=gs://BUCKET/DIRECTORY among them.')
  # A slice's hosts run TensorFlow's server, and the first of them leads.
  tpu = FLAGS.name if FLAGS.pod else 'local'
  environment = 'TPU_LOAD_LIBRARY=0 ' if FLAGS.pod else ''
  train = shlex.join(['--strategy=tpu', f'--tpu={tpu}', *arguments])
  return [_on_hosts(
      f'cd {_DIRECTORY} && {environment}.venv/bin/python -m launch.train {train}',
      hosts='0')]


_COMMANDS = {
    'delete': _delete, 'create': _create, 'install': _install, 'train': _train}


def _on_hosts(command, hosts='all'):
  return _tpu_vm('ssh', FLAGS.name, f'--worker={hosts}', f'--command={command}')


def _tpu_vm(*arguments):
  return ['gcloud', 'compute', 'tpus', 'tpu-vm', *arguments, f'--zone={FLAGS.zone}']


if __name__ == '__main__':
  entry.run(main)
