import pathlib
import shlex

import pytest
from absl import flags
from absl.testing import flagsaver

from launch import cloud_tpu
from launch.cli import entry

ROOT = pathlib.Path(cloud_tpu.__file__).parents[1]
WHERE = {'name': 'mine', 'zone': 'us-west4-a'}
TRAIN = '--flagfile=launch/cifar10.flags --workdir=gs://b/run'


@pytest.fixture
def run(capsys, monkeypatch):
  """Flags -> the commands, as lists, that a dry run prints."""
  started = []
  monkeypatch.setattr(cloud_tpu.subprocess, 'run', started.append)

  def build(**values):
    if not flags.FLAGS.is_parsed():
      flags.FLAGS(['test', '--name=', '--zone='])
    with flagsaver.flagsaver(**{'dry_run': True, **WHERE, **values}):
      cloud_tpu.main()
    assert not started
    return [shlex.split(line) for line in capsys.readouterr().out.splitlines()]

  return build


def test_a_dry_run_prints_what_creates_installs_and_trains(run):
  create, *install, train = run(
      accelerator_type='v5litepod-8', runtime_version='v2-alpha-tpuv5-lite', spot=True,
      train=TRAIN)
  prefix = ['gcloud', 'compute', 'tpus', 'tpu-vm']
  assert create == prefix + [
      'create', 'mine', '--accelerator-type=v5litepod-8',
      '--version=v2-alpha-tpuv5-lite', '--spot', '--zone=us-west4-a']
  assert [command[4] for command in install] == ['ssh', 'scp', 'ssh']
  for command in install:  # Every host needs the code.
    assert '--worker=all' in command
  # The library and the commands, wherever they are.
  assert install[1][6:9] == [
      str(ROOT / 'dble_tf'), str(ROOT / 'launch'), 'mine:dble_tf_run']
  assert 'pip install -q -r launch/requirements-tpu.txt' in install[2][-2]
  command = train[-2].removeprefix('--command=')
  assert train[:-2] == prefix + ['ssh', 'mine', '--worker=0']
  assert command.endswith(
      f'.venv/bin/python -m launch.train --strategy=tpu --tpu=local {TRAIN}')


def test_the_first_host_of_a_slice_leads_all(run):
  train, = run(actions=['train'], pod=True, train=TRAIN)
  assert 'TPU_LOAD_LIBRARY=0 .venv/bin/python' in train[-2]
  assert '--tpu=mine' in train[-2] and '--worker=0' in train


def test_after_preemption_the_same_training_begins_on_a_new_tpu(run):
  commands = run(
      actions=['train', 'delete', 'create', 'install'], train=TRAIN,
      accelerator_type='v5litepod-8', runtime_version='v2-alpha-tpuv5-lite')
  assert [command[4] for command in commands] == [
      'delete', 'create', 'ssh', 'scp', 'ssh', 'ssh']
  assert TRAIN in commands[-1][-2]


@pytest.mark.parametrize('values, message', [
    ({'actions': ['create']}, 'needs --accelerator_type and --runtime_version'),
    ({'actions': ['train'], 'train': '--workdir=runs/x'}, 'workdir=gs://'),
    ({'actions': ['delete'], 'dry_run': False}, 'gcloud not found'),
])
def test_what_cannot_work_is_refused_before_anything_is_created(
    run, values, message, monkeypatch):
  monkeypatch.setenv('PATH', '')
  with pytest.raises(entry.CommandError, match=message):
    run(**values)
