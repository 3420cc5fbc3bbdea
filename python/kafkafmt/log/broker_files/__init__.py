"""Read strictly the files that a broker keeps beside segments: malformed content is an error that has its place.

Readers of logs do not trust these files, and ignore malformed content in most of them. The functions here are for
commands that show the files. They share the parsers with the readers of logs. `kinds` has one table of all files, with
their fields as rows.
"""
