"""What the judge answered: a reply becomes scores by label, or an error that the judge can repair."""
