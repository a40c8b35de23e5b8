"""The code shared by the bridges to JAX and PyTorch: functions and rollouts with derivatives, for any framework."""
