"""Training: state, step, loop."""

from .optimizer import learning_rate, make_optimizer
from .state import State, abstract_state, init_state, state_shardings
from .step import batch_shapes, jit_eval_step, jit_train_step, train_step

__all__ = [
    "State",
    "abstract_state",
    "batch_shapes",
    "init_state",
    "jit_eval_step",
    "jit_train_step",
    "learning_rate",
    "make_optimizer",
    "state_shardings",
    "train_step",
]
