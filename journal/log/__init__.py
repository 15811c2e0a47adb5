"""Write-ahead logs: the contract of ``base/data_log.py`` in memory and on local files."""
