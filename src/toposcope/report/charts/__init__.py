"""The charts of reports: one file each, from a page's data to Altair charts."""
