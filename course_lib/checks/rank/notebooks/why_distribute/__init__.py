"""In the ranks: functions of a model's sizes, and a meter of what forward keeps for backward."""
