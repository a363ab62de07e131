"""Policy files: reading, checking and writing them whole."""
