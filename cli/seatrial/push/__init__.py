"""`seatrial world push`: an image from an archive to any registry that speaks the OCI distribution API."""
