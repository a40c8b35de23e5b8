"""What the bridges to JAX and PyTorch share: functions and rollouts with derivatives, for arrays of any framework."""
