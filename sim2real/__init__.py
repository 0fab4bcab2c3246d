if __name__ != "robo_rl.sim2real":
    raise ImportError(f"import robo_rl.sim2real, not {__name__}: ./sim2real is a room of robo_rl")
