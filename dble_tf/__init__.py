"""Distance-based learning from errors: image classifiers that know how sure they are.

```python
import dble_tf as dble

data = dble.load('digits', validation_size=200)
model = dble.DBLE(dble.encoders.mlp(data.image_shape), data.num_classes, num_shots=5)
model.compile('sgd', confidence_optimizer='sgd')
model.fit(data.episodes(num_shots=5, num_queries=10), epochs=3, steps_per_epoch=100)
model.calibrate(data.train.batches(500), data.validation.batches(500))
model.evaluate(data.test.batches(500))
dble.export(model, 'export', data)
```
"""

# Keras finds the classes of a saved model once their modules have registered them.
from dble_tf import baselines
from dble_tf import encoders
from dble_tf.confidence_model import ConfidenceModel
from dble_tf.data import Dataset
from dble_tf.data import from_arrays
from dble_tf.data import load
from dble_tf.data import Split
from dble_tf.errors import UserError
from dble_tf.model import DBLE
from dble_tf.serving.export import export
from dble_tf.training import schedules  # noqa: F401 (registers WarmUp)

__version__ = '0.3.0'
__all__ = [
    'baselines', 'ConfidenceModel', 'Dataset', 'DBLE', 'encoders', 'export',
    'from_arrays', 'load', 'Split', 'UserError']
