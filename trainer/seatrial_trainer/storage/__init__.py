"""Run storage: what survives the driver."""
