import pytest
from absl import flags
from etils import epath

from launch import comparison
from launch import devices
from launch import experiment
from launch import methods


def parse(*arguments):
  values = flags.FlagValues()
  experiment.define_flags(values)
  devices.define_flags(values)
  flags.DEFINE_list('methods', [], '', flag_values=values)
  values(['test', *arguments])
  return values


def test_rows_have_the_order_of_the_papers_tables():
  for group, rows in comparison.GROUPS.items():
    assert comparison.requested_rows(parse(f'--methods={group}')) == rows


def test_the_ablations_runs_are_of_dble_as_printed(tmp_path):
  values = parse('--dataset=digits')
  names = [name for name in values if name != 'methods']
  config = {row: comparison.Run(values, names, epath.Path(tmp_path), row, 7).config
            for row in comparison.ROWS}
  for row, candidate in (('dble_all', 'all+raw_input'), ('dble_errors', 'raw_input')):
    for line in ('method=dble', 'scaling=none', f'confidence_candidates={candidate}'):
      assert f'--{line}\n' in config[row]
  assert '--scaling=sigma_scale\n' in config['dble']
  assert all('--seed=7\n' in text for text in config.values())
  assert len(set(config.values())) == len(config)


@pytest.mark.parametrize('group, stem', [('ablation', 'ablation'), ('all', 'table')])
def test_tables_are_written_also_where_every_run_failed(group, stem, tmp_path):
  values = parse('--dataset=digits', f'--methods={group}')
  paths = comparison.write(
      values, epath.Path(tmp_path), {'dble': {0: None}, 'vanilla': {}})
  assert [path.name for path in paths] == [f'{stem}.{e}' for e in ('md', 'tex', 'json')]
  assert '| DBLE | failed: 0 |' in paths[0].read_text()


def test_parts_of_dble_have_a_table_of_their_own(tmp_path):
  figures = {'accuracy': 0.5, 'ece': 0.1, 'nll': 1.0, 'brier': 0.5,
             'failure_auroc': 0.7, 'aurc': 0.2}
  part = lambda sigma, scaling, nll: {
      'sigma': sigma, 'scaling': scaling, 'test': {**figures, 'nll': nll}}
  runs = {
      seed: {'test': figures, 'parts': [
          part('none', 'none', 2.0 + seed), part('none', 'temperature', 1.5),
          part('constant', 'sigma_scale', 1.4), part('all', 'none', 1.7),
          part('all', 'sigma_scale_and_temperature', 1.3)]}
      for seed in (0, 1)}
  paths = comparison.write(
      parse('--dataset=digits', '--methods=dble'), epath.Path(tmp_path),
      {'dble': {**runs, 2: None}})
  text = (tmp_path / 'parts.md').read_text()
  assert epath.Path(tmp_path) / 'parts.png' in paths
  assert [line.split(' | ')[0] for line in text.splitlines()[4:]] == [
      '| no sigma', '| no sigma, temperature', '| constant sigma, scaled',
      '| sigma of "all"', '| sigma of "all", scaled, temperature']
  assert '2.5000 ± 0.7071' in text and '**1.3000** ± 0.0000' in text


def test_all_methods_of_the_paper_are_rows_in_its_order():
  assert comparison.GROUPS['all'] == [
      'vanilla', 'mc_dropout', 'temperature_scaling', 'label_smoothing', 'mixup',
      'trust_score', 'dble', 'deep_ensemble']
  assert comparison.GROUPS['ablation'] == [
      'vanilla', 'vanilla_errors', 'dble_all', 'dble_errors']
  assert set(methods.METHODS) == set(comparison.ROWS) - {'dble_all', 'dble_errors'}


if __name__ == '__main__':
  raise SystemExit(pytest.main([__file__]))
