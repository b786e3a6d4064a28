"""Show tables and findings to people: :mod:`text` on terminals, `page` as HTML, `study` as Markdown, CSV and TALP files.

Input: results of a job, or of several. :mod:`difference` compares two jobs.
"""
