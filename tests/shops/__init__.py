"""A whole shop for each framework: pay by push, pay by form, return page, notifications. Run by `serving`."""
