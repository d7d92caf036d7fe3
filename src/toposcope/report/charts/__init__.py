"""The charts of reports: one file each, from a page's material to Altair charts."""
