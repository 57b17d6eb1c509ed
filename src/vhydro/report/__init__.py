"""Pages, tables and result files, made from plain numbers; no model runs here."""
