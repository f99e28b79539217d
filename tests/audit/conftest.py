"""The token set and the segments of the pre-training tests."""

from tests.pretrain.conftest import settings, tokens, warm_processes  # noqa: F401 - fixtures
