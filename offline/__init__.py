if __name__ != "robo_rl.offline":
    raise ImportError(f"import robo_rl.offline, not {__name__}: ./offline is a room of robo_rl")
