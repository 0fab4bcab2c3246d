if __name__ != "robo_rl.tasks":
    raise ImportError(f"import robo_rl.tasks, not {__name__}: ./tasks is a room of robo_rl")
