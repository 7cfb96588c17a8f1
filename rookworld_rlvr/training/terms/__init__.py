"""Terms of the loss that go by more than the sampled completions: right answers, values, moves."""
