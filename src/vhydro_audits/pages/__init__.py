"""Result pages of the audits, made from their result files; no model runs here."""
