import pytest
from etils import epath

from launch.tables import results
from tests.launch.tables.flag_values import parse

FIGURES = {'accuracy': 0.5, 'ece': 0.1, 'nll': 1.0, 'brier': 0.5, 'failure_auroc': 0.7,
           'aurc': 0.2}
RUN = {'test': FIGURES, 'seconds': 1.0, 'parameters': 10}


def write(root, figures, *arguments):
  return results.write(parse(*arguments)[0], epath.Path(root), figures)


def caption(root, figures, *arguments):
  return write(root, figures, *arguments)[0].read_text().splitlines()[0]


@pytest.mark.parametrize('group, stem', [('ablation', 'ablation'), ('all', 'table')])
def test_tables_are_written_also_where_every_run_failed(group, stem, tmp_path):
  paths = write(tmp_path, {'dble': {0: None}, 'vanilla': {}}, f'--methods={group}')
  assert [path.name for path in paths] == [f'{stem}.{e}' for e in ('md', 'tex', 'json')]
  assert '| DBLE | failed: 0 |' in paths[0].read_text()
  assert paths[0].read_text().startswith(
      'digits: test figures on digits with mlp, 1,000 steps.\n')


def test_parts_of_dble_have_a_table_of_their_own(tmp_path):
  part = lambda sigma, scaling, nll: {
      'sigma': sigma, 'scaling': scaling, 'test': {**FIGURES, 'nll': nll}}
  runs = {
      seed: {'test': FIGURES, 'parts': [
          part('none', 'none', 2.0 + seed), part('none', 'temperature', 1.5),
          part('constant', 'sigma_scale', 1.4), part('learned', 'none', 1.7),
          part('learned', 'sigma_scale_and_temperature', 1.3)]}
      for seed in (0, 1)}
  paths = write(tmp_path, {'dble': {**runs, 2: None}}, '--methods=dble')
  text = (tmp_path / 'parts.md').read_text()
  assert epath.Path(tmp_path) / 'parts.png' in paths
  assert [line.split(' | ')[0] for line in text.splitlines()[4:]] == [
      '| no sigma', '| no sigma, temperature', '| constant sigma, scaled',
      '| learned sigma', '| learned sigma, scaled, temperature']
  assert '2.5000 ± 0.7071' in text and '**1.3000** ± 0.0000' in text
  assert 'over 2 seeds; the same encoders with different kinds of sigma.\n' in text


def test_the_caption_speaks_of_deviations_only_where_there_are_several_seeds(tmp_path):
  one = caption(tmp_path, {'dble': {3: RUN, 4: None}, 'mixup': {3: RUN}})
  assert one == 'digits: test figures on digits with mlp, 1,000 steps, one seed.'
  three = caption(tmp_path, {'dble': {0: RUN, 1: RUN, 5: RUN}})
  assert three.endswith('steps, mean and standard deviation over 3 seeds.')
  mixed = caption(tmp_path, {'dble': {0: RUN, 1: RUN}, 'mixup': {0: RUN, 1: None}})
  assert mixed.endswith('mean and standard deviation over up to 2 seeds.')


def test_the_caption_explains_time_and_parameters_where_they_are_shown(tmp_path):
  note = 'relative to vanilla training'
  assert note in caption(tmp_path, {'vanilla': {0: RUN}, 'dble': {0: RUN}})
  assert note not in caption(tmp_path, {'dble': {0: RUN}})


def test_the_papers_figures_stand_beside_those_of_its_experiments(tmp_path):
  write(tmp_path, {'dble': {0: RUN}}, '--dataset=cifar100', '--encoder=thin_resnet')
  assert '| **71.03** | **1.10** | **1.09** |' in (tmp_path / 'table.md').read_text()
