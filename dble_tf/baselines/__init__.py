"""The methods that DBLE is compared with, one a file."""

from dble_tf.baselines.deep_ensemble import DeepEnsemble
from dble_tf.baselines.mc_dropout import MCDropout
from dble_tf.baselines.temperature_scaling import TemperatureScaling
from dble_tf.baselines.trust_score import TrustScore
from dble_tf.baselines.vanilla import Vanilla
from dble_tf.baselines.vanilla_errors import VanillaErrors
