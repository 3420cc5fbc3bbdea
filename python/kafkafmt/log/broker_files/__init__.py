"""The files that a broker keeps beside segments, read strictly: whatever is malformed is an error, which says where.

Readers of logs do not trust these files, and ignore what is malformed in most of them. The functions here are for those
who want to see the files. They share the parsers with the readers of logs. `kinds` has one table of all files, with
their fields as rows.
"""
