"""Records, attestation log, hashes, atomic files, settings, text formatting and errors."""
