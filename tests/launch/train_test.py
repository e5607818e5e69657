"""The whole way, as a newcomer goes it: train, evaluate, load, serve."""

import json
import re
import resource
import signal
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

from dble_tf.data import load
from launch.runs.workdir import Workdir

# Makes file:// a scheme of epath's, as gs:// is: TensorFlow knows both.
OTHER_SCHEME = """
import sys
from etils.epath import gpath, register

gpath._URI_PREFIXES += ('file://',)
gpath._URI_SCHEMES |= {'file'}
gpath._URI_MAP_ROOT['file://'] = '/file/'
gpath._PREFIX_TO_BACKEND['file'] = None

@register.register_path_cls('file://')
class FilePath(gpath.PosixGPath):
  @property
  def _path_str(self):
    return '/'.join(['file://', *self.parts[2:]])

from tests import in_process

workdir = sys.argv[1]
for done in (
    in_process.train('--flagfile=digits', '--epochs=1', '--steps_per_epoch=2', workdir),
    in_process.evaluate(workdir)):
  print(done.stdout)
  assert done.returncode == 0, done.stderr
"""


def read(path):
  return json.loads(path.read_text())


def incomplete(workdir):
  return [str(path) for path in workdir.rglob('*') if 'incomplete' in path.name]


def test_a_run_leaves_everything_it_promises_and_says_where(finished):
  workdir, done = finished
  assert done.returncode == 0, done.stderr
  for name in ('config.flags', 'metrics.json', 'predictions.npz', 'model.keras',
               'tensorboard', 'plots/reliability.png', 'export/digits/1'):
    assert (workdir / name).exists(), name
    assert str(workdir / name) in done.stdout, name
  assert not incomplete(workdir) and not (workdir / 'checkpoints').exists()
  for word in ('prototype_loss', 'confidence_loss', 'error_rate', 'val_accuracy',
               'val_ece', 'val_nll', 'accuracy', 'ECE', 'NLL'):
    assert word in done.stdout, word


def test_metrics_agree_with_the_predictions_beside_them(finished):
  workdir, _ = finished
  metrics = read(workdir / 'metrics.json')
  predictions = np.load(workdir / 'predictions.npz')
  digits = load('digits')
  np.testing.assert_array_equal(predictions['test_true_label'], digits.test.class_ids)
  is_correct = predictions['test_label'] == predictions['test_true_label']
  assert metrics['test']['accuracy'] == pytest.approx(is_correct.mean())
  assert metrics['test']['accuracy'] > 0.8  # 30 steps are enough for that.
  rows = np.arange(len(is_correct))
  likelihoods = predictions['test_probabilities'][rows, predictions['test_true_label']]
  assert metrics['test']['nll'] == pytest.approx(-np.log(likelihoods).mean(), rel=1e-4)
  np.testing.assert_allclose(
      predictions['test_confidence'],
      predictions['test_probabilities'][rows, predictions['test_label']])
  np.testing.assert_allclose(
      predictions['test_distance_to_true'][is_correct],
      predictions['test_distance_to_predicted'][is_correct], rtol=1e-6)
  assert metrics['sigma']['mean'] == pytest.approx(
      predictions['test_sigma_mean'].mean())
  assert set(metrics['validation']) == {
      'accuracy', 'ece', 'nll', 'brier', 'failure_auroc', 'aurc'}
  assert metrics['seed'] == 0
  assert metrics['seconds'] > 0
  assert metrics['images'] == 30 * 2 * 10 * 15
  assert metrics['replicas'] == 1
  assert metrics['versions']['tensorflow'] == tf.__version__


def test_the_manifest_has_the_figures_of_the_report(finished):
  workdir, _ = finished
  metrics = read(workdir / 'metrics.json')
  manifest = read(workdir / 'export/digits/1/manifest.json')
  for split in ('test', 'validation'):
    assert manifest['metrics'][split] == metrics[split]
  data = load('digits', validation_size=300, threshold_size=100)
  assert manifest['data_fingerprint'] == data.fingerprint


def test_the_saved_model_and_the_export_give_the_predictions_again(finished):
  workdir, _ = finished
  predictions = np.load(workdir / 'predictions.npz')
  images = load('digits').test.images
  model = keras.models.load_model(workdir / 'model.keras')
  served = tf.saved_model.load(str(workdir / 'export' / 'digits' / '1')).signatures[
      'serving_default'](images=tf.constant(images))
  for outputs in (model.predict(images, verbose=0), served):
    np.testing.assert_array_equal(outputs['label'], predictions['test_label'])
    np.testing.assert_allclose(
        outputs['confidence'], predictions['test_confidence'], rtol=1e-4)


def test_validation_is_of_the_model_that_is_exported(finished):
  workdir, done = finished
  figures = read(workdir / 'metrics.json')['validation']
  last_epoch = done.stdout[done.stdout.rindex('val_accuracy'):]
  shown = dict(re.findall(r'val_(\w+): ([0-9.e-]+)', last_epoch))
  assert set(shown) == {'accuracy', 'ece', 'nll', 'loss'}
  assert shown['loss'] == shown['nll']
  for name in ('accuracy', 'ece', 'nll'):
    assert float(shown[name]) == pytest.approx(figures[name], rel=1e-2), name


def test_centers_come_from_the_training_split(finished):
  model = keras.models.load_model(finished[0] / 'model.keras')
  train = load('digits', validation_size=300).train
  h = model.encoder.predict(train.images, verbose=0)
  np.testing.assert_allclose(
      model.centers, [h[train.class_ids == c].mean(axis=0) for c in range(10)],
      rtol=1e-3, atol=1e-4)


def test_alpha_and_t_are_fitted_on_the_validation_split(finished):
  workdir, done = finished
  metrics = read(workdir / 'metrics.json')
  calibration = metrics['calibration']
  # A third of the 300 held-out images choose a threshold.
  assert (calibration['scaling'], calibration['images']) == ('fitted', 200)
  assert metrics['validation']['nll'] < (
      metrics['parts']['without_held_out']['validation']['nll'] + 1e-4)
  for part in metrics['parts'].values():
    assert part['test']['accuracy'] == metrics['test']['accuracy']
  assert (f'\nsigma times {calibration["sigma_scale"]:.3g}, distances over '
          f'{calibration["temperature"]:.3g}: gain {calibration["gain"]:.4f} '
          f'± {calibration["gain_error"]:.4f} of NLL') in done.stdout
  model = keras.models.load_model(workdir / 'model.keras')
  assert float(model.sigma_scale) == pytest.approx(calibration['sigma_scale'])
  assert float(model.temperature) == pytest.approx(calibration['temperature'])
  # 64 * 512 + 512, 512 * 512 + 512: the encoder, and g_phi from h to sigma.
  assert metrics['parameters'] == 33280 + 262656 + 2 * 262656


@pytest.fixture(scope='module')
def plain(train_digits, tmp_path_factory):
  """The directory of a finished vanilla run."""
  workdir = tmp_path_factory.mktemp('plain')
  done = train_digits(workdir, '--method=vanilla', '--target_coverage=0.5')
  assert done.returncode == 0, done.stderr
  return workdir


def test_plain_training_goes_the_same_way(plain):
  metrics = read(plain / 'metrics.json')
  assert metrics['method'] == 'vanilla' and metrics['test']['accuracy'] > 0.8
  predictions = np.load(plain / 'predictions.npz')
  assert set(predictions) == {
      f'{split}_{name}' for split in ('test', 'validation')
      for name in ('label', 'confidence', 'probabilities', 'true_label')}
  exported = tf.saved_model.load(str(plain / 'export' / 'digits' / '1'))
  served = exported.serving_default(load('digits').test.images)
  np.testing.assert_allclose(
      served['confidence'], predictions['test_confidence'], rtol=1e-4)
  manifest = read(plain / 'export/digits/1/manifest.json')
  assert manifest['abstention']['threshold']['coverage'] == pytest.approx(0.5)
  assert manifest['abstention']['test']['coverage'] == served['accept'].numpy().mean()


def test_a_new_process_loads_models_with_the_package_alone(finished, plain):
  subprocess.run(
      [sys.executable, '-c', 'import keras, dble_tf, sys\n'
       'for path in sys.argv[1:]: keras.models.load_model(path).require_calibrated()',
       finished[0] / 'model.keras', plain / 'model.keras'], check=True)


@pytest.mark.parametrize('method, message', [
    ('dble', 'dble has to be trained'),
    ('temperature_scaling', 'does not hold a finished run of --method=vanilla')])
def test_a_run_that_cannot_stand_in_for_training_is_refused(
    method, message, finished, train_digits, tmp_path):
  done = train_digits(
      tmp_path / 'run', f'--method={method}', f'--trained_runs={finished[0]}')
  assert done.returncode == 1
  assert message in done.stderr
  assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize('method', ['trust_score', 'temperature_scaling'])
def test_a_method_that_needs_held_out_images_says_so_before_any_work(
    method, train_digits, tmp_path):
  done = train_digits(
      tmp_path / 'run', f'--method={method}', '--validation_size=0',
      '--threshold_size=0')
  assert done.returncode == 1
  assert '--validation_size' in done.stderr
  assert not (tmp_path / 'run').exists()


@pytest.mark.parametrize('scaling, sentence', [
    ('none', 'sigma as learned, not scaled'),
    ('fitted', 'there are no held-out images to fit it on')])
def test_without_validation_a_run_is_finished_all_the_same(
    scaling, sentence, train_digits, tmp_path):
  done = train_digits(
      tmp_path, '--validation_size=0', '--threshold_size=0', f'--scaling={scaling}',
      '--epochs=1')
  assert done.returncode == 0, done.stderr
  metrics = read(tmp_path / 'metrics.json')
  assert 'validation' not in metrics and 'constant' not in metrics['parts']
  assert sentence in done.stdout


def test_curves_are_written_for_tensorboard(finished):
  workdir, _ = finished
  tags = set()
  for path in (workdir / 'tensorboard').rglob('events*'):
    for event in tf.compat.v1.train.summary_iterator(str(path)):
      tags.update(value.tag for value in event.summary.value)
  assert tags == {
      'epoch_loss', 'epoch_prototype_loss', 'epoch_confidence_loss', 'epoch_error_rate',
      'epoch_learning_rate', 'epoch_confidence_learning_rate',
      'epoch_accuracy', 'epoch_nll', 'epoch_ece', 'sigma', 'reliability'}


def test_the_same_command_again_shows_the_results_without_training(
    finished, train_digits):
  workdir, _ = finished
  before = (workdir / 'metrics.json').stat().st_mtime_ns
  done = train_digits(workdir)
  assert done.returncode == 0, done.stderr
  assert 'This run is finished' in done.stdout and 'Epoch' not in done.stdout
  assert str(workdir / 'metrics.json') in done.stdout
  assert (workdir / 'metrics.json').stat().st_mtime_ns == before


def test_a_finished_run_of_other_settings_is_not_overwritten(finished, train_digits):
  workdir, _ = finished
  before = (workdir / 'metrics.json').read_text()
  done = train_digits(workdir, '--seed=1')
  assert done.returncode == 1
  assert 'other settings' in done.stderr and '--overwrite' in done.stderr
  assert (workdir / 'metrics.json').read_text() == before


def test_overwriting_replaces_the_run(finished, train_digits, tmp_path):
  workdir, _ = finished
  again = train_digits(tmp_path, f'--flagfile={workdir}/config.flags')
  assert again.returncode == 0, again.stderr
  # config.flags runs the same again: same seed, same figures.
  assert read(tmp_path / 'metrics.json')['test'] == pytest.approx(
      read(workdir / 'metrics.json')['test'], rel=1e-3)
  done = train_digits(tmp_path, '--seed=1', '--overwrite', '--method=vanilla')
  assert done.returncode == 0, done.stderr
  assert read(tmp_path / 'metrics.json')['seed'] == 1
  # Servers see a new version.
  assert sorted(path.name for path in (tmp_path / 'export/digits').iterdir()) == [
      '1', '2']


@pytest.mark.parametrize('arguments, message', [
    (['--num_shots=200'], 'takes 210 of each of its classes'),
    (['--num_ways=11'], '11-way episodes need 11 classes'),
    (['--encoder=vgg11'], 'vgg11 needs images of at least 32x32'),
    (['--validation_size=3'], 'Cannot hold out 3 of 1200'),
    (['--threshold_size=295'], 'Cannot hold out 295 of 300 validation images'),
    (['--train_size=901'], 'Cannot train on 901 of the 900'),
    (['--target_risk=0.1', '--validation_size=0', '--threshold_size=0',
      '--scaling=none'], 'hold some out'),
    (['--target_risk=0.1', '--threshold_size=0'], 'train with --threshold_size'),
])
def test_a_bad_setting_is_named_before_any_work(
    arguments, message, train_digits, tmp_path):
  done = train_digits(tmp_path / 'run', *arguments)
  assert done.returncode == 1
  assert message in done.stderr
  assert not (tmp_path / 'run').exists()


def test_a_directory_of_something_else_is_left_alone(train_digits, tmp_path):
  (tmp_path / 'plots').mkdir()
  done = train_digits(tmp_path)
  assert done.returncode == 1
  assert 'does not hold a run' in done.stderr
  assert [path.name for path in tmp_path.iterdir()] == ['plots']


def test_a_diverging_run_stops_and_says_so(train_digits, tmp_path):
  done = train_digits(tmp_path / 'run', '--learning_rate=1e30', '--weight_decay=1e30')
  assert done.returncode == 1
  assert 'Training diverged in step' in done.stderr
  assert '--learning_rate' in done.stderr
  assert not (tmp_path / 'run' / 'metrics.json').exists()


@pytest.mark.slow
def test_ctrl_c_leaves_nothing_half_written_and_the_run_can_be_repeated(
    command, train_digits, tmp_path):
  workdir = tmp_path / 'run'
  # A shell starts background jobs deaf to Ctrl-C, and their children inherit it.
  inherited = signal.signal(signal.SIGINT, signal.default_int_handler)
  try:
    process = subprocess.Popen(
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        **command('train', '--flagfile=launch/digits.flags', '--epochs=500',
                  '--steps_per_epoch=5', f'--workdir={workdir}'))
  finally:
    signal.signal(signal.SIGINT, inherited)
  for line in process.stdout:
    if 'val_nll' in line:
      break
  process.send_signal(signal.SIGINT)
  _, errors = process.communicate(timeout=120)
  assert process.returncode == 130
  assert 'interrupted' in errors and 'Traceback' not in errors
  assert not incomplete(workdir)
  assert not (workdir / 'metrics.json').exists()
  assert not (workdir / 'model.keras').exists()
  # Of other settings now: it is kept until it may be replaced.
  refused = train_digits(workdir)
  assert refused.returncode == 1
  assert 'an unfinished run of other settings' in refused.stderr
  assert list((workdir / 'checkpoints').iterdir())
  replaced = train_digits(workdir, '--overwrite', '--epochs=1')
  assert replaced.returncode == 0, replaced.stderr
  assert '15/15' in replaced.stdout and 'Resuming' not in replaced.stdout


def test_a_full_disk_is_told_and_leaves_no_half_checkpoint(train_digits, tmp_path):
  # What the operating system then says, here of files beyond a megabyte.
  limit = resource.getrlimit(resource.RLIMIT_FSIZE)
  resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, limit[1]))
  try:
    done = train_digits(tmp_path / 'run')
  finally:
    resource.setrlimit(resource.RLIMIT_FSIZE, limit)
  assert done.returncode == 1
  assert 'The checkpoint after step 15 cannot be written' in done.stderr
  assert not incomplete(tmp_path)


def test_a_second_run_in_the_directory_is_refused(train_digits, tmp_path):
  with Workdir(tmp_path).lock():
    done = train_digits(tmp_path)
  assert done.returncode == 1
  assert 'Another process is at work' in done.stderr
  assert not list(tmp_path.iterdir())


def test_results_can_go_to_another_file_system(command, tmp_path):
  workdir = f'file://{tmp_path}/run'
  done = subprocess.run(capture_output=True, **{
      **command('train'), 'args': [
          sys.executable, '-c', OTHER_SCHEME, f'--workdir={workdir}']})
  assert done.returncode == 0, done.stderr
  trained, evaluated = done.stdout.split('digits, dble, seed 0')[1:]
  for said in (trained, evaluated):
    assert f'{workdir}/metrics.json' in said
  assert 'cannot be locked' in done.stdout
  # The same figures from the saved model.
  table = lambda said: re.findall(r'^(?:test|validation).*', said, re.MULTILINE)
  assert table(trained) == table(evaluated) and len(table(trained)) == 6
  assert (tmp_path / 'run' / 'metrics.json').exists()
  assert not incomplete(tmp_path)
