"""Requests of operators: pause, resume, publish a table again, move it, change the log level. Answered by notifications."""
