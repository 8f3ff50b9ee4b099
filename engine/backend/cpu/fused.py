"""Row dots written by hand."""
ROW_DOTS = {}
