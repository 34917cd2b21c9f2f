"""The shops of the guides, each served in processes of its own, and a site with an admin."""
