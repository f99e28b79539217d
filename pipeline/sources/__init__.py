"""Raw text: listing, units, fingerprints and the manifest of a source."""
