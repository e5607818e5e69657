import json

import keras
import numpy as np
import pytest

from dble_tf import baselines
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
  assert results['sigma']['mean'] == pytest.approx(0.05, rel=0.1)
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
    assert (workdir.sigma.exists() == (str(workdir.sigma) in shown)
            == ('sigma disabled' not in shown) == (alpha > 0))
  model.sigma_scale.assign(1.0)


def test_calibration_is_told_in_a_line(model, data, tmp_path, capsys):
  scaled = DBLE(model.encoder, 3, num_shots=1, scaling='sigma_scale_and_temperature')
  scaled.fit_centers(data.train.batches(16))
  validation = scaled.represent(data.validation.batches(16))
  scaled.fit_held_out(validation)
  for alpha, temperature in ((0.0, 1.0), (0.25, 3.0)):
    workdir = Workdir(tmp_path / str(alpha))
    scaled.sigma_scale.assign(alpha)
    scaled.temperature.assign(temperature)
    fitted = write(workdir, scaled, data)['calibration']
    assert fitted['scaling'] == 'sigma_scale_and_temperature'
    assert (fitted['sigma_scale'], fitted['temperature']) == (alpha, temperature)
    # Of what was searched for, in use or not.
    gain = (f'gain {fitted["gain"]:.4f} ± {fitted["gain_error"]:.4f} of NLL on '
            'validation data')
    report.show(workdir)
    assert (f'\nsigma times 0.25, distances over 3: {gain}\n' if alpha else
            f'\nsigma disabled: no significant {gain}\n') in capsys.readouterr().out


def test_a_method_without_sigma_is_reported_without_it(data, tmp_path, capsys):
  workdir = Workdir(tmp_path)
  model = baselines.Vanilla(encoders.mlp([3, 3, 1], 8), 3)
  results = write(workdir, model, data, {**FACTS, 'method': 'vanilla'})
  assert not {'test_without_sigma', 'sigma', 'calibration', 'parts'} & set(results)
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
