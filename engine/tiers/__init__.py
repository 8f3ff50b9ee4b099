"""Where weights and state live, and what of the machine's memory they may take."""
