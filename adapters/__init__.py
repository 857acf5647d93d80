"""One folder for each technology that touches the world."""
