"""Tools: doctor, chunk report, backup, restore, defrag, import and export of legacy segments."""
