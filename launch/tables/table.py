"""A table of methods: figures of several runs -> means and deviations -> text."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple


class Column(NamedTuple):
  """A figure: where it is found, how it is shown, and which end of it is best."""

  title: str
  scale: float
  decimals: int
  best: Callable[[Sequence[float]], float]


_FIGURES = {
    'accuracy': Column('accuracy %', 100, 2, max),
    'ece': Column('ECE %', 100, 2, min),
    'nll': Column('NLL', 1, 4, min),
    'brier': Column('Brier', 1, 4, min),
    'failure_auroc': Column('failure AUROC', 1, 4, max),
    'aurc': Column('AURC %', 100, 3, min),
    'time': Column('time', 1, 2, min),
    'parameters': Column('parameters', 1, 2, min),
}
_PAPER = {
    'accuracy': Column('paper: accuracy %', 100, 2, max),
    'ece': Column('paper: ECE %', 100, 2, min),
    'nll': Column('paper: NLL', 1, 2, min),
}
_NOTHING = '–'


class Row(NamedTuple):
  """A method's line.

  Attributes:
    title: of the method.
    mean: figure -> mean over the runs that ended well.
    deviation: figure -> their standard deviation; empty with fewer than two.
    paper: figure -> what the paper reports.
    seeds: of the runs that ended well.
    failed: seeds of the runs that did not.
    is_single: whether it is one model, not an ensemble.
  """

  title: str
  mean: dict[str, float]
  deviation: dict[str, float]
  paper: dict[str, float]
  seeds: list[int]
  failed: list[int]
  is_single: bool


def make_row(
    title: str,
    runs: Mapping[int, Mapping | None],
    baseline: Sequence[Mapping],
    paper: dict[str, float],
    is_single: bool,
) -> Row:
  """A line from a method's runs.

  Args:
    title: of the method.
    runs: seed -> what metrics.json holds, or None of a run that failed.
    baseline: the same of the runs that time and parameters are relative to.
    paper: what the paper reports.
    is_single: whether it is one model.
  """
  ended = [run for run in runs.values() if run is not None]
  values = {name: [run['test'][name] for run in ended]
            for name in _FIGURES if name not in ('time', 'parameters')}
  for name, key in (('time', 'seconds'), ('parameters', 'parameters')):
    units = [run[key] for run in baseline if key in run]
    if units:
      unit = statistics.fmean(units)
      values[name] = [run[key] / unit for run in ended if key in run]
  known = {name: [value for value in some if value is not None]
           for name, some in values.items()}
  return Row(
      title=title,
      mean={name: statistics.fmean(some) for name, some in known.items() if some},
      deviation={name: statistics.stdev(some)
                 for name, some in known.items() if len(some) > 1},
      paper=paper,
      seeds=[seed for seed, run in runs.items() if run is not None],
      failed=[seed for seed, run in runs.items() if run is None],
      is_single=is_single)


def markdown(rows: Sequence[Row], caption: str) -> str:
  """The table in Markdown: the best single model of each column in bold."""
  header, *lines = _cells(rows, bold='**{}**', plus_minus=' ± ')
  return '\n'.join([
      caption, '',
      _markdown_line(header), _markdown_line(['---'] * len(header)),
      *(_markdown_line(line) for line in lines)]) + '\n'


def latex(rows: Sequence[Row], caption: str) -> str:
  """The table in LaTeX, for the booktabs package; ensembles below a rule."""
  header, *lines = _cells(rows, bold=r'\textbf{{{}}}', plus_minus=r' $\pm$ ')
  body = []
  for row, line in zip(_ordered(rows), lines):
    if not row.is_single and body and r'\midrule' not in body:
      body.append(r'\midrule')
    body.append(_latex_line(line))
  return '\n'.join([
      r'\begin{table}', r'\centering',
      rf'\begin{{tabular}}{{l{"c" * (len(header) - 1)}}}', r'\toprule',
      _latex_line(header), r'\midrule', *body, r'\bottomrule', r'\end{tabular}',
      rf'\caption{{{_escaped(caption)}}}', r'\end{table}']) + '\n'


def _ordered(rows):
  return sorted(rows, key=lambda row: not row.is_single)


def _cells(rows, bold, plus_minus):
  """The header and a line of texts for each row, ensembles last."""
  rows = _ordered(rows)
  columns = [
      ('mean', name, column) for name, column in _FIGURES.items()
      if any(name in row.mean for row in rows)]
  columns += [
      ('paper', name, column) for name, column in _PAPER.items()
      if any(name in row.paper for row in rows)]
  yield ['method', 'seeds', *(column.title for _, _, column in columns)]
  best = {}
  for kind, name, column in columns:
    single = [getattr(row, kind)[name] for row in rows
              if row.is_single and name in getattr(row, kind)]
    best[kind, name] = _number(column.best(single), column) if single else None
  for row in rows:
    line = [row.title if row.is_single else f'{row.title} (no single model)',
            _seeds(row)]
    for kind, name, column in columns:
      values = getattr(row, kind)
      if name not in values:
        is_failure = kind == 'mean' and not row.seeds
        line.append('failed' if is_failure else _NOTHING)
        continue
      text = _number(values[name], column)
      if row.is_single and text == best[kind, name]:
        text = bold.format(text)
      if kind == 'mean' and name in row.deviation:
        text += plus_minus + _number(row.deviation[name], column)
      line.append(text)
    yield line


def _seeds(row):
  text = ', '.join(map(str, row.seeds))
  if row.failed:
    failed = f'failed: {", ".join(map(str, row.failed))}'
    text = f'{text}; {failed}' if text else failed
  return text


def _number(value, column):
  return f'{column.scale * value:.{column.decimals}f}'


def _markdown_line(cells):
  return f'| {" | ".join(cells)} |'


def _latex_line(cells):
  return ' & '.join(_escaped(cell) for cell in cells) + r' \\'


def _escaped(text):
  return text.replace('%', r'\%').replace('_', r'\_').replace(_NOTHING, '--')
