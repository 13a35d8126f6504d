"""From spans to the split: each module is one step of the pipeline."""
