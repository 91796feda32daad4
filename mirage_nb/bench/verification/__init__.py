"""What `bench verify` tries the verifier with: attacks, hostile files, campaigns of pairs and their oracle."""
