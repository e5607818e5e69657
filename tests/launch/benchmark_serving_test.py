import json

import pytest
from absl.testing import flagsaver

from dble_tf.serving import warm_up
from dble_tf.errors import UserError
from launch import benchmark_serving
from launch import serving_measurements

MEASURED = {
    'bytes': {'dble': 3_500_000, 'encoder': 1_200_000},
    'load_seconds': {'dble': 0.125, 'encoder': 0.03},
    'requests': {'64': {
        'per_second': {'dble': 1800.0, 'encoder': 2000.0},
        'p50': {'dble': 0.0005, 'encoder': 0.0004},
        'p99': {'dble': 0.002, 'encoder': 0.001}, 'to_encoder': 1.08}}}


def test_each_experiment_is_measured_written_and_shown(monkeypatch, tmp_path, capsys):
  shapes = []

  def measure(values, dataset, rounds, directory):
    assert directory.is_dir() and rounds == 3 and values.scaling == 'none'
    shapes.append(dataset.image_shape)
    return MEASURED

  monkeypatch.setattr(serving_measurements, 'measure', measure)
  benchmark_serving.FLAGS.mark_as_parsed()
  with flagsaver.flagsaver(
      experiments=['digits', 'cifar10'], repetitions=3, results=str(tmp_path)):
    benchmark_serving.main()
  assert shapes == [(8, 8, 1), (32, 32, 3)]
  written = json.loads((tmp_path / 'benchmark_serving.json').read_text())
  assert written['experiments'] == {'digits': MEASURED, 'cifar10': MEASURED}
  table = (tmp_path / 'benchmark_serving.md').read_text()
  assert ('| cifar10 | 3.50 (1.20) | 0.12 (0.03) | 64 | 1,800 (2,000) | 0.50 (0.40) '
          '| 2.00 (1.00) | 1.080 |') in table.splitlines()
  shown = capsys.readouterr().out
  assert table in shown and str(tmp_path) in shown


def test_what_is_missing_is_named(monkeypatch, tmp_path):
  benchmark_serving.FLAGS.mark_as_parsed()
  with flagsaver.flagsaver(experiments=['unknown'], results=str(tmp_path)):
    with pytest.raises(UserError, match='no launch/unknown.flags'):
      benchmark_serving.main()
    monkeypatch.setattr(warm_up, 'predict_pb2', None)
    with pytest.raises(UserError, match='requirements-serving.txt'):
      benchmark_serving.main()


if __name__ == '__main__':
  raise SystemExit(pytest.main([__file__]))
