"""What happened and when: events, spans and their export. Knows neither vLLM nor pandas."""
