"""The token set and the segments of the tests of pre-training."""

from tests.pretrain.conftest import settings, tokens, warm_processes  # noqa: F401 - fixtures
