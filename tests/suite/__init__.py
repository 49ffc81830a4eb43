"""Tools that all tests share: plain signals, rotation of expensive cases, and the report at the
end.
"""
