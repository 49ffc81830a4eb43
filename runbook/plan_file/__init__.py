"""plan.json: its types, its reader, the identity of a training, and the formulas that planning and trainer share."""
