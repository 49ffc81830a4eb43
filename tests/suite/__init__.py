"""What all tests share: plain signals, rotation of expensive cases, the report at the end."""
