"""Write-ahead logs: the contract, and the logs in local files and in memory."""
