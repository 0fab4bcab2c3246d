"""An exported policy's contract."""
