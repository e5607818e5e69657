"""Plots of results, written as PNG files."""

import io
import os
from collections.abc import Mapping

import numpy as np
from matplotlib import figure

from dble_tf import files
from dble_tf import metrics

_NUM_BINS = 15


def reliability_diagram(
    path: str | os.PathLike,
    methods: Mapping[str, Mapping[str, np.ndarray]],
) -> None:
  """Plots accuracy against confidence in 15 bins, one panel per method.

  Args:
    path: PNG file to write.
    methods: title -> predictions with label, true_label and confidence, each [n].
  """
  _save(_reliability({
      title: metrics.calibration_bins(
          predictions['label'] == predictions['true_label'],
          predictions['confidence'], _NUM_BINS).numpy()
      for title, predictions in methods.items()}), path)


def reliability_image(title: str, bins: np.ndarray) -> bytes:
  """Renders such a panel from the [3, 15] sums of `metrics.calibration_bins`.

  Args:
    title: title of the panel.
    bins: [3, 15] sums.

  Returns:
    The content of a small PNG file.
  """
  return _png(_reliability({title: bins}), dpi=60)


def sigma(
    path: str | os.PathLike, predictions: Mapping[str, np.ndarray]) -> None:
  """Plots sigma of correct and wrong predictions, and against the true distance.

  Args:
    path: PNG file to write.
    predictions: label, true_label, sigma_mean and distance_to_true, each [n].
  """
  is_correct = predictions['label'] == predictions['true_label']
  values = predictions['sigma_mean'].astype(np.float64)
  kinds = [(is_correct, 'correct', 'tab:blue'), (~is_correct, 'wrong', 'tab:red')]
  canvas = figure.Figure(figsize=(9, 3.8), layout='constrained')
  histogram, scatter = canvas.subplots(1, 2)
  # The margin gives the histogram a width even if sigma is the same for all images.
  margin = 1e-3 * values.max() + 1e-12
  edges = np.linspace(values.min() - margin, values.max() + margin, 41)
  for chosen, name, color in kinds:
    if not chosen.any():
      continue
    histogram.hist(values[chosen], edges, color=color, alpha=0.6,
                   weights=np.full(chosen.sum(), 1 / chosen.sum()),
                   label=f'{name}, mean {values[chosen].mean():.3g}')
    scatter.scatter(predictions['distance_to_true'][chosen], values[chosen], s=3,
                    alpha=0.4, color=color, label=name, rasterized=True)
  histogram.set(xlabel='mean sigma', ylabel='fraction of predictions')
  scatter.set(xlabel='distance to the true center', ylabel='mean sigma')
  for panel in (histogram, scatter):
    panel.legend(frameon=False)
  _save(canvas, path)


def cost_curves(
    path: str | os.PathLike, curves: Mapping[str, Mapping[float, float]], unit: str
) -> None:
  """Plots cost against several parameters, one panel per parameter.

  Args:
    path: PNG file to write.
    curves: parameter name -> its values -> the cost.
    unit: label of the cost axis.
  """
  canvas = figure.Figure(figsize=(3 * len(curves), 3), layout='constrained')
  panels = canvas.subplots(1, len(curves), sharey=True, squeeze=False)[0]
  for panel, (name, curve) in zip(panels, curves.items()):
    panel.plot(list(curve), list(curve.values()), marker='o')
    panel.set_xlabel(name)
    panel.grid(alpha=0.3)
  panels[0].set_ylim(bottom=0)  # Shared axis: only after all curves.
  panels[0].set_ylabel(unit)
  _save(canvas, path)


def comparison(
    path: str | os.PathLike,
    methods: Mapping[str, Mapping[str, tuple[float, float]]],
) -> None:
  """Plots the metrics of several methods side by side, one panel per metric.

  Args:
    path: PNG file to write.
    methods: title -> accuracy, ece and nll, each as mean and standard deviation.
  """
  canvas = figure.Figure(
      figsize=(15, 1.2 + 0.35 * len(methods)), layout='constrained')
  panels = canvas.subplots(1, 3, sharey=True)
  places = range(len(methods))
  for panel, (name, label, scale) in zip(panels, (
      ('accuracy', 'accuracy %', 100), ('ece', 'ECE %', 100), ('nll', 'NLL', 1))):
    means, deviations = scale * np.array(
        [results[name] for results in methods.values()]).T
    panel.errorbar(means, places, xerr=deviations, fmt='o', capsize=3)
    panel.set_xlabel(label)
    panel.grid(alpha=0.3)
  panels[0].set_yticks(places, list(methods))
  panels[0].invert_yaxis()
  _save(canvas, path)


def _save(canvas, path):
  with files.replacing(path) as temporary:
    temporary.write_bytes(_png(canvas, dpi=120))


def _png(canvas, dpi):
  # In memory first: matplotlib seeks, which remote file systems do not support.
  buffer = io.BytesIO()
  canvas.savefig(buffer, format='png', dpi=dpi)
  return buffer.getvalue()


def _reliability(methods):
  """Returns a figure with one column of panels per title and its [3, 15] bins."""
  canvas = figure.Figure(figsize=(4.2 * len(methods), 5), layout='constrained')
  panels = canvas.subplots(
      2, len(methods), sharex=True, sharey='row', squeeze=False, height_ratios=[3, 1])
  for column, (title, bins) in enumerate(methods.items()):
    ece = float(metrics.expected_calibration_error(bins))
    _draw_accuracy(panels[0, column], bins)
    panels[0, column].set_title(f'{title}\nECE {100 * ece:.2f} %')
    _draw_histogram(panels[1, column], bins[0])
  panels[0, 0].set_ylabel('accuracy')
  panels[1, 0].set_ylabel('fraction of images')
  return canvas


def _draw_accuracy(panel, bins):
  weights, confidences, corrects = bins
  filled = weights > 0
  left = (np.arange(_NUM_BINS) / _NUM_BINS)[filled]
  accuracy = corrects[filled] / weights[filled]
  confidence = confidences[filled] / weights[filled]
  bar = {'width': 1 / _NUM_BINS, 'align': 'edge'}
  panel.bar(left, accuracy, color='tab:blue', edgecolor='white',
            label='accuracy', **bar)
  panel.bar(left, confidence - accuracy, bottom=accuracy, color='none',
            edgecolor='tab:red', hatch='///', label='gap to mean confidence', **bar)
  panel.plot([0, 1], [0, 1], color='black', linestyle='--', linewidth=1)
  panel.set(xlim=(0, 1), ylim=(0, 1))
  panel.legend(loc='upper left', frameon=False)


def _draw_histogram(panel, weights):
  panel.bar(np.arange(_NUM_BINS) / _NUM_BINS, weights / weights.sum(),
            width=1 / _NUM_BINS, align='edge', color='tab:gray', edgecolor='white')
  panel.set(xlabel='confidence', yscale='log')
