"""Programs that load the commands. They check what they get, and write down what they measure."""
