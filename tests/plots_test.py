import numpy as np
from matplotlib import image

from dble_tf import plots


def predictions(confidence, is_correct):
  return {'confidence': np.array(confidence), 'label': np.zeros(len(confidence)),
          'true_label': 1 - np.array(is_correct, int)}


def test_a_reliability_diagram_has_a_panel_for_each_method(tmp_path):
  sure = predictions([0.95, 0.9, 0.6, 0.3], [1, 1, 0, 0])
  plots.reliability_diagram(tmp_path / 'one.png', {'A': sure})
  plots.reliability_diagram(tmp_path / 'two.png', {'A': sure, 'B': sure})
  one, two = (image.imread(tmp_path / name) for name in ('one.png', 'two.png'))
  assert one.shape[0] == two.shape[0]
  assert two.shape[1] == 2 * one.shape[1]


def test_bars_are_as_high_as_the_accuracy_of_their_bin(tmp_path):
  def blue_share(is_correct):
    path = tmp_path / f'{sum(is_correct)}.png'
    plots.reliability_diagram(path, {'A': predictions([0.97] * 4, is_correct)})
    red, green, blue = np.moveaxis(image.imread(path)[..., :3], -1, 0)
    return ((blue > 0.6) & (red < 0.3) & (green < 0.6)).sum()

  # Every plot has the same blue in its legend.
  legend = blue_share([0, 0, 0, 0])
  half, full = blue_share([1, 1, 0, 0]) - legend, blue_share([1, 1, 1, 1]) - legend
  assert full > 0
  assert abs(half / full - 0.5) < 0.1


def test_predictions_in_the_outer_bins_alone_can_be_drawn(tmp_path):
  plots.reliability_diagram(tmp_path / 'p.png', {'A': predictions([1.0, 0.0], [1, 0])})
  assert (tmp_path / 'p.png').stat().st_size > 1000


def test_sigma_is_drawn_for_correct_and_wrong_predictions(tmp_path, monkeypatch):
  drawn = []
  monkeypatch.setattr(plots, '_save', lambda canvas, path: drawn.append(canvas))
  plots.sigma(tmp_path / 'sigma.png', {
      'label': np.array([0, 0, 1]), 'true_label': np.array([0, 1, 1]),
      'sigma_mean': np.array([0.1, 0.5, 0.3]),
      'distance_to_true': np.array([1.0, 4.0, 2.0])})
  histogram, scatter = drawn[0].axes
  assert [text.get_text() for text in histogram.get_legend().get_texts()] == [
      'correct, mean 0.2', 'wrong, mean 0.5']
  correct, wrong = (points.get_offsets().tolist() for points in scatter.collections)
  assert correct == [[1.0, 0.1], [2.0, 0.3]] and wrong == [[4.0, 0.5]]


def test_a_constant_sigma_without_errors_can_be_drawn(tmp_path):
  plots.sigma(tmp_path / 'sigma.png', {
      'label': np.zeros(3), 'true_label': np.zeros(3),
      'sigma_mean': np.float32([0.05, 0.05, np.nextafter(np.float32(0.05), 1)]),
      'distance_to_true': np.arange(3.0)})
  assert (tmp_path / 'sigma.png').stat().st_size > 1000


def test_cost_curves_are_drawn_at_their_points(tmp_path, monkeypatch):
  drawn = []
  monkeypatch.setattr(plots, '_save', lambda canvas, path: drawn.append((canvas, path)))
  curves = {'shots': {1: 4.0}, 'ways': {2: 10.0, 5: 30.0}}
  plots.cost_curves(tmp_path / 'costs.png', curves, 'ms per step')
  (canvas, path), = drawn
  assert path == tmp_path / 'costs.png'
  assert [panel.get_xlabel() for panel in canvas.axes] == ['shots', 'ways']
  assert canvas.axes[0].get_ylabel() == 'ms per step'
  for panel, curve in zip(canvas.axes, curves.values()):
    assert dict(panel.lines[0].get_xydata()) == curve
    # The shared axis shows every curve.
    assert panel.get_ylim()[0] == 0 and panel.get_ylim()[1] >= 30


def test_a_comparison_shows_means_with_their_deviations(tmp_path, monkeypatch):
  drawn = []
  monkeypatch.setattr(plots, '_save', lambda canvas, path: drawn.append(canvas))
  plots.comparison(tmp_path / 'table.png', {
      'A': {'accuracy': (0.9, 0.01), 'ece': (0.02, 0.0), 'nll': (0.3, 0.1)},
      'B': {'accuracy': (0.8, 0.02), 'ece': (0.03, 0.0), 'nll': (0.5, 0.0)}})
  accuracy, ece, nll = drawn[0].axes
  assert [text.get_text() for text in accuracy.get_yticklabels()] == ['A', 'B']
  np.testing.assert_allclose(accuracy.lines[0].get_xdata(), [90, 80])
  np.testing.assert_allclose(ece.lines[0].get_xdata(), [2, 3])
  np.testing.assert_allclose(nll.lines[0].get_xdata(), [0.3, 0.5])
  bars = nll.collections[0].get_segments()
  np.testing.assert_allclose(bars[0][:, 0], [0.2, 0.4])
