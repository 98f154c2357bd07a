NAME = "late"
