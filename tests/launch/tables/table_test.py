from launch.tables import table


def run(accuracy, ece=0.01, seconds=10.0, parameters=100, auroc=0.9):
  return {'test': {'accuracy': accuracy, 'ece': ece, 'nll': 0.5, 'brier': 0.2,
                   'failure_auroc': auroc, 'aurc': 0.003},
          'seconds': seconds, 'parameters': parameters}


def make_lines():
  vanilla = {0: run(0.90, 0.02), 1: run(0.92, 0.04)}
  baseline = list(vanilla.values())
  return [
      table.make_line('ensemble', {0: run(0.99, 0.001, 40, 400), 1: run(0.97)},
                      baseline, {'accuracy': 0.999}, is_single=False),
      table.make_line('vanilla', vanilla, baseline, {'accuracy': 0.93, 'nll': 0.3}),
      table.make_line('better', {0: run(0.95, seconds=15, parameters=150), 1: None},
                      baseline, {'accuracy': 0.94, 'nll': 0.4}),
      table.make_line('broken', {0: None, 1: None}, baseline, {}),
  ]


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
  assert row['AURC %'] == '**0.300** ± 0.000'
  assert row['paper: accuracy %'] == '93.00' and row['paper: NLL'] == '**0.30**'


def test_the_best_single_model_is_bold_and_the_ensemble_stands_apart():
  rows = cells(table.markdown(make_lines(), 'caption'))
  assert list(rows)[-1] == 'ensemble (several models)'
  ensemble = rows['ensemble (several models)']
  assert ensemble['accuracy %'] == '98.00 ± 1.41'  # The best of all, not in bold.
  better = rows['better']
  assert better['seeds'] == '0; failed: 1'
  assert rows['vanilla']['seeds'] == '0, 1'
  assert better['accuracy %'] == '**95.00**'
  assert better['ECE %'] == '**1.00**'
  assert better['paper: accuracy %'] == '**94.00**'


def test_time_and_parameters_are_relative_to_the_baseline():
  rows = cells(table.markdown(make_lines(), 'caption'))
  assert rows['better']['time'] == '1.50'
  assert rows['better']['parameters'] == '1.50'
  assert rows['vanilla']['time'].startswith('**1.00**')
  alone = table.make_line('alone', {0: run(0.9)}, [], {})
  assert 'time' not in table.markdown([alone], 'caption')


def test_failures_are_reported_not_dropped():
  rows = cells(table.markdown(make_lines(), 'caption'))
  assert rows['broken']['accuracy %'] == 'failed'
  assert rows['broken']['seeds'] == 'failed: 0, 1'
  assert rows['better']['NLL'] == '**0.5000**'  # Of one run.


def test_a_run_without_its_time_has_the_other_figures():
  untimed = {name: value for name, value in run(0.9).items() if name != 'seconds'}
  rows = [table.make_line('vanilla', {0: run(0.8)}, [run(0.8)], {}),
          table.make_line('untimed', {0: untimed}, [run(0.8)], {})]
  row = cells(table.markdown(rows, ''))['untimed']
  assert row['time'] == '–' and row['accuracy %'] == '**90.00**'


def test_a_figure_that_no_run_has_is_a_dash():
  rows = [table.make_line('perfect', {0: run(1.0, auroc=None)}, [], {}),
          table.make_line('other', {0: run(0.9)}, [], {})]
  assert cells(table.markdown(rows, ''))['perfect']['failure AUROC'] == '–'


def test_latex_has_the_same_cells_and_the_ensemble_below_a_rule():
  lines = table.latex(make_lines(), '50 % of x_y').split('\n')
  assert r'\caption{50 \% of x\_y}' in lines
  first, second = [i for i, line in enumerate(lines) if line == r'\midrule']
  assert lines[first - 1].startswith(r'method & seeds & accuracy \% & ECE \%')
  assert lines[first + 1].startswith(r'vanilla & 0, 1 & 91.00 $\pm$ 1.41 & ')
  assert r'\textbf{95.00}' in lines[first + 2]
  assert lines[second + 1].startswith('ensemble (several models) & 0, 1 & 98.00')
  assert lines[second + 2] == r'\bottomrule'
  columns = lines[first + 1].count('&') + 1
  assert rf'\begin{{tabular}}{{l{"c" * (columns - 1)}}}' in lines
