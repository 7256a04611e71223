"""Speech: what was said, by an encoder of sounds and connectionist temporal classification."""

from subquad.tasks.speech.task import Speech, SpeechTask

__all__ = ["Speech", "SpeechTask"]
