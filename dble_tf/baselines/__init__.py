"""The methods that DBLE is compared with, one a file."""

from dble_tf.baselines.vanilla import Vanilla
