"""A table of methods: figures of several runs -> means and deviations -> text."""

import statistics
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple


class Column(NamedTuple):
  """How a figure is shown, and which of several is best."""

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


class Line(NamedTuple):
  """One method in a table.

  Attributes:
    title: of the method.
    mean: figure -> mean over the finished runs.
    deviation: figure -> their sample standard deviation; empty for fewer than two.
    paper: figure -> the paper's.
    seeds: of the finished runs.
    failed: seeds of the failed runs.
    is_single: False for an ensemble.
  """

  title: str
  mean: dict[str, float]
  deviation: dict[str, float]
  paper: dict[str, float]
  seeds: list[int]
  failed: list[int]
  is_single: bool


def make_line(
    title: str,
    runs: Mapping[int, Mapping | None],
    baseline: Sequence[Mapping],
    paper: dict[str, float],
    is_single: bool = True,
) -> Line:
  """Summarizes the runs of a method.

  Args:
    title: of the method.
    runs: seed -> what metrics.json holds, or None for a failed run.
    baseline: the finished runs that time and parameters are relative to.
    paper: figure -> the paper's.
    is_single: False for an ensemble.
  """
  finished = [run for run in runs.values() if run is not None]
  values = {name: [run['test'][name] for run in finished]
            for name in _FIGURES if name not in ('time', 'parameters')}
  for name, key in (('time', 'seconds'), ('parameters', 'parameters')):
    units = [run[key] for run in baseline if key in run]
    if units:
      unit = statistics.fmean(units)
      values[name] = [run[key] / unit for run in finished if key in run]
  known = {name: [value for value in some if value is not None]
           for name, some in values.items()}
  return Line(
      title=title,
      mean={name: statistics.fmean(some) for name, some in known.items() if some},
      deviation={name: statistics.stdev(some)
                 for name, some in known.items() if len(some) > 1},
      paper=paper,
      seeds=[seed for seed, run in runs.items() if run is not None],
      failed=[seed for seed, run in runs.items() if run is None],
      is_single=is_single)


def markdown(lines: Sequence[Line], caption: str) -> str:
  """The table in Markdown: the best single model of each column in bold."""
  header, *body = _cells(lines, bold='**{}**', plus_minus=' ± ')
  return '\n'.join([
      caption, '',
      _markdown_line(header), _markdown_line(['---'] * len(header)),
      *map(_markdown_line, body)]) + '\n'


def latex(lines: Sequence[Line], caption: str) -> str:
  """The table in LaTeX, for the booktabs package; ensembles below a rule."""
  header, *cells = _cells(lines, bold=r'\textbf{{{}}}', plus_minus=r' $\pm$ ')
  body = []
  for line, texts in zip(_ordered(lines), cells):
    if not line.is_single and body and r'\midrule' not in body:
      body.append(r'\midrule')
    body.append(_latex_line(texts))
  return '\n'.join([
      r'\begin{table}', r'\centering',
      rf'\begin{{tabular}}{{l{"c" * (len(header) - 1)}}}', r'\toprule',
      _latex_line(header), r'\midrule', *body, r'\bottomrule', r'\end{tabular}',
      rf'\caption{{{_escaped(caption)}}}', r'\end{table}']) + '\n'


def _ordered(lines):
  return sorted(lines, key=lambda line: not line.is_single)


def _cells(lines, bold, plus_minus):
  """The texts of the header and then of each line, ensembles last."""
  lines = _ordered(lines)
  columns = [
      ('mean', name, column) for name, column in _FIGURES.items()
      if any(name in line.mean for line in lines)]
  columns += [
      ('paper', name, column) for name, column in _PAPER.items()
      if any(name in line.paper for line in lines)]
  yield ['method', 'seeds', *(column.title for _, _, column in columns)]
  best = {}
  for kind, name, column in columns:
    single = [getattr(line, kind)[name] for line in lines
              if line.is_single and name in getattr(line, kind)]
    best[kind, name] = _number(column.best(single), column) if single else None
  for line in lines:
    texts = [line.title if line.is_single else f'{line.title} (several models)',
             _seeds(line)]
    for kind, name, column in columns:
      values = getattr(line, kind)
      if name not in values:
        is_failure = kind == 'mean' and not line.seeds
        texts.append('failed' if is_failure else _NOTHING)
        continue
      text = _number(values[name], column)
      if line.is_single and text == best[kind, name]:
        text = bold.format(text)
      if kind == 'mean' and name in line.deviation:
        text += plus_minus + _number(line.deviation[name], column)
      texts.append(text)
    yield texts


def _seeds(line):
  text = ', '.join(map(str, line.seeds))
  if line.failed:
    failed = f'failed: {", ".join(map(str, line.failed))}'
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
