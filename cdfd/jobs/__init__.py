"""A version as a job of many parts, for engines that deliver it in several processes."""
