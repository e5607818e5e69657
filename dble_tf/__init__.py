"""Distance-based learning from errors: image classifiers that know how sure they are."""

from dble_tf import encoders  # Loading a model needs its layers registered.
from dble_tf.model import DBLE
