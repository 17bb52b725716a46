"""A class of made-up students, and the answers that they give."""
