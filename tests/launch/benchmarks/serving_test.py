from etils import epath

from launch.benchmarks import random_data
from launch.benchmarks import serving
from launch.settings import experiment


def test_an_export_and_its_encoder_are_measured_side_by_side(tmp_path, monkeypatch):
  monkeypatch.setattr(serving, 'SECONDS', 0.01)
  values = experiment.parse([
      '--dataset=digits', '--representation_size=16', '--num_shots=1',
      '--num_queries=1', '--scaling=none'])
  measured = serving.measure(
      values, random_data.make('digits', 50), 2, epath.Path(tmp_path))
  # Weights of 64 * 512 + 512, 512 * 16 + 16; phi 16 * 512 + 512, 512 * 16 + 16.
  encoder, phi = 33280 + 8208, 8704 + 8208
  assert 4 * encoder < measured['bytes']['encoder'] < 4 * encoder + 300_000
  more = measured['bytes']['dble'] - measured['bytes']['encoder']
  assert 4 * phi < more < 4 * phi + 300_000
  assert set(measured['requests']) == {'1', '64'}
  for part in measured['requests'].values():
    for name in ('dble', 'encoder'):
      assert 0 < part['p50'][name] <= part['p99'][name]
      assert part['per_second'][name] > 0
    assert part['to_encoder'] > 0
