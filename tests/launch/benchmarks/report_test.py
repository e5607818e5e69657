import json

from etils import epath

from launch.benchmarks import measurements
from launch.benchmarks import report
from launch.benchmarks import serving

RESULTS = {
    'encoder': 'vgg11', 'rounds': 7, 'date': '2026-01-01', 'machine': 'a machine',
    'training': {
        'images': 400,
        'seconds': {'vanilla': 2.0, 'leave_one_out': 2.5},
        'to_vanilla': {'vanilla': 1.0, 'leave_one_out': 1.25}, 'to_prototypical': 1.07},
    'replicas': {
        'images': 400, 'seconds': {'1': 2.0, '2': 1.6}, 'to_one': {'1': 1.0, '2': 0.8}},
    'input_pipeline': {
        'images_per_second': 1600.0,
        'seconds_per_image': {'10 classes of 7 images': 2e-6}},
    'inference': {'images': 500, 'seconds': {'20': 1.02, 'encoder': 1.0},
                  'to_encoder': {'20': 1.02, 'encoder': 1.0}},
    'centers': {'images': 2000, 'to_encoder': 0.98, 'seconds': {}},
    'startup': {'import': 5.0, 'data': 1.0},
    'memory': {'training, 50,000 images': 3 * 2**30},
    'sizes': {'num_ways': {'2': 0.1, '10': 0.4}, 'num_shots': {'1': 0.2}},
    'serving': {
        'bytes': {'dble': 3_500_000, 'encoder': 1_200_000},
        'load_seconds': {'dble': 0.128, 'encoder': 0.03},
        'requests': {'64': {
            'per_second': {'dble': 1800.0, 'encoder': 2000.0},
            'p50': {'dble': 0.0005, 'encoder': 0.0004},
            'p99': {'dble': 0.002, 'encoder': 0.001}, 'to_encoder': 1.08}}},
}


def test_the_table_has_a_row_for_everything_measured():
  rows = report.table(RESULTS).splitlines()
  for row in (
      '| training, leave-one-out, 400 images | 2,500.0 ms, 1.25 of vanilla |',
      '| training, leave-one-out with a confidence model | 1.07 of the time without |',
      '| training, 2 replicas, 400 images | 250 images/s, 0.80 of the time of one |',
      # 400 images in 2.5 s are 160 per second, a tenth of 1,600.
      '| input pipeline | 1,600 images/s, 10.0 times the rate of a step |',
      '| input pipeline, 10 classes of 7 images | 2.0 µs per image |',
      '| inference, U = 20, 500 images | 1,020.0 ms, 1.020 of the encoder |',
      '| centers of 2,000 images | 0.980 of encoding them |',
      '| start to first step | import 5.0 s, data 1.0 s |',
      '| peak memory, training, 50,000 images | 3.00 GiB |',
      '| serving, size (encoder alone) | 3.50 (1.20) MB |',
      '| serving, loading | 0.13 (0.03) s |',
      '| serving, batch of 64 | 1,800 (2,000) requests/s, p50 0.50 (0.40) ms, '
      'p99 2.00 (1.00) ms, 1.080 of the encoder |'):
    assert row in rows
  assert rows[-1] == ('vgg11, medians of 7 rounds, start-up of at most three, memory '
                      'of one, 2026-01-01, a machine')


def test_costs_against_sizes_are_plotted(tmp_path):
  report.write(epath.Path(tmp_path), RESULTS)
  assert (tmp_path / 'benchmark.png').read_bytes().startswith(b'\x89PNG')


def test_parts_are_measured_written_and_shown(monkeypatch, tmp_path, capsys):
  def measure(values, dataset, rounds, directory):
    assert directory.is_dir() and rounds == 3 and values.scaling == 'none'
    assert dataset.image_shape == (8, 8, 1)
    return RESULTS['serving']

  def startup(experiment, rounds):
    assert experiment == 'digits' and rounds == 3
    return RESULTS['startup']

  def centers(values, dataset, rounds):
    # What was measured before is written already.
    assert set(json.loads((tmp_path / 'benchmark.json').read_text())) == {
        'encoder', 'rounds', 'date', 'machine', 'serving', 'startup'}
    return RESULTS['centers']

  monkeypatch.setattr(serving, 'measure', measure)
  monkeypatch.setattr(measurements, 'startup', startup)
  monkeypatch.setattr(measurements, 'centers', centers)
  report.run('digits', 'mlp', ['serving', 'startup', 'centers'], 3, str(tmp_path))
  written = json.loads((tmp_path / 'benchmark.json').read_text())
  for part in ('serving', 'startup', 'centers'):
    assert written[part] == RESULTS[part]
  table = (tmp_path / 'benchmark.md').read_text()
  shown = capsys.readouterr().out
  assert table in shown and str(tmp_path) in shown
