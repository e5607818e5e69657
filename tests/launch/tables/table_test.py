from dble_tf.comparisons import Difference
from launch.tables import table


def run(accuracy, ece=0.01, auroc=0.9):
  return {'accuracy': accuracy, 'ece': ece, 'nll': 0.5, 'brier': 0.2,
          'failure_auroc': auroc, 'aurc': 0.003, 'ece_floor': 0.004}


def make_lines():
  return [
      table.make_line('ensemble', {0: run(0.99, 0.001), 1: run(0.97)},
                      {'accuracy': 0.999}, is_single=False),
      table.make_line('vanilla', {0: run(0.90, 0.02), 1: run(0.92, 0.04)},
                      {'accuracy': 0.93, 'nll': 0.3}, bold=['aurc']),
      table.make_line('better', {0: run(0.95), 1: None},
                      {'accuracy': 0.94, 'nll': 0.4}, bold=['accuracy', 'ece']),
      table.make_line('broken', {0: None, 1: None}),
  ]


AGAINST = [table.Against('accuracy', 'vanilla + T', Difference(0.02, -0.005, 0.045)),
           table.Against('nll', 'mixup', Difference(-0.01, -0.02, -0.003))]


def cells(markdown):
  """The rows of a Markdown table, by their first cell."""
  lines = [line for line in markdown.split('\n') if line.startswith('|')]
  split = [[cell.strip() for cell in line.strip('|').split('|')] for line in lines]
  header = split[0]
  return {row[0]: dict(zip(header, row)) for row in split[2:]}


def test_cells_are_means_and_sample_deviations():
  row = cells(table.markdown(make_lines(), 'caption'))['vanilla']
  assert row['accuracy %'] == '91.00 ± 1.41'
  assert row['ECE %'] == '3.00 ± 1.41'
  assert row['ECE floor %'] == '0.40'
  assert row['AURC %'] == '**0.300** ± 0.000'
  assert row['paper: accuracy %'] == '93.00' and row['paper: NLL'] == '0.30'


def test_bold_is_what_it_is_told_and_the_ensemble_stands_last():
  rows = cells(table.markdown(make_lines(), 'caption'))
  assert list(rows) == ['vanilla', 'better', 'broken', 'ensemble']
  assert rows['ensemble']['accuracy %'] == '98.00 ± 1.41'
  better = rows['better']
  assert better['accuracy %'] == '**95.00**' and better['ECE %'] == '**1.00**'
  assert better['NLL'] == '0.5000'
  assert better['seeds'] == '0; failed: 1' and rows['vanilla']['seeds'] == '0, 1'


def test_dble_against_the_best_other_is_a_second_table():
  first, second = table.markdown(make_lines(), 'caption', AGAINST).split(
      '\nDBLE against the best other single model:\n')
  assert first == table.markdown(make_lines(), 'caption')
  rows = cells(second)
  assert rows['accuracy %'] == {
      'figure': 'accuracy %', 'best other': 'vanilla + T', 'difference': '+2.00',
      '95 % interval': '-0.50 to +4.50'}
  assert rows['NLL']['95 % interval'] == '-0.0200 to -0.0030'


def test_failures_are_reported_not_dropped():
  rows = cells(table.markdown(make_lines(), 'caption'))
  assert rows['broken']['accuracy %'] == 'failed'
  assert rows['broken']['seeds'] == 'failed: 0, 1'


def test_a_figure_that_no_run_has_is_a_dash():
  rows = [table.make_line('perfect', {0: run(1.0, auroc=None)}),
          table.make_line('other', {0: run(0.9)})]
  assert cells(table.markdown(rows, ''))['perfect']['failure AUROC'] == '–'


def test_a_figure_that_no_line_has_is_no_column():
  line = table.make_line('alone', {0: {'accuracy': 0.5}})
  row, = cells(table.markdown([line], '')).values()
  assert row == {'method': 'alone', 'seeds': '0', 'accuracy %': '50.00'}


def test_latex_has_the_same_cells_and_the_ensemble_below_a_rule():
  lines = table.latex(make_lines(), '50 % of x_y').split('\n')
  assert r'\caption{50 \% of x\_y}' in lines
  first, second = [i for i, line in enumerate(lines) if line == r'\midrule']
  assert lines[first - 1].startswith(r'method & seeds & accuracy \% & ECE \%')
  assert lines[first + 1].startswith(r'vanilla & 0, 1 & 91.00 $\pm$ 1.41 & ')
  assert r'\textbf{95.00}' in lines[first + 2]
  assert lines[second + 1].startswith('ensemble & 0, 1 & 98.00')
  assert lines[second + 2] == r'\bottomrule'
  columns = lines[first + 1].count('&') + 1
  assert rf'\begin{{tabular}}{{l{"c" * (columns - 1)}}}' in lines


def test_latex_has_the_second_table_too():
  text = table.latex(make_lines(), 'caption', AGAINST)
  assert text.startswith(table.latex(make_lines(), 'caption'))
  assert r'accuracy \% & vanilla + T & +2.00 & -0.50 to +4.50 \\' in text
  assert text.count(r'\begin{table}') == 2
