"""Distance-based learning from errors: image classifiers that know how sure they are."""

# Loading a model needs its class and its layers registered.
from dble_tf import baselines
from dble_tf import confidence_models
from dble_tf import encoders
from dble_tf.model import DBLE
