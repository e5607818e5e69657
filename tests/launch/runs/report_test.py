import json

import keras
import numpy as np
import pytest
from scipy import special
from sklearn import metrics as sklearn_metrics

from dble_tf import baselines
from dble_tf import calibration
from dble_tf import encoders
from dble_tf import evaluation
from dble_tf.data import from_arrays
from dble_tf.model import DBLE
from dble_tf.serving import export
from launch.runs import report
from launch.runs.workdir import Workdir
from launch.settings import experiment

FACTS = {'experiment': 'tiny', 'method': 'dble', 'seed': 3, 'steps': 1000,
         'images': 24691, 'seconds': 2.0, 'versions': {}}
# 9 * 512 + 512, 512 * 8 + 8.
THETA = 5120 + 4104
# 8 * 512 + 512, 512 * 8 + 8.
PHI = 4608 + 4104


@pytest.fixture(scope='module')
def data():
  rng = np.random.default_rng(0)
  split = lambda n: (rng.integers(256, size=[n, 3, 3, 1], dtype=np.uint8),
                     np.arange(n) % 3)
  return from_arrays(split(60), split(30), validation_size=12)


@pytest.fixture(scope='module')
def model(data):
  keras.utils.set_random_seed(0)
  model = DBLE(encoders.mlp([3, 3, 1], 8), 3, num_shots=1, scaling='none')
  model.fit_centers(data.train.batches(16))
  return model


def write(workdir, model, data, facts=FACTS, splits=('test', 'validation')):
  """Writes the report and returns metrics.json."""
  representations = {
      name: model.represent(getattr(data, name).batches(16)) for name in splits}
  predictions = {name: evaluation.predict(model, split)
                 for name, split in representations.items()}
  report.write(workdir, model, representations, predictions, facts)
  return json.loads(workdir.metrics.read_text())


def test_figures_of_both_splits_are_written_and_shown(model, data, tmp_path, capsys):
  workdir = Workdir(tmp_path)
  export.export(model, workdir.export)
  results = write(workdir, model, data)
  model.compile('sgd', 'sgd')
  for name in ('test', 'validation'):
    expected = model.evaluate(
        getattr(data, name).batches(16), return_dict=True, verbose=0)
    for figure in ('accuracy', 'ece', 'nll'):
      assert results[name][figure] == pytest.approx(expected[figure], rel=1e-4)
    assert {'brier', 'failure_auroc', 'aurc'} < set(results[name])
  # As it starts, at the scale of a space that no step has measured.
  assert results['sigma']['mean'] == pytest.approx(1.0, rel=0.1)
  report.show(workdir)
  shown = capsys.readouterr().out
  assert 'tiny, dble, seed 3: 1,000 steps in 2 s, 12,346 images/s' in shown
  assert f"{100 * results['test']['accuracy']:.2f} %" in shown
  assert f"{results['validation']['nll']:.4f}" in shown
  assert 'sigma as learned, not scaled' in shown
  assert str(workdir.export / 'model' / '1') in shown


def test_sigma_is_plotted_and_its_parameters_count_unless_it_is_disabled(
    model, data, tmp_path, capsys):
  for alpha in (1.0, 0.0):
    workdir = Workdir(tmp_path / str(alpha))
    model.sigma_scale.assign(alpha)
    results = write(workdir, model, data)
    assert results['parameters'] == THETA + (PHI if alpha else 0)
    report.show(workdir)
    shown = capsys.readouterr().out
    assert (workdir.sigma.exists() == (str(workdir.sigma) in shown) == (alpha > 0))
  model.sigma_scale.assign(1.0)


def test_figures_of_parts_are_those_of_their_probabilities(
    model, data, tmp_path, capsys):
  workdir = Workdir(tmp_path)
  results = write(workdir, model, data)
  assert list(results['parts']) == [
      'prototypical', 'constant', 'as_printed', 'without_held_out']
  arrays = np.load(workdir.predictions)
  for split in ('test', 'validation'):
    labels, class_ids = arrays[f'{split}_label'], arrays[f'{split}_true_label']
    np.testing.assert_array_equal(class_ids, getattr(data, split).class_ids)
    for name, part in results['parts'].items():
      probabilities = arrays[f'{split}_probabilities_{name}'].astype(np.float64)
      figures = part[split]
      assert figures['nll'] == pytest.approx(
          sklearn_metrics.log_loss(class_ids, probabilities), rel=1e-4)
      assert figures['accuracy'] == pytest.approx(
          sklearn_metrics.accuracy_score(class_ids, labels))
      assert figures['failure_auroc'] == pytest.approx(sklearn_metrics.roc_auc_score(
          labels == class_ids, probabilities[np.arange(len(labels)), labels]))
  assert results['parts']['prototypical']['sigma_scale'] is None
  assert (results['parts']['without_held_out']['sigma_scale']
          == calibration.PRIOR.center)
  assert results['parts']['as_printed']['test']['nll'] == pytest.approx(
      results['test']['nll'], rel=1e-4)  # This model's own.
  report.show(workdir)
  lines = {line[:36].strip(): line[36:].split()
           for line in capsys.readouterr().out.splitlines()}
  for split in ('test', 'validation'):
    for title, figures in {
        split: results, f'{split}, without sigma': results['parts']['prototypical'],
        f'{split}, no held-out data': results['parts']['without_held_out']}.items():
      accuracy, _, ece, _, nll = lines[title]
      assert float(accuracy) == pytest.approx(
          100 * figures[split]['accuracy'], abs=0.005)
      assert float(ece) == pytest.approx(100 * figures[split]['ece'], abs=0.005)
      assert float(nll) == pytest.approx(figures[split]['nll'], abs=5e-5)


def test_the_gain_is_over_the_softmax_of_distances_and_a_temperature(
    model, data, tmp_path):
  fitted = write(Workdir(tmp_path), model, data)['calibration']
  answers = model.predict(data.validation.images, verbose=0)
  rows = np.arange(len(data.validation)), data.validation.class_ids
  temperature = calibration.fit_temperature(-answers['distances'], rows[1])
  gains = (np.log(answers['probabilities'])
           - special.log_softmax(-answers['distances'] / temperature, axis=1))[rows]
  assert fitted['gain'] == pytest.approx(gains.mean(), rel=1e-3)
  assert fitted['gain_error'] == pytest.approx(
      gains.std(ddof=1) / np.sqrt(len(gains)), rel=1e-3)


def test_calibration_is_told_in_a_line(model, data, tmp_path, capsys):
  scaled = DBLE(model.encoder, 3, num_shots=1)
  scaled.calibrate(data.train.batches(16), data.validation.batches(16))
  scaled.sigma_scale.assign(0.25)
  scaled.temperature.assign(3.0)
  workdir = Workdir(tmp_path)
  fitted = write(workdir, scaled, data)['calibration']
  assert (fitted['scaling'], fitted['images']) == ('fitted', 12)
  assert (fitted['sigma_scale'], fitted['temperature']) == (0.25, 3.0)
  report.show(workdir)
  assert (f'\nsigma times 0.25, distances over 3: gain {fitted["gain"]:.4f} ± '
          f'{fitted["gain_error"]:.4f} of NLL over a temperature without sigma on '
          'validation images\n') in capsys.readouterr().out


def test_a_model_calibrated_without_held_out_images_is_told_as_such(
    model, data, tmp_path, capsys):
  scaled = DBLE(model.encoder, 3, num_shots=1)
  scaled.calibrate(data.train.batches(16))
  workdir = Workdir(tmp_path)
  results = write(workdir, scaled, data, splits=['test'])
  assert results['calibration'] == {
      'scaling': 'fitted', 'images': 0, 'temperature': 1.0,
      'sigma_scale': pytest.approx(calibration.PRIOR.center)}
  assert 'constant' not in results['parts']
  report.show(workdir)
  assert (f'\nsigma times {calibration.PRIOR.center:.3g}, fixed beforehand: there are '
          'no held-out images to fit it on\n') in capsys.readouterr().out


def test_a_method_without_sigma_is_reported_without_it(data, tmp_path, capsys):
  workdir = Workdir(tmp_path)
  model = baselines.Vanilla(encoders.mlp([3, 3, 1], 8), 3)
  results = write(workdir, model, data, {**FACTS, 'method': 'vanilla'})
  assert not {'sigma', 'calibration', 'parts'} & set(results)
  assert not any('probabilities_' in name for name in np.load(workdir.predictions))
  report.show(workdir)
  shown = capsys.readouterr().out
  assert 'tiny, vanilla, seed 3' in shown and 'without sigma' not in shown


def test_without_a_validation_split_test_stands_alone(model, data, tmp_path):
  results = write(Workdir(tmp_path), model, data, splits=['test'])
  assert 'test' in results and 'validation' not in results
  assert 'gain' not in results['calibration']


def test_facts_name_what_results_depend_on():
  facts = report.facts(experiment.parse(
      ['--dataset=digits', '--epochs=3', '--steps_per_epoch=7', '--seed=4']))
  assert (facts['experiment'], facts['seed'], facts['steps']) == ('digits', 4, 21)
  assert facts['versions']['keras'] == keras.__version__
  assert {'python', 'tensorflow', 'tensorflow-probability'} <= set(facts['versions'])


def test_a_run_of_unknown_duration_and_export_can_be_shown(
    model, data, tmp_path, capsys):
  workdir = Workdir(tmp_path)
  write(workdir, model, data, {
      'experiment': 'tiny', 'method': 'dble', 'seed': 0, 'steps': 5})
  report.show(workdir)
  assert 'tiny, dble, seed 0: 5 steps\n' in capsys.readouterr().out
