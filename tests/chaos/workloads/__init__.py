"""Programs that produce and consume numbered records, and write down what they know of each."""
