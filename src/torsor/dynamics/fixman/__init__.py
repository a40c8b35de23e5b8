"""Relaxed constraints, after Fixman (1974) and Lee, Wang & Chirikjian (2005, 2007): see docs/fixman.md."""
