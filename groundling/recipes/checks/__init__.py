"""What a command is given, checked before torch is loaded: rules of its settings, files and folders, columns."""
