"""Label smoothing (Szegedy et al., 2016): `Vanilla` with another loss."""

import keras


def loss(smoothing: float) -> keras.losses.Loss:
  """Cross-entropy against (1 - smoothing) one-hot + smoothing / M.

  ```python
  model.compile(optimizer, loss=label_smoothing.loss(0.1))
  ```
  """
  return keras.losses.CategoricalCrossentropy(
      from_logits=True, label_smoothing=smoothing)
