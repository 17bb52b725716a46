"""In the ranks: a function of a sequence spread over them (`spread`), its work watched (`work`)."""
