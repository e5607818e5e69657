"""A table of methods: figures of several runs -> means and deviations -> text."""

import statistics
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dble_tf.comparisons import Difference


class Column(NamedTuple):
  """How a figure is shown."""

  title: str
  scale: float
  decimals: int

  def number(self, value: float, sign: str = '') -> str:
    return f'{self.scale * value:{sign}.{self.decimals}f}'


_FIGURES = {
    'accuracy': Column('accuracy %', 100, 2),
    'ece': Column('ECE %', 100, 2),
    'ece_floor': Column('ECE floor %', 100, 2),
    'nll': Column('NLL', 1, 4),
    'brier': Column('Brier', 1, 4),
    'failure_auroc': Column('failure AUROC', 1, 4),
    'aurc': Column('AURC %', 100, 3),
}
_PAPER = {
    'accuracy': Column('paper: accuracy %', 100, 2),
    'ece': Column('paper: ECE %', 100, 2),
    'nll': Column('paper: NLL', 1, 2),
}
_NOTHING = '–'


class Line(NamedTuple):
  """One line of a table.

  Attributes:
    title: of the method.
    mean: figure -> mean over the finished runs.
    deviation: figure -> their sample standard deviation; empty for fewer than two.
    paper: figure -> the paper's.
    seeds: of the finished runs.
    failed: seeds of the failed runs.
    is_single: False for an ensemble.
    bold: the figures in which it is the best.
  """

  title: str
  mean: dict[str, float]
  deviation: dict[str, float]
  paper: dict[str, float]
  seeds: list[int]
  failed: list[int]
  is_single: bool
  bold: list[str]


class Against(NamedTuple):
  """A figure of DBLE against the best other single model's.

  Attributes:
    figure: its name.
    other: the other's title.
    difference: DBLE's less the other's.
  """

  figure: str
  other: str
  difference: Difference


def make_line(
    title: str,
    runs: Mapping[int, Mapping[str, float | None] | None],
    paper: dict[str, float] | None = None,
    is_single: bool = True,
    bold: Sequence[str] = (),
) -> Line:
  """Summarizes the runs of a method.

  Args:
    title: of the method.
    runs: seed -> figures, or None for a failed run.
    paper: figure -> the paper's.
    is_single: False for an ensemble.
    bold: the figures in which it is the best.
  """
  finished = [run for run in runs.values() if run is not None]
  known = {name: [run[name] for run in finished if run.get(name) is not None]
           for name in _FIGURES}
  return Line(
      title=title,
      mean={name: statistics.fmean(some) for name, some in known.items() if some},
      deviation={name: statistics.stdev(some) for name, some in known.items()
                 if len(some) > 1 and name != 'ece_floor'},
      paper=paper or {},
      seeds=[seed for seed, run in runs.items() if run is not None],
      failed=[seed for seed, run in runs.items() if run is None],
      is_single=is_single,
      bold=list(bold))


def markdown(
    lines: Sequence[Line], caption: str, against: Sequence[Against] = ()) -> str:
  """The table in Markdown, ensembles last, then DBLE against the best other."""
  parts = [caption, '', *_markdown_table(
      _cells(lines, bold='**{}**', plus_minus=' ± '))]
  if against:
    parts += ['', f'{_AGAINST}:', '', *_markdown_table(_against_cells(against))]
  return '\n'.join(parts) + '\n'


def latex(
    lines: Sequence[Line], caption: str, against: Sequence[Against] = ()) -> str:
  """The same in LaTeX, for the booktabs package; ensembles below a rule."""
  header, *cells = _cells(lines, bold=r'\textbf{{{}}}', plus_minus=r' $\pm$ ')
  body = []
  for line, texts in zip(_ordered(lines), cells):
    if not line.is_single and body and r'\midrule' not in body:
      body.append(r'\midrule')
    body.append(_latex_line(texts))
  parts = _latex_table(header, body, caption)
  if against:
    header, *cells = _against_cells(against)
    parts += ['', *_latex_table(header, map(_latex_line, cells), f'{_AGAINST}.')]
  return '\n'.join(parts) + '\n'


_AGAINST = 'DBLE against the best other single model'


def _ordered(lines):
  return sorted(lines, key=lambda line: not line.is_single)


def _cells(lines, bold, plus_minus):
  """The texts of the header and then of each line, ensembles last."""
  lines = _ordered(lines)
  columns = [('mean', name, column) for name, column in _FIGURES.items()
             if any(name in line.mean for line in lines)]
  columns += [('paper', name, column) for name, column in _PAPER.items()
              if any(name in line.paper for line in lines)]
  yield ['method', 'seeds', *(column.title for _, _, column in columns)]
  for line in lines:
    texts = [line.title, _seeds(line)]
    for kind, name, column in columns:
      values = getattr(line, kind)
      if name not in values:
        is_failure = kind == 'mean' and not line.seeds
        texts.append('failed' if is_failure else _NOTHING)
        continue
      text = column.number(values[name])
      if kind == 'mean':
        if name in line.bold:
          text = bold.format(text)
        if name in line.deviation:
          text += plus_minus + column.number(line.deviation[name])
      texts.append(text)
    yield texts


def _against_cells(against):
  """The texts of the header and then of each figure."""
  yield ['figure', 'best other', 'difference', '95 % interval']
  for figure, other, difference in against:
    column = _FIGURES[figure]
    value, low, high = (column.number(number, '+') for number in difference)
    yield [column.title, other, value, f'{low} to {high}']


def _seeds(line):
  text = ', '.join(map(str, line.seeds))
  if line.failed:
    failed = f'failed: {", ".join(map(str, line.failed))}'
    text = f'{text}; {failed}' if text else failed
  return text


def _markdown_table(cells):
  header, *body = cells
  return [_markdown_line(texts)
          for texts in (header, ['---'] * len(header), *body)]


def _markdown_line(cells):
  return f'| {" | ".join(cells)} |'


def _latex_table(header, body, caption):
  return [
      r'\begin{table}', r'\centering',
      rf'\begin{{tabular}}{{l{"c" * (len(header) - 1)}}}', r'\toprule',
      _latex_line(header), r'\midrule', *body, r'\bottomrule', r'\end{tabular}',
      rf'\caption{{{_escaped(caption)}}}', r'\end{table}']


def _latex_line(cells):
  return ' & '.join(_escaped(cell) for cell in cells) + r' \\'


def _escaped(text):
  return text.replace('%', r'\%').replace('_', r'\_').replace(_NOTHING, '--')
