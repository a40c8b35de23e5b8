"""One chain in O(log n) depth: schedules of independent operations, and the engine that runs them."""
