"""What is to be done about an object, as pure functions of what was seen and what time it is."""
