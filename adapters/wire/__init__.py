"""Frames, messages and authentication of the direct channels."""
