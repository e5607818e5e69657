import json

import pytest
from etils import epath

from launch.tables import answers
from launch.tables import results
from launch.tables.rows import LINES
from tests.launch.tables import fake_runs
from tests.launch.tables.flag_values import parse


@pytest.fixture
def write(tmp_path):
  """(runs, *arguments) -> the paths; runs are row -> seed -> skill, None if failed."""
  root = epath.Path(tmp_path)

  def write(skills, *arguments):
    runs = {row: {seed: skill and root / f'{row}-{seed}'
                  for seed, skill in by_seed.items()}
            for row, by_seed in skills.items()}
    for row, by_seed in skills.items():
      for seed, skill in by_seed.items():
        if skill:
          fake_runs.write(runs[row][seed], seed, skill, 2.0,
                          with_parts=row.startswith('dble'))
    return results.write(
        parse('--validation_size=100', *arguments)[0], root, runs)
  return write


def read(paths):
  return json.loads(paths[2].read_text())


@pytest.mark.parametrize('group, stem, title', [
    ('ablation', 'ablation', 'DBLE, sigma as printed'), ('all', 'table', 'DBLE')])
def test_tables_are_written_also_where_every_run_failed(group, stem, title, write):
  paths = write({'dble': {0: None}, 'vanilla': {}}, f'--methods={group}')
  assert [path.name for path in paths] == [f'{stem}.{e}' for e in ('md', 'tex', 'json')]
  text = paths[0].read_text()
  assert f'| {title} (10 supports + 10 queries) | failed: 0 |' in text
  assert text.startswith(
      'digits: 1 method on test images of digits with mlp, 1,000 steps. ')


def test_lines_are_the_runs_as_trained_and_with_a_temperature(write):
  paths = write({'vanilla': {0: 1.0, 3: 1.1}, 'trust_score': {0: 1.0}})
  lines = read(paths)['lines']
  assert list(lines) == ['vanilla', 'vanilla+T', 'trust_score']
  runs = {name: lines[name]['runs']['3'] for name in ('vanilla', 'vanilla+T')}
  assert runs['vanilla']['temperature'] is None
  assert runs['vanilla+T']['temperature'] > 1.2  # The logits are twice too large.
  assert runs['vanilla+T']['accuracy'] == runs['vanilla']['accuracy']
  assert runs['vanilla+T']['nll'] < runs['vanilla']['nll']
  mean = sum(run['nll'] for run in lines['vanilla']['runs'].values()) / 2
  assert lines['vanilla']['mean']['nll'] == pytest.approx(mean)
  assert 0 < runs['vanilla']['ece_floor'] < runs['vanilla']['ece_floor_95']
  assert '| vanilla training + T | 0, 3 |' in paths[0].read_text()
  assert paths[-1].name == 'table.png' and paths[-1].stat().length > 1000


def test_parts_of_dble_are_lines_of_one_run(write):
  lines = read(write({'dble': {0: 1.0}}))['lines']
  assert list(lines) == [
      'dble_prototypical', 'dble_prototypical+T', 'dble_as_printed',
      'dble_no_held_out', 'dble']
  assert len({line['mean']['accuracy'] for line in lines.values()}) == 1
  assert len({line['mean']['nll'] for line in lines.values()}) == 5


def test_a_method_that_is_better_beyond_chance_is_bold(write):
  paths = write({'vanilla': {0: 0.5}, 'mixup': {0: 3.0}})
  lines = read(paths)['lines']
  # Not changed by the temperature, and the same in both lines.
  assert 'accuracy' in lines['mixup']['bold'] and 'accuracy' in lines['mixup+T']['bold']
  assert lines['vanilla']['bold'] == []
  assert '| **' in paths[0].read_text() and r'\textbf{' in paths[1].read_text()


def test_dble_is_compared_with_the_best_other_method(write):
  paths = write({'vanilla': {0: 0.5, 1: 0.5}, 'dble': {0: 3.0, 1: 3.0},
                 'deep_ensemble': {0: 6.0}})
  against = read(paths)['dble_against_best_other']
  assert set(against) == set(read(paths)['lines']['dble']['mean']) - {'ece_floor'}
  accuracy = against['accuracy']
  assert accuracy['other'].startswith('vanilla training')
  lines = read(paths)['lines']
  assert accuracy['value'] == pytest.approx(
      lines['dble']['mean']['accuracy'] - lines['vanilla']['mean']['accuracy'])
  assert 0 < accuracy['low'] < accuracy['value'] < accuracy['high']
  assert 'DBLE against the best other single model' in paths[0].read_text()


def test_reliability_is_plotted_where_a_seed_has_both_methods(write):
  names = lambda *arguments: [path.name for path in write(*arguments)]
  both = {'vanilla': {0: None, 1: 1.0}, 'dble': {0: 1.0, 1: 1.0}}
  assert names(both)[-1] == 'reliability.png'
  assert 'reliability.png' not in names(both, '--methods=ablation')
  assert 'reliability.png' not in names({'vanilla': {1: 1.0}, 'dble': {0: 1.0}})


def test_titles_have_the_settings_of_their_rows_once(write):
  paths = write(
      {'vanilla': {0: 1.0}, 'mixup': {0: 1.0}, 'dble': {0: 1.0}},
      '--tuned=vanilla:learning_rate=0.3', '--tuned=mixup:mixup_alpha=0.7',
      '--tuned=dble:num_shots=1+confidence_learning_rate=0.03')
  titles = {name: line['title'] for name, line in read(paths)['lines'].items()}
  assert titles['vanilla+T'] == 'vanilla training + T, learning rate 0.3'
  assert titles['mixup'] == 'mixup (alpha 0.7)'
  assert titles['dble'] == (
      'DBLE (1 support + 10 queries), confidence learning rate 0.03')


def test_the_papers_figures_stand_beside_runs_on_all_images(write):
  arguments = ['--dataset=mnist', '--encoder=mlp']
  whole, part = (
      write({'vanilla': {0: 1.0}}, *arguments, *more)[0].read_text()
      for more in ([], ['--train_size=2000']))
  assert 'paper: ECE %' in whole and 'paper' not in part


def test_the_ablation_compares_dble_as_printed(write):
  paths = write({'vanilla': {0: 1.0}, 'dble': {0: 1.5}}, '--methods=ablation')
  table = read(paths)
  assert list(table['lines']) == [
      'vanilla', 'dble_as_printed', 'dble_no_held_out']
  gap = table['lines']['dble_as_printed']['mean']['nll'] - (
      table['lines']['vanilla']['mean']['nll'])
  assert table['dble_against_best_other']['nll']['value'] == pytest.approx(gap)


def test_without_another_method_there_is_nothing_to_compare_dble_with(write):
  paths = write({'dble': {0: 1.0}})
  assert read(paths)['dble_against_best_other'] == {}
  assert 'against' not in paths[0].read_text()


def test_the_caption_names_data_methods_images_steps_and_seeds(write):
  def caption(skills, *arguments):
    return read(write(skills, *arguments))['caption']

  one = caption({'dble': {3: 1.0, 4: None}, 'mixup': {3: 1.0}})
  assert one.startswith('digits: 2 methods on 200 test images of digits with mlp, '
                        '1,000 steps, one seed. + T: ')
  three = caption({'dble': {0: 1.0, 1: 1.0, 5: 1.0}})
  assert 'steps, mean ± standard deviation over 3 seeds. ' in three
  mixed = caption({'dble': {0: 1.0, 1: 1.0}, 'mixup': {0: 1.0, 1: None}})
  assert 'over up to 2 seeds. ' in mixed
  assert '+ T' not in caption({'dble': {0: 1.0}}, '--methods=ablation')


def test_the_papers_figures_stand_beside_those_of_its_experiments(write):
  paths = write({'dble': {0: 1.0}}, '--dataset=cifar100', '--encoder=thin_resnet')
  line, = (line for line in paths[0].read_text().splitlines()
           if '| 71.03 | 1.10 | 1.09 |' in line)
  assert line.startswith('| DBLE, sigma as printed')


def test_what_was_measured_can_be_remembered(tmp_path):
  run = epath.Path(tmp_path) / 'vanilla-0'
  fake_runs.write(run)
  asked = []

  def measure(path, line):
    asked.append((path, line))
    return answers.measure(path, line)

  results.write(parse('--validation_size=9')[0], epath.Path(tmp_path),
                {'vanilla': {0: run, 1: None}}, measure)
  assert asked == [(run, LINES['vanilla']), (run, LINES['vanilla+T'])]
