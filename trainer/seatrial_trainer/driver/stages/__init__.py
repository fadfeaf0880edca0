"""One module per kind of stage."""
