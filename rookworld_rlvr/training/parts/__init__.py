"""What the trainer is made of: a part a feature, absent where its keys are off."""
