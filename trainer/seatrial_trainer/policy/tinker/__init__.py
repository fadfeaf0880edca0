"""The policy backend on the Tinker service, which trains adapters of the models on its list over HTTP."""
