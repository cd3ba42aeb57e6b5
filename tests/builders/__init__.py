"""What several test files build."""
