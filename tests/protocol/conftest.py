"""Property tests here may meet a busy machine: how long an example takes says nothing."""

from hypothesis import settings

settings.register_profile("no_deadline", deadline=None)
settings.load_profile("no_deadline")
