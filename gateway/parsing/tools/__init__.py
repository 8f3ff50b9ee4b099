"""Tool calls inside a reply's text: one reader for each way in which models write them. Pure."""
