"""Runs that are killed at any moment end as if nothing had happened."""

import io
import json
import random
import signal
import subprocess
import time
import zipfile

import h5py
import numpy as np
import pytest
from tensorboard.backend.event_processing import plugin_event_accumulator

from launch.cli import preemption
from launch.runs import methods

RESUMING = ('Resuming after', 'Training finished; resuming')


def start(command, workdir, *arguments):
  return subprocess.Popen(
      stdout=subprocess.PIPE, stderr=subprocess.STDOUT, **command(
          'train', '--flagfile=launch/digits.flags', '--epochs=2',
          '--steps_per_epoch=15', '--deterministic', f'--workdir={workdir}',
          *arguments))


def stop(process, randomness, signal_number, waits_for, seconds):
  """Ends a process some time after it says something, and gives all that it said."""
  said = ''
  for line in process.stdout:
    said += line
    if any(words in line for words in waits_for):
      break
  try:
    process.wait(randomness.uniform(0, seconds))
  except subprocess.TimeoutExpired:
    process.send_signal(signal_number)
  return said + process.communicate(timeout=300)[0]


def finish(process):
  """Waits for the good end of a run, and gives all that it said."""
  said, _ = process.communicate()
  assert process.returncode == 0, said
  return said


def weights(workdir):
  """All of model.keras: both optimizers and centers too."""
  found = {}
  with zipfile.ZipFile(workdir / 'model.keras') as archive:
    content = io.BytesIO(archive.read('model.weights.h5'))
  with h5py.File(content) as file:
    file.visititems(lambda name, item: found.update({name: item[()]})
                    if isinstance(item, h5py.Dataset) else None)
  return found


def curves(workdir):
  """Split -> tag -> steps and values, as TensorBoard shows them."""
  read = {}
  for directory in sorted((workdir / 'tensorboard').iterdir()):
    events = plugin_event_accumulator.EventAccumulator(
        str(directory), tensor_size_guidance=dict.fromkeys(
            ('scalars', 'images', 'histograms'), 0))
    events.Reload()
    read[directory.name] = {
        tag: [(event.step, event.tensor_proto.SerializeToString())
              for event in events.Tensors(tag)]
        for tag in events.Tags()['tensors']}
  return read


def figures(workdir):
  metrics = json.loads((workdir / 'metrics.json').read_text())
  del metrics['seconds']
  return metrics


def assert_the_same_run(workdir, expected):
  assert figures(workdir) == figures(expected)
  assert curves(workdir) == curves(expected)
  mine, others = weights(workdir), weights(expected)
  assert mine.keys() == others.keys() and len(mine) > 4
  for name, value in others.items():
    np.testing.assert_array_equal(mine[name], value, err_msg=name)
  left = [path for path in workdir.rglob('*')
          if 'incomplete' in path.name or path.name == 'checkpoints']
  assert not left


@pytest.mark.slow
def test_a_run_that_is_killed_continues_to_the_same_bits(finished, command, tmp_path):
  randomness = random.Random()
  every = '--checkpoint_every=2steps'
  # In training, then where it continues, be it training, validation or the end.
  stop(start(command, tmp_path, every), randomness, signal.SIGKILL, ['Epoch 1/2'], 1)
  assert not (tmp_path / 'metrics.json').exists()
  said = stop(start(command, tmp_path, every), randomness, signal.SIGTERM,
              [*RESUMING, 'Epoch 1/2'], 1)
  print(said)  # For whoever reads of a failure.
  said = finish(start(command, tmp_path, every))
  assert any(words in said for words in RESUMING), said
  assert_the_same_run(tmp_path, finished[0])


def test_sigterm_saves_first_and_has_an_exit_code_of_its_own(command, tmp_path):
  arguments = ['--epochs=500', '--checkpoint_every=1000min', '--steps_per_epoch=1000']
  process = start(command, tmp_path, *arguments)
  said = stop(process, random.Random(), signal.SIGTERM, ['Epoch 1/500'], 3)
  assert process.returncode == preemption.EXIT_CODE == 75, said
  assert 'the same command continues' in said and 'Traceback' not in said
  saved, = (tmp_path / 'checkpoints').iterdir()
  with np.load(saved) as file:
    position = json.loads(str(file['facts']))
    # That many batches it has seen, and so many updates are in its weights; none if
    # the signal came before the first.
    assert position['epoch'] == 0 and 0 <= position['step'] < 1000
    assert int(file['optimizer/0']) == position['step']


@pytest.mark.slow
def test_twenty_kills_in_a_row(command, tmp_path):
  seed = time.time_ns()
  randomness = random.Random(seed)
  arguments = ['--epochs=8', '--steps_per_epoch=30', '--checkpoint_every=3steps']
  finish(start(command, tmp_path / 'expected', *arguments))
  # However busy the machine is, kills come in all parts of a run.
  seconds = json.loads((tmp_path / 'expected/metrics.json').read_text())['seconds'] / 2
  kills, runs, log = 0, 0, [f'seed {seed}']
  while kills < 20:
    workdir = tmp_path / f'run{runs}'
    process = start(command, workdir, *arguments)
    if randomness.random() < 0.2:  # While it begins.
      said = stop(
          process, randomness, signal.SIGKILL, ['WARNING', 'Epoch'], 2 * seconds)
    else:
      said = stop(process, randomness, signal.SIGKILL, ['Epoch', *RESUMING], seconds)
    log.append(f'run{runs} {process.returncode} {said.strip().splitlines()[-1:]}')
    if process.returncode == 0:
      runs += 1  # It was quicker; the next kills are for another one.
    else:
      assert process.returncode == -signal.SIGKILL, said
      kills += 1
  finish(start(command, tmp_path / f'run{runs}', *arguments))
  print('\n'.join(log))
  for run in range(runs + 1):
    assert_the_same_run(tmp_path / f'run{run}', tmp_path / 'expected')


@pytest.mark.slow
@pytest.mark.parametrize('method', sorted(set(methods.METHODS) - {'dble'}))
def test_every_method_continues_to_the_same_bits(method, command, tmp_path):
  randomness = random.Random(method)
  arguments = [f'--method={method}', '--checkpoint_every=2steps']
  finish(start(command, tmp_path / 'expected', *arguments))
  workdir = tmp_path / 'killed'
  for _ in range(2):
    stop(start(command, workdir, *arguments), randomness, signal.SIGKILL,
         ['Epoch', *RESUMING], 2)
  finish(start(command, workdir, *arguments))
  assert_the_same_run(workdir, tmp_path / 'expected')
