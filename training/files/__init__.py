"""Files that runs and users give: written whole or not at all, read with care."""
