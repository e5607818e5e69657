"""Runs within this process on a few small images in a directory."""

import json
import os
import signal

import numpy as np
import pytest
import tensorflow as tf

from dble_tf import data as datasets
from dble_tf.classifier import Classifier
from launch.runs import build
from launch.runs import fitting
from launch.runs import publish
from launch.runs.time_left import TimeLeft
from launch.runs.workdir import Workdir
from launch.settings import experiment
from tests import in_process

NUM_TRAIN, NUM_VALIDATION, NUM_TEST = 60, 12, 30


def write_images(directory, seed=0):
  """Images of three classes, of which two are brighter in a corner of their own."""
  rng = np.random.default_rng(seed)
  arrays = {}
  for split, size in (('train', NUM_TRAIN + NUM_VALIDATION), ('test', NUM_TEST)):
    class_ids = np.arange(size) % 3
    images = rng.integers(200, size=[size, 4, 4, 1], dtype=np.uint8)
    images[class_ids == 1, :2, :2] += 55
    images[class_ids == 2, 2:, 2:] += 55
    arrays.update({f'{split}_images': images, f'{split}_class_ids': class_ids})
  directory.mkdir(exist_ok=True)
  np.savez(directory / 'images.npz', **arrays)


def load_images(values):
  """A data set that lies in --data_dir."""
  with np.load(f'{values.data_dir}/images.npz') as arrays:
    return datasets.from_arrays(
        *((arrays[f'{split}_images'], arrays[f'{split}_class_ids'])
          for split in ('train', 'test')),
        validation_size=values.validation_size, seed=values.split_seed,
        threshold_size=values.threshold_size, train_size=values.train_size)


@pytest.fixture
def images(tmp_path, monkeypatch):
  """The directory of the images."""
  write_images(tmp_path / 'images')
  monkeypatch.setattr(build, 'load_dataset', load_images)
  return tmp_path / 'images'


@pytest.fixture
def train(tmp_path):
  """(directory of the images, *arguments) -> a training of two epochs.

  Of the method that takes the least time, where it does not matter.
  """
  def train(images, *arguments):
    return in_process.train(
        '--dataset=mnist', f'--validation_size={NUM_VALIDATION}', '--method=vanilla',
        '--num_shots=2', '--num_queries=3', '--representation_size=8', '--epochs=2',
        '--steps_per_epoch=4', '--batch_size=25', f'--workdir={tmp_path / "run"}',
        f'--data_dir={images}', *arguments)
  return train


@pytest.fixture
def workdir(tmp_path):
  return Workdir(tmp_path / 'run')


@pytest.fixture
def unfinished(images, train, workdir, monkeypatch):
  """A run that was preempted before its second epoch, on these images."""
  def on_epoch_begin(self, epoch, logs=None):
    if epoch == 1:
      os.kill(os.getpid(), signal.SIGTERM)

  with monkeypatch.context() as patched:
    patched.setattr(TimeLeft, 'on_epoch_begin', on_epoch_begin)
    done = train(images)
  assert done.returncode == 75, done.stderr
  assert not workdir.is_finished
  return images


def test_a_run_whose_data_moved_is_continued(unfinished, train, workdir, tmp_path):
  moved = unfinished.rename(tmp_path / 'moved')
  done = train(moved)
  assert done.returncode == 0, done.stderr
  assert 'Resuming after step 4: epoch 2 of 2' in done.stdout
  assert 'Epoch 1/2' not in done.stdout
  # Commands that follow find the data where they are now, or where they are told.
  assert workdir.read_data()['data_dir'] == str(moved)
  done = in_process.evaluate(f'--workdir={workdir.path}')
  assert done.returncode == 0, done.stderr
  again = moved.rename(tmp_path / 'moved again')
  done = in_process.export(f'--workdir={workdir.path}', f'--data_dir={again}')
  assert done.returncode == 0, done.stderr


def test_a_run_is_not_continued_on_other_data_under_the_same_path(
    unfinished, train, workdir):
  write_images(unfinished, seed=1)
  done = train(unfinished)
  assert done.returncode == 1
  assert 'data differ' in done.stderr and '--overwrite' in done.stderr
  assert [path.name for path in workdir.checkpoints.iterdir()] == ['step-000000004.npz']
  done = train(unfinished, '--overwrite')
  assert done.returncode == 0, done.stderr
  assert 'Epoch 1/2' in done.stdout and 'Resuming' not in done.stdout


def test_a_run_killed_behind_its_last_step_ends_with_the_averages_too(
    images, train, workdir, tmp_path, monkeypatch):
  whole = Workdir(tmp_path / 'whole')
  assert train(images, '--ema=0.5', f'--workdir={whole.path}').returncode == 0
  with monkeypatch.context() as patched:
    patched.setattr(Classifier, 'take_averages',
                    lambda *_: os.kill(os.getpid(), signal.SIGTERM))
    assert train(images, '--ema=0.5').returncode == 75
  done = train(images, '--ema=0.5')
  assert done.returncode == 0, done.stderr
  assert 'Training finished' in done.stdout
  for mine, theirs in zip(workdir.load_model().get_weights(),
                          whole.load_model().get_weights(), strict=True):
    np.testing.assert_allclose(mine, theirs, rtol=1e-6)
  assert workdir.history.read_text().count('\n') == 3  # Names and two epochs.


def test_a_finished_run_is_not_taken_for_one_on_other_data(images, train, workdir):
  assert train(images).returncode == 0
  before = workdir.metrics.read_text()
  write_images(images, seed=1)
  for command in (lambda: train(images),
                  lambda: in_process.evaluate(f'--workdir={workdir.path}'),
                  lambda: in_process.export(f'--workdir={workdir.path}')):
    done = command()
    assert done.returncode == 1
    assert 'data differ' in done.stderr and '--data_dir' in done.stderr
  assert workdir.metrics.read_text() == before


def test_overwriting_continues_what_it_began(unfinished, train):
  done = train(unfinished, '--overwrite')  # The same command again.
  assert done.returncode == 0, done.stderr
  assert 'Resuming after step 4' in done.stdout


@pytest.mark.parametrize('method', ['dble', 'trust_score'])
def test_images_outside_training_are_encoded_once_at_the_end(
    method, images, train, monkeypatch):
  sizes, represented = [], []
  encode, represent, fit = Classifier.encode, Classifier.represent, fitting.train

  def counted(self, images, training=False):
    size = tf.numpy_function(
        lambda size: sizes.append(int(size)) or size, [tf.shape(images)[0]], tf.int32)
    with tf.control_dependencies([size]):
      return encode(self, tf.identity(images), training)

  def recorded(self, dataset, *arguments):
    result = represent(self, dataset, *arguments)
    represented.append(len(result.h))
    return result

  def forgotten(*arguments):
    fit(*arguments)
    assert sizes
    sizes.clear()
    represented.clear()

  monkeypatch.setattr(Classifier, 'encode', counted)
  monkeypatch.setattr(Classifier, 'represent', recorded)
  monkeypatch.setattr(fitting, 'train', forgotten)
  done = train(images, f'--method={method}', '--target_coverage=0.9')
  assert done.returncode == 0, done.stderr
  # Half of the images that were held out choose the threshold.
  assert represented == [NUM_TEST, NUM_VALIDATION // 2, NUM_VALIDATION // 2]
  assert sum(sizes) == NUM_TEST + NUM_VALIDATION


def test_a_run_records_the_images_of_its_threshold_and_chooses_on_them_later(
    images, train, workdir):
  done = train(images, '--target_coverage=0.5')
  assert done.returncode == 0, done.stderr
  assert '--threshold_size=6\n' in workdir.config.read_text()
  assert train(images, '--target_coverage=0.5').returncode == 0  # The same run.
  done = in_process.export(f'--workdir={workdir.path}', '--target_coverage=0.9')
  assert done.returncode == 0, done.stderr
  for version, coverage in ((1, 0.5), (2, 1.0)):  # 0.9 of six images is all of them.
    manifest = json.loads(
        (workdir.export / f'mnist/{version}/manifest.json').read_text())
    judged = manifest['abstention']
    assert judged['threshold'] == {
        'risk': judged['threshold']['risk'], 'coverage': coverage, 'images': 6}
    assert (judged['validation']['images'], judged['test']['images']) == (6, NUM_TEST)
    assert set(manifest['metrics']) == {'test', 'validation'}
  assert 'threshold' not in workdir.read_metrics()


def test_a_run_without_images_for_a_threshold_cannot_be_exported_with_a_target(
    images, train, workdir):
  assert train(images).returncode == 0
  assert '--threshold_size=0\n' in workdir.config.read_text()
  done = in_process.export(f'--workdir={workdir.path}', '--target_risk=0.1')
  assert done.returncode == 1
  assert 'train with --threshold_size, or with the target' in done.stderr
  done = train(images, '--target_risk=0.1')  # It would hold other images out.
  assert done.returncode == 1 and 'other settings' in done.stderr


def test_runs_of_other_seeds_and_training_sizes_hold_the_same_images_out(images):
  def load(*arguments):
    return load_images(experiment.parse([
        f'--data_dir={images}', '--validation_size=12', '--threshold_size=6',
        *arguments]))

  data = load()
  assert load('--seed=1').fingerprint == data.fingerprint
  part = load('--train_size=30')
  assert (len(data.train), len(part.train)) == (NUM_TRAIN, 30)
  np.testing.assert_array_equal(part.validation.images, data.validation.images)
  np.testing.assert_array_equal(part.threshold.images, data.threshold.images)
  assert load('--split_seed=1').fingerprint != data.fingerprint


def assert_refused_and_left_alone(workdir, path, *commands):
  """Runs commands while another process seems to write a file of the run."""
  path.parent.mkdir(parents=True, exist_ok=True)
  path.write_text('half')
  with workdir.lock():
    for command in commands:
      done = command()
      assert done.returncode == 1
      assert 'Another process is at work' in done.stderr
      assert path.exists()


def test_files_that_another_process_is_writing_are_left_alone(images, train, workdir):
  half = workdir.path / '.incomplete-1-config.flags'
  assert_refused_and_left_alone(workdir, half, lambda: train(images))
  assert train(images).returncode == 0
  assert not half.exists()  # That process was killed.
  half = workdir.export / 'mnist' / '.incomplete-2-2'
  assert_refused_and_left_alone(
      workdir, half, lambda: train(images, '--overwrite'),
      lambda: in_process.evaluate(f'--workdir={workdir.path}'),
      lambda: in_process.export(f'--workdir={workdir.path}'))
  assert in_process.export(f'--workdir={workdir.path}').returncode == 0
  assert not half.exists()


def test_a_run_that_was_killed_after_its_end_is_finished(images, train, workdir):
  assert train(images).returncode == 0
  workdir.checkpoints.mkdir()
  done = train(images)
  assert done.returncode == 0, done.stderr
  assert 'This run is finished' in done.stdout and 'Epoch' not in done.stdout
  assert not workdir.checkpoints.exists()


def test_a_run_whose_export_failed_resumes_after_its_training(
    images, train, workdir, monkeypatch):
  def write(*arguments):
    raise OSError(28, 'No space left on device')

  with monkeypatch.context() as patched:
    patched.setattr(publish, 'write', write)
    done = train(images)
  assert done.returncode == 1 and 'free some space' in done.stderr
  done = train(images)
  assert done.returncode == 0, done.stderr
  assert 'Training finished; resuming evaluation and export.' in done.stdout
  assert 'Epoch' not in done.stdout


def test_a_trained_network_is_taken_where_settings_and_data_are_the_same(
    images, train, workdir, tmp_path):
  base = tmp_path / 'vanilla'
  assert train(images, f'--workdir={base}').returncode == 0
  arguments = ['--method=temperature_scaling', f'--trained_runs={base}']
  write_images(images, seed=1)
  done = train(images, *arguments)
  assert done.returncode == 1
  assert 'data differ' in done.stderr and 'leave --trained_runs out' in done.stderr
  assert not workdir.path.exists()
  write_images(images)
  done = train(images, *arguments)
  assert done.returncode == 0, done.stderr
  assert 'Epoch' not in done.stdout
  mine, others = workdir.read_metrics(), Workdir(base).read_metrics()
  assert mine['test']['accuracy'] == others['test']['accuracy']
  assert mine['seconds'] > others['seconds']  # Training is part of its cost.


def test_an_ensemble_answers_with_the_mean_of_the_networks_that_it_takes(
    images, train, workdir, tmp_path):
  runs = [Workdir(tmp_path / f'vanilla-{seed}') for seed in (0, 1)]
  for seed, run in enumerate(runs):
    assert train(images, f'--workdir={run.path}', f'--seed={seed}').returncode == 0
  done = train(images, '--method=deep_ensemble', '--ensemble_size=2', '--seed=7',
               f'--trained_runs={",".join(str(run.path) for run in runs)}')
  assert done.returncode == 0, done.stderr
  assert 'Epoch' not in done.stdout
  pixels = load_images(experiment.of_run(workdir.config, images)).test.images
  each = [run.load_model().predict(pixels, verbose=0) for run in runs]
  ensemble = workdir.load_model().predict(pixels, verbose=0)
  np.testing.assert_allclose(
      ensemble['probabilities'],
      np.mean([answers['probabilities'] for answers in each], axis=0), rtol=1e-5)
  assert workdir.read_metrics()['seconds'] > sum(
      run.read_metrics()['seconds'] for run in runs)
