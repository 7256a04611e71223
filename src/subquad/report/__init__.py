"""From rows to charts and pages."""
