"""Two managers of one study: who works on its days, and what the other needs to go on."""
