"""Present tables and findings: :mod:`text` on terminals, `page` as HTML, `study` as Markdown, CSV
and TALP files.

Input: results of one or several jobs. :mod:`difference` compares two jobs.
"""
