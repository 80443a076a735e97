"""What a target and a drafter need and bring on a given machine, before anything runs there."""
