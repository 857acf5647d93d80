"""What the control service must not forget when its process dies."""
