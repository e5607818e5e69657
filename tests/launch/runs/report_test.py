import json

import keras
import numpy as np
import pytest
from absl import flags

from dble_tf import baselines
from dble_tf import confidence_models
from dble_tf import data as datasets
from dble_tf import encoders
from dble_tf.serving import export
from dble_tf.model import DBLE
from launch import experiment
from launch import report
from launch import workdir as workdirs

FACTS = {'experiment': 'tiny', 'method': 'dble', 'seed': 3, 'steps': 1000,
         'confidence_candidates': ['default'],
         'images': 24691, 'seconds': 2.0, 'versions': {}}


@pytest.fixture(scope='module')
def trained():
  keras.utils.set_random_seed(0)
  rng = np.random.default_rng(0)
  split = lambda n: (rng.integers(256, size=[n, 3, 3, 1], dtype=np.uint8),
                     np.arange(n) % 3)
  data = datasets.from_arrays(split(60), split(30), validation_size=12)
  model = DBLE(
      encoders.mlp([3, 3, 1], 8), confidence_models.confidence_mlp(8), 3, num_shots=1,
      scaling='none')
  model.fit_centers(data.train.batches(16))
  return model, data


def test_figures_of_both_splits_are_written_and_shown(trained, tmp_path, capsys):
  model, data = trained
  workdir = workdirs.Workdir(tmp_path)
  export.export(model, workdir.export)
  report.write(workdir, model, data, 16, FACTS)
  results = json.loads(workdir.metrics.read_text())
  model.compile('sgd', 'sgd')
  for name in ('test', 'validation'):
    expected = model.evaluate(
        getattr(data, name).batches(16), return_dict=True, verbose=0)
    for figure, value in expected.items():
      assert results[name][figure] == pytest.approx(value, rel=1e-4)
    assert {'brier', 'failure_auroc', 'aurc'} < set(results[name])
  # 9 * 512 + 512, 512 * 8 + 8; phi 8 * 512 + 512, 512 * 8 + 8.
  assert results['parameters'] == 5120 + 4104 + 4608 + 4104
  assert results['sigma']['mean'] == pytest.approx(0.05, rel=0.1)
  report.show(workdir)
  shown = capsys.readouterr().out
  assert 'tiny, dble, seed 3: 1,000 steps in 2 s, 12,346 images/s' in shown
  assert f"{100 * results['test']['accuracy']:.2f} %" in shown
  assert f"{results['validation']['nll']:.4f}" in shown
  assert 'confidence model "default", sigma times 1, distances over 1' in shown
  assert str(workdir.export / 'model' / '1') in shown


def test_sigma_is_plotted_where_there_is_one(trained, tmp_path, capsys):
  model, data = trained
  for alpha in (1.0, 0.0):
    workdir = workdirs.Workdir(tmp_path / str(alpha))
    model.sigma_scale.assign([alpha])
    report.write(workdir, model, data, 16, FACTS)
    report.show(workdir)
    shown = capsys.readouterr().out
    assert (workdir.sigma.exists() == (str(workdir.sigma) in shown)
            == ('no sigma' not in shown) == (alpha > 0))
  model.sigma_scale.assign([1.0])


def test_a_method_without_sigma_is_reported_without_it(trained, tmp_path, capsys):
  _, data = trained
  workdir = workdirs.Workdir(tmp_path)
  model = baselines.Vanilla(encoders.mlp([3, 3, 1], 8), 3)
  report.write(workdir, model, data, 16, {**FACTS, 'method': 'vanilla'})
  results = json.loads(workdir.metrics.read_text())
  assert 'test_without_sigma' not in results and 'sigma' not in results
  report.show(workdir)
  shown = capsys.readouterr().out
  assert 'tiny, vanilla, seed 3' in shown and 'without sigma' not in shown


def test_without_a_validation_split_test_stands_alone(trained, tmp_path):
  model, data = trained
  workdir = workdirs.Workdir(tmp_path)
  empty = datasets.Split(data.test.images[:0], data.test.class_ids[:0])
  report.write(workdir, model, datasets.Dataset(
      data.train, empty, data.test, data.class_names), 16, FACTS)
  assert 'validation' not in json.loads(workdir.metrics.read_text())


def test_facts_name_what_results_depend_on():
  values = flags.FlagValues()
  experiment.define_flags(values)
  values(['test', '--dataset=digits', '--epochs=3', '--steps_per_epoch=7', '--seed=4'])
  facts = report.facts(values)
  assert (facts['experiment'], facts['seed'], facts['steps']) == ('digits', 4, 21)
  assert facts['versions']['keras'] == keras.__version__
  assert {'python', 'tensorflow', 'tensorflow-probability'} <= set(facts['versions'])


def test_a_run_of_unknown_duration_and_export_can_be_shown(trained, tmp_path, capsys):
  model, data = trained
  workdir = workdirs.Workdir(tmp_path)
  report.write(workdir, model, data, 16, {
      'experiment': 'tiny', 'method': 'dble', 'seed': 0, 'steps': 5,
      'confidence_candidates': ['default']})
  report.show(workdir)
  assert 'tiny, dble, seed 0: 5 steps\n' in capsys.readouterr().out


if __name__ == '__main__':
  raise SystemExit(pytest.main([__file__]))
