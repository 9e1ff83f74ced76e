"""What every floor needs: errors with remedies, extras, secrets, this machine's network, text, files."""
